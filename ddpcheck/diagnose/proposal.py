"""What a rule says: a candidate cause, and the run that would prove it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A rule's candidate cause, and the intervention that would prove it.

    What the report shows:
    `link`: where in a step it is, of data, forward, loss, backward, reduce and update.
    `summary`: the cause, one sentence. `facts`: sentences with numbers that name no
    cause. `fix` and `code`: what to do, and how. `safe`: the fix leaves one-process
    training as it is. `benign`: nothing is wrong with the training itself.
    `evidence`: the numbers behind the facts, for the report's data. `module`: whose
    code the report points to.

    How it is proven:
    `fixes`: names of run/fixes/apply.py, in force in the run that decides; `noise`:
    its noise mode. `by_hand`: that run averages gradients by hand instead of by DDP;
    `or_by_hand`: so may it (what is found is a fact about the wrapper, which user
    code may bring about again after `fixes` mended it); `local`: the parameters whose
    gradients it leaves to each rank, where it leaves others alone. `control`: fixes
    that must mend the run as well, or the cause is another one. `fallback`: the same
    cause less precisely, for where `fixes` do not mend it.

    What it counts for:
    `speculative`: nothing, unless its run verifies it. `last_resort`: 1, it would mend
    many causes, and is tried after all others; 2, after these, and not beside what
    needs no proof. `needs_no_proof`: it is told whatever its run says. `is_attempt`: a
    run that does not mend it says nothing against it. `before_wide`: where it mends as
    well as what shows the samples of all ranks, it says more.
    """

    slug: str
    link: str
    summary: str
    facts: tuple[str, ...]
    fix: str
    code: str = ""
    safe: bool = True
    fixes: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    by_hand: bool = False
    local: tuple[str, ...] = ()
    noise: str | None = None
    module: str | None = None
    speculative: bool = False
    or_by_hand: bool = False
    evidence: dict[str, Any] = field(default_factory=dict)
    fallback: Proposal | None = None
    last_resort: int = 0
    needs_no_proof: bool = False
    is_attempt: bool = False
    benign: bool = False
    before_wide: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether the fix lets something see the samples of all ranks."""
        return any(".global:" in fix for fix in self.fixes)

    @property
    def is_precise(self) -> bool:
        """Whether evidence asks for the fix, and it mends this cause alone."""
        return not (self.speculative or self.is_wide or self.last_resort)


def replaced(proposal: Proposal, **changes: Any) -> Proposal:
    """Returns the proposal with some fields changed."""
    return replace(proposal, **changes)


def with_own_average(proposal: Proposal) -> Proposal:
    """Returns it with a run that averages only what it leaves local, beside DDP."""
    fix = f"gradients.averaged:{','.join(proposal.local)}"
    return replace(proposal, fixes=(fix,), by_hand=False)
