"""From divergent runs to findings: one search per kind of divergence."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpcheck import assemble
from ddpcheck.diagnose import data_parallel, shrink, simulated
from ddpcheck.diagnose.search import findings
from ddpcheck.diagnose.search.causes import Cause
from ddpcheck.diagnose.search.loop import Search
from ddpcheck.options import Options
from ddpcheck.progress import Silent
from ddpcheck.report import Finding, NotCompared, Run, Tolerance
from ddpcheck.reproduce import Smallest
from ddpcheck.session import RunOutcome, Session

# A run that varies one that hung is given less time: no rank needs that many times
# what one process did for the global batch. One that varies a run whose ranks waited
# for each other is asked earlier whether its ranks do.
_LEAST_TIMEOUT_S = 5.0
_SLOWDOWN = 20.0
_QUIET_LOOKS = 2


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
    progress: Silent,
    diagnosis: Diagnosis,
) -> None:
    """Adds the findings for all divergent runs, one search after the other."""
    diagnosis.runs = list(runs)
    limit_patience(session, outcomes)
    explained: set[int] = set()
    removable: list[str] = []
    mended: shrink.Mended | None = None
    for index in _by_world_size(runs, "ddp"):
        if index in explained:
            continue
        progress(f"diagnosing ddp at world size {runs[index].world_size}")
        search = Search(session, outcomes[index], limit, fix=options.fix)
        search.repeats = _repeats(session, outcomes[index], limit)
        causes = search.run()
        same = _explained(search, causes, outcomes, runs, index) - explained
        explained |= same | {index}
        removable = removable or shrink.removable(search.case)
        mended = mended or search.mended(causes)
        found = findings.make(causes, search.case, search.rest, sorted(same | {index}))
        diagnosis.findings = findings.merge(diagnosis.findings, found)
    _diagnose_simulated(
        session, outcomes, limit, options, progress, diagnosis, explained
    )
    diagnosis.smallest = shrink.smallest(
        session, outcomes, runs, limit, removable, mended
    )
    # Those that DataParallel broke off have findings of their own.
    of_replicas = (i for i in _by_world_size(runs, "dp") if not runs[i].faults)
    rest = [i for i in of_replicas if i not in explained]
    if rest:
        found, made = diagnosis.findings, runs
        if not any(run.mode in ("ddp", "sim") for run in runs):
            found, run = _under_ddp(session, outcomes, rest, limit, options, progress)
            made = [*runs, run]
        diagnosis.findings = data_parallel.explain(
            session, outcomes, made, rest, found, limit
        )


def limit_patience(session: Session, outcomes: list[RunOutcome]) -> None:
    """Gives the runs that vary these, and probes, less time than they had.

    Where one process alone takes long, more: a probe makes many passes.
    """
    needed_s = _SLOWDOWN * max(o.reference.seconds for o in outcomes)
    longest_s = session.pool.timeout_s
    if not session.is_bounded:
        longest_s = max(longest_s, needed_s)
    session.timeout_s = min(longest_s, _LEAST_TIMEOUT_S + needed_s)
    if any(rank.kind == "stuck" for outcome in outcomes for rank in outcome.ranks):
        session.quiet_looks = _QUIET_LOOKS


def _under_ddp(
    session: Session,
    outcomes: list[RunOutcome],
    rest: list[int],
    limit: Tolerance,
    options: Options,
    progress: Silent,
) -> tuple[list[Finding], Run]:
    """Returns what DataParallel shares with DDP, which nobody asked for, and DDP's run.

    Most causes show under both, and what only DataParallel has is told by DDP's being
    right.
    """
    spec = outcomes[rest[0]].spec.but(mode="ddp")
    outcome = session.run([spec])[0]
    run = assemble.to_run(outcome, limit.rtol)
    if run.verdict != "divergent":
        return [], run
    progress(f"diagnosing ddp at world size {spec.world_size}")
    search = Search(session, outcome, limit, fix=options.fix)
    search.repeats = _repeats(session, outcome, limit)
    causes = search.run()
    found = findings.make(causes, search.case, search.rest, rest)
    known = [f for f in found if f.slug != findings.UNKNOWN]
    of_replicas = assemble.to_run(outcomes[rest[0]], limit.rtol)
    return data_parallel.alone(known, of_replicas, outcomes[rest[0]]), run


def _diagnose_simulated(
    session: Session,
    outcomes: list[RunOutcome],
    limit: Tolerance,
    options: Options,
    progress: Silent,
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
            search = Search(session, stand_in, limit, fix=options.fix)
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
    if floor is None or floor <= limit.rtol:
        return True
    facts = outcome.reference.facts
    if facts["draws"] or facts["draws_later"]:
        return True
    again = session.run([outcome.spec.but(mode="single", world_size=1)])[0]
    return assemble.worst_excess(assemble.to_run(again, limit.rtol)) <= 1


def _by_world_size(runs: list[Run], mode: str) -> list[int]:
    found = [
        i for i, r in enumerate(runs) if r.mode == mode and r.verdict == "divergent"
    ]
    # Probes judge the first step: a run that differs from there on says more.
    return sorted(found, key=lambda i: (_is_late(runs[i]), runs[i].world_size, i))


def _is_late(run: Run) -> bool:
    """Returns whether the first step's gradients were compared and are right."""
    by_step = run.gradients.excess_by_step
    return bool(by_step) and by_step[0] <= 1 and not run.faults


def _explained(
    search: Search,
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
        search.trials.with_fixes(outcomes[i].spec, [c.proposal for c in causes])
        for i in others
    ]
    mended = search.trials.excesses(specs)
    return {i for i, excess in zip(others, mended, strict=True) if excess <= 1}
