"""Fix the first link, run again, go on until nothing diverges.

Rules propose, runs decide: a proposal's intervention is applied to the real run, and
the cause is verified when what remains is within tolerance. With several causes each
is verified by leaving its fix alone out again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddpcheck import assemble
from ddpcheck.diagnose import data_parallel, findings, shrink, simulated
from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.causes import Cause, can_run, mended, proposed, scaled_to
from ddpcheck.diagnose.probes.evidence import (
    RankEvidence,
    ReferenceEvidence,
    StepEvidence,
)
from ddpcheck.options import Options
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO
from ddpcheck.report import Control, Finding, NotCompared, Run, Tolerance
from ddpcheck.reproduce import Smallest
from ddpcheck.run.spec import RunSpec
from ddpcheck.session import RunOutcome, Session
from ddpcheck.tolerance import LARGEST_FLOOR

Progress = Callable[[str], None]

_MAX_ROUNDS = 8
_MAX_CONTROLS = 6
# A run that varies one that hung is given less time: no rank needs that many times
# what one process did for the global batch.
_LEAST_TIMEOUT_S = 5.0
_SLOWDOWN = 20.0


@dataclass(slots=True)
class Diagnosis:
    """What a diagnosis adds to a report."""

    runs: list[Run] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    smallest: Smallest | None = None  # run that shows a divergence of DDP


def diagnose(
    session: Session,
    outcomes: list[RunOutcome],
    runs: list[Run],
    limit: Tolerance,
    options: Options,
    progress: Progress,
) -> Diagnosis:
    """Returns the findings for all divergent runs."""
    diagnosis = Diagnosis(runs=list(runs))
    session.timeout_s = min(
        session.pool.timeout_s,
        _LEAST_TIMEOUT_S + _SLOWDOWN * max(o.reference.seconds for o in outcomes),
    )
    explained: set[int] = set()
    removable: list[str] = []
    for index in _by_world_size(runs, "ddp"):
        if index in explained:
            continue
        progress(f"diagnosing ddp at world size {runs[index].world_size}")
        search = _Search(session, outcomes[index], limit, fix=options.fix)
        search.repeats = _repeats(session, outcomes[index], limit)
        causes = search.run()
        same = _explained(search, causes, outcomes, runs, index) - explained
        explained |= same | {index}
        removable = removable or shrink.removable(search.case)
        found = findings.make(causes, search.case, search.rest, sorted(same | {index}))
        diagnosis.findings = findings.merge(diagnosis.findings, found)
    _diagnose_simulated(
        session, outcomes, limit, options, progress, diagnosis, explained
    )
    diagnosis.smallest = shrink.smallest(session, outcomes, runs, limit, removable)
    rest = [i for i in _by_world_size(runs, "dp") if i not in explained]
    if rest:
        diagnosis.findings = data_parallel.explain(
            session, outcomes, runs, rest, diagnosis.findings, limit
        )
    return diagnosis


def _diagnose_simulated(
    session: Session,
    outcomes: list[RunOutcome],
    limit: Tolerance,
    options: Options,
    progress: Progress,
    diagnosis: Diagnosis,
    explained: set[int],
) -> None:
    """Adds the findings of simulated runs, from real ranks that diverge alike.

    `explained` are the real runs whose findings are known.
    """
    runs = diagnosis.runs
    for indices in simulated.groups(runs):
        known = [i for i in explained if simulated.is_alike(runs[i], runs[indices[0]])]
        if known:
            diagnosis.findings = simulated.joined(diagnosis.findings, known, indices)
            continue
        spec = outcomes[indices[0]].spec
        stand_in = simulated.stand_in(session, outcomes, indices, limit)
        found = [simulated.unknown(runs[indices[0]], indices)]
        if stand_in is not None:
            progress(f"diagnosing ddp at world size {stand_in.spec.world_size}")
            search = _Search(session, stand_in, limit, fix=options.fix)
            causes = search.run()
            found = findings.make(causes, search.case, search.rest, indices)
            found = [simulated.said(f, stand_in.spec.world_size, spec) for f in found]
        diagnosis.findings = findings.merge(diagnosis.findings, found)


def _repeats(session: Session, outcome: RunOutcome, limit: Tolerance) -> bool:
    """Returns whether one process, seeded otherwise, computes the same again.

    Asked only where it does not on a permuted batch, and where torch's generator is at
    rest: a target that draws from it says so itself.
    """
    floor = limit.noise_floor
    if floor is None or floor <= LARGEST_FLOOR[outcome.spec.dtype]:
        return True
    if outcome.reference.facts["draws"]:
        return True
    again = session.run([outcome.spec.but(mode="single", world_size=1)])[0]
    return assemble.worst_excess(assemble.to_run(again, limit.rtol)) <= 1


def _by_world_size(runs: list[Run], mode: str) -> list[int]:
    found = [
        i for i, r in enumerate(runs) if r.mode == mode and r.verdict == "divergent"
    ]
    return sorted(found, key=lambda i: (runs[i].world_size, i))


def _explained(
    search: _Search,
    causes: list[Cause],
    outcomes: list[RunOutcome],
    runs: list[Run],
    index: int,
) -> set[int]:
    """Returns the other divergent runs that the same fixes mend."""
    others = [
        i
        for i in _by_world_size(runs, "ddp")
        if i != index
        and runs[i].batch_norm == runs[index].batch_norm
        and runs[i].loss == runs[index].loss
    ]
    if not causes or not all(c.verified for c in causes):
        # Nothing to test with: the same link breaks at every world size, unless one
        # run breaks off and another ends with other numbers.
        broke_off = bool(runs[index].faults)
        return {i for i in others if bool(runs[i].faults) == broke_off}
    specs = [
        search.with_fixes(outcomes[i].spec, [c.proposal for c in causes])
        for i in others
    ]
    mended = search.excesses(specs)
    return {i for i, excess in zip(others, mended, strict=True) if excess <= 1}


class _Search:
    """The search for the causes of one divergent run."""

    def __init__(
        self, session: Session, outcome: RunOutcome, limit: Tolerance, *, fix: bool
    ) -> None:
        self.session, self.limit, self.fix = session, limit, fix
        self.spec, self.outcome = outcome.spec, outcome
        self.case: Case | None = None
        self.rest: Case | None = None  # what no cause explains
        self.refuted: set[str] = set()
        self.repeats = True
        self.falls_back = False

    def run(self) -> list[Cause]:
        """Returns the causes in the order of the chain, verified as far as possible.

        What rules fall back on mends more than its own cause: it is tried last.
        """
        causes = self._attempt()
        if self.rest is not None and any(c.proposal.fallback for c in causes):
            first, self.falls_back, self.refuted = self.rest, True, set()
            again = self._attempt()
            if self.rest is None:
                causes = again
            else:
                self.rest = first
        for cause in causes:
            cause.where = self._place(cause.proposal)
        return causes

    def _attempt(self) -> list[Cause]:
        causes: list[Cause] = []
        before: Case | None = None
        for _ in range(_MAX_ROUNDS):
            taken = [c.proposal for c in causes]
            case = self._case(self.with_fixes(self.spec, taken))
            if self.case is None:
                self.case = case
            if case.run.verdict == "equivalent":
                break
            proposals = proposed(case)
            if causes and before and not mended(causes[-1], before, case, proposals):
                self.refuted.add(causes.pop().proposal.slug)
                taken, case = taken[:-1], before
                proposals = proposed(case)
            known = {t.slug for t in taken}
            proposals = [p for p in proposals if p.slug not in known | self.refuted]
            self.rest = case
            cause = self._choose(case, proposals, taken)
            if cause is None:
                break
            causes.append(cause)
            before = case
            if cause.verified or not self.fix or not can_run(cause.proposal):
                self.rest = None
                break
        if len(causes) > 1:
            self._leave_one_out(causes)
        return causes

    def _place(self, proposal: Proposal) -> str | None:
        keys = findings.place_keys(proposal)
        if not keys:
            return None
        arguments = {"ref": self.session.ref, "keys": keys}
        job = Job(function="ddpcheck.run.places:find", arguments=arguments)
        value = self.session.pool.run(job, SOLO)[0].value
        return value if isinstance(value, str) else None

    def with_fixes(self, spec: RunSpec, proposals: list[Proposal]) -> RunSpec:
        """Returns the spec with the interventions of these proposals."""
        fixes = tuple(dict.fromkeys(f for p in proposals for f in p.fixes))
        noise = next((p.noise for p in proposals if p.noise), spec.noise)
        mode = "averaged" if any(p.by_hand for p in proposals) else spec.mode
        scaled = tuple(
            scaled_to(f, self.spec.world_size, spec.world_size) for f in fixes
        )
        return spec.but(fixes=spec.fixes + scaled, noise=noise, mode=mode)

    def excesses(self, specs: list[RunSpec]) -> list[float]:
        """Returns the worst excess of every spec, inf where it faults."""
        outcomes = self.session.run(specs)
        return [
            assemble.worst_excess(assemble.to_run(o, self.limit.rtol)) for o in outcomes
        ]

    def _case(self, spec: RunSpec) -> Case:
        by_hand = spec.but(mode="averaged")
        wanted = [s for s in dict.fromkeys((spec, by_hand)) if s != self.spec]
        made = dict(zip(wanted, self.session.run(wanted), strict=True))
        made[self.spec] = self.outcome
        outcomes = [made[spec], made[by_hand]]
        runs = [assemble.to_run(o, self.limit.rtol) for o in outcomes]
        return Case(
            run=runs[0],
            outcome=outcomes[0],
            by_hand=runs[-1],
            by_hand_outcome=outcomes[-1],
            step=self._probe(spec),
            rtol=self.limit.rtol,
            facts=outcomes[0].reference.facts,
            repeats=self.repeats,
            arm=lambda **changes: self._arm(spec, changes),
        )

    def _arm(self, spec: RunSpec, changes: dict[str, Any]) -> Run:
        """Returns a variation of the run, compared with a reference varied alike."""
        outcome = self.session.run([spec.but(**changes)])[0]
        return assemble.to_run(outcome, self.limit.rtol)

    def _probe(self, spec: RunSpec) -> StepEvidence | None:
        # On the CPU wherever the run was: evidence is exact there, and what it
        # proposes is tried on the run itself.
        spec = spec.but(device="cpu")
        pool, ref = self.session.pool, self.session.ref
        single = self.session.reference(spec).spec
        assert single is not None
        job = Job(
            function="ddpcheck.diagnose.probes.reference:record",
            arguments={"ref": ref, "spec": single, "world_size": spec.world_size},
        )
        first = pool.run(job, SOLO)[0]
        if not isinstance(first.value, ReferenceEvidence) or first.value.failed:
            return None
        job = Job(
            function="ddpcheck.diagnose.probes.rank:judge",
            arguments={
                "ref": ref,
                "spec": spec,
                "trace": first.value.trace,
                "count_names": tuple(first.value.counts),
            },
            files=("trace",),
        )
        limit_s = self.session.timeout_s
        told = [o.value for o in pool.run(job, spec.world_size, timeout_s=limit_s)]
        ranks = [v for v in told if isinstance(v, RankEvidence)]
        if len(ranks) < len(told) or any(r.failed for r in ranks):
            return None
        return StepEvidence(
            world_size=spec.world_size, reference=first.value, ranks=tuple(ranks)
        )

    def _choose(
        self, case: Case, proposals: list[Proposal], taken: list[Proposal]
    ) -> Cause | None:
        """Returns the cause to take up: the first proposal that its run verifies.

        Where none does, there may be several causes: then the first proposal of the
        first link, whose fix the next round builds on.
        """
        firm = [p for p in proposals if not p.speculative]
        before = assemble.worst_excess(case.run)
        if not self.fix:
            return Cause(firm[0], before=before) if firm else None
        if firm and firm[0] is proposals[0] and not can_run(firm[0]):
            # Ranks that wait for each other: any fix that ends the wait by making all
            # ranks do the same would look like a proof.
            return Cause(firm[0], before=before)
        testable = [p for p in proposals if can_run(p)]
        tested = self._test(testable, taken)
        proposals = [self._or_fallback(p, tested, taken) for p in proposals]
        firm = [p for p in proposals if not p.speculative]
        for proposal in proposals:
            excess = tested.get(proposal.slug)
            if excess is None or excess > 1:
                continue
            if self._stands(proposal, taken):
                return self._verified(proposal, before, tested)
            firm = [p for p in firm if p is not proposal]
        if not firm:
            return None
        first = firm[0]
        if first.or_by_hand and case.by_hand.verdict == "equivalent":
            by_hand = dataclasses.replace(first, by_hand=True, fixes=())
            after = assemble.worst_excess(case.by_hand)
            return Cause(by_hand, before=before, after=after, verified=True)
        after = tested.get(first.slug, math.inf)
        verified = False if first.slug in tested else None
        return Cause(first, before=before, after=after, verified=verified)

    def _or_fallback(
        self, proposal: Proposal, tested: dict[str, float], taken: list[Proposal]
    ) -> Proposal:
        """Returns what mends the run of the proposal and its fallback."""
        other = proposal.fallback
        if other is None or not self.falls_back:
            return proposal
        if tested.get(proposal.slug, math.inf) <= 1:
            return proposal
        excess = self._test([other], taken)[other.slug]
        if excess > 1:
            return proposal
        tested[other.slug] = excess
        return other

    def _stands(self, proposal: Proposal, taken: list[Proposal]) -> bool:
        """Returns whether the proposal's control, if any, mends the run as well."""
        if not proposal.control:
            return True
        control = dataclasses.replace(proposal, fixes=proposal.control)
        return self.excesses([self.with_fixes(self.spec, [*taken, control])])[0] <= 1

    def _test(
        self, proposals: list[Proposal], taken: list[Proposal]
    ) -> dict[str, float]:
        specs = [self.with_fixes(self.spec, [*taken, p]) for p in proposals]
        values = self.excesses(specs)
        return {p.slug: v for p, v in zip(proposals, values, strict=True)}

    def _verified(
        self, proposal: Proposal, before: float, tested: dict[str, float]
    ) -> Cause:
        controls = [
            Control(slug=slug, excess_after=excess)
            for slug, excess in tested.items()
            if slug != proposal.slug
        ]
        return Cause(
            proposal,
            before=before,
            after=tested[proposal.slug],
            verified=True,
            controls=controls[:_MAX_CONTROLS],
        )

    def _leave_one_out(self, causes: list[Cause]) -> None:
        """Judges every cause by the run with all fixes but its own."""
        every = [c.proposal for c in causes]
        if not causes[-1].verified:
            return
        after = causes[-1].after
        specs = [
            self.with_fixes(self.spec, [p for p in every if p is not q]) for q in every
        ]
        for cause, before in zip(causes, self.excesses(specs), strict=True):
            cause.before, cause.after = before, after
            cause.verified = before > 1 >= after
        causes[:] = [c for c in causes if c.verified]
