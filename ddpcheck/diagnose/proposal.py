"""A rule's proposal: a candidate cause, and the run that would prove it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ddpcheck.report.data import Evidence, Fix, Proof
from ddpcheck.run.intervention import (
    AverageGradients,
    Interventions,
    describe,
    kinds,
    shows_all_rows,
    width,
)

BY_DDP = "with DistributedDataParallel in the place of DataParallel the runs are equal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A rule's candidate cause, and the intervention that would prove it.

    What the report shows:
    `slug` and `link`: those of the rule, unless it sets others; the link is where in a
    step it is, of data, forward, loss, backward, reduce and update.
    `summary`: the cause, one sentence. `facts`: sentences with numbers that name no
    cause. `fix` and `code`: what to do, and how. `safe`: the fix does not change the
    single-process run. `benign`: nothing is wrong with the training itself.
    `evidence`: the numbers behind the facts, for the report's data. `module`: whose
    code the report points to.

    How it is proven:
    `fixes`: the interventions (run/intervention.py) that are in force in the run that
    confirms it; `noise`: its noise mode. `by_hand`: that run averages gradients by hand
    instead of by DDP; `local`: the parameters whose
    gradients stay local, if those of others do not. `control`: fixes that must mend the
    run as well, or the cause is another one. `fallback`: the same cause less precisely,
    if `fixes` do not make the run equal.

    What its code rests on:
    `gathers`: the fix says to gather, as a run does that gives the samples of all
    ranks. `code` assumes something about the file. That is known if a run with
    `fixes` that do what the fix says is equal; else `code_rests_on` names the evidence
    of the rule. Without either the code is not shown.

    What it counts for:
    `speculative`: nothing, unless its run verifies it. `last_resort`: 1, it would fix
    many causes, and is tried after all others; 2, after these, and not together with
    what needs no proof. `needs_no_proof`: it is reported whatever its run shows.
    Of several that make the run equal the one with the least `width` is preferred.
    """

    slug: str = ""
    link: str = ""
    summary: str
    facts: tuple[str, ...]
    fix: str
    code: str = ""
    safe: bool = True
    fixes: Interventions = ()
    control: Interventions = ()
    by_hand: bool = False
    local: tuple[str, ...] = ()
    noise: str | None = None
    module: str | None = None
    speculative: bool = False
    evidence: Evidence = field(default_factory=Evidence)
    fallback: Proposal | None = None
    last_resort: int = 0
    needs_no_proof: bool = False
    benign: bool = False
    gathers: bool = False
    code_rests_on: str = ""

    @property
    def is_located_only(self) -> bool:
        """Whether an equal run with its fixes shows only where the cause is.

        Giving the samples of all ranks to a loss or a module fixes almost anything, and
        is the fix only if the proposal says so. The same noise for the same samples is
        no fix.
        """
        found = kinds(self.fixes)
        given = "substitution" in found or ("gather" in found and not self.gathers)
        return given or bool(self.noise)

    @property
    def is_wide(self) -> bool:
        """Whether the fix gives the samples of all ranks to some code."""
        return any(map(shows_all_rows, self.fixes))

    @property
    def width(self) -> int:
        """How much the fix mends beside its own cause, from 0."""
        return max(map(width, self.fixes), default=0)

    @property
    def is_precise(self) -> bool:
        """Whether there is evidence for the fix, and it fixes this cause alone."""
        return not (self.speculative or self.is_wide or self.last_resort)


def of_rule(proposal: Proposal, slug: str, link: str) -> Proposal:
    """Returns it with the slug and the link of its rule, its fallbacks as well."""
    other = proposal.fallback and of_rule(proposal.fallback, slug, link)
    mine = {"slug": proposal.slug or slug, "link": proposal.link or link}
    return replaced(proposal, **mine, fallback=other)


def replaced(proposal: Proposal, **changes: Any) -> Proposal:
    """Returns the proposal with some fields changed."""
    return replace(proposal, **changes)


def tried(proposal: Proposal, attempts: Sequence[Interventions]) -> Proposal:
    """Returns the proposal with the first of these fixes, the others as fallbacks."""
    first, *others = attempts
    other = tried(proposal, others) if others else proposal.fallback
    return replace(proposal, fixes=first, fallback=other)


def with_own_average(proposal: Proposal) -> Proposal:
    """Returns it with a run that averages only its local gradients, next to DDP."""
    fix = AverageGradients(names=proposal.local)
    return replace(proposal, fixes=(fix,), by_hand=False)


def fix_of(
    proposal: Proposal,
    *,
    verified: bool | None,
    before: float | None,
    after: float | None,
    is_alone: bool = True,
) -> Fix:
    """Returns the report's fix: what to do, what ran, and what is proven by it.

    Args:
        proposal: of the cause.
        verified: whether the run with its fixes is within tolerance, None without one.
        before: the excess without them.
        after: the excess with them.
        is_alone: no fixes of other causes were in force in that run.
    """
    proof: Proof | None = None
    if verified:
        proof = "located" if proposal.is_located_only else "intervention"
    # An average by hand fixes whatever DDP leaves out, without using the code.
    ran_alike = proof == "intervention" and not proposal.by_hand
    is_known = ran_alike or bool(proposal.code_rests_on)
    return Fix(
        text=proposal.fix,
        code=proposal.code if is_known else "",
        safe=proposal.safe,
        verified=verified,
        proof=proof,
        intervention=_sentence(proposal, verified=verified, is_alone=is_alone),
        excess_before=before,
        excess_after=after,
    )


def _sentence(proposal: Proposal, *, verified: bool | None, is_alone: bool) -> str:
    """Returns what ran and how it ended, "" where nothing ran."""
    if verified is None:
        return ""
    said = describe(
        proposal.fixes, noise=proposal.noise or "", by_hand=proposal.by_hand
    )
    if not said:  # only DataParallel's causes have none: their fix is to use DDP
        return BY_DDP if verified else ""
    beside = "" if is_alone else ", together with the fixes of the other causes,"
    return f"with {said}{beside} the runs {'are equal' if verified else 'still differ'}"
