"""From divergent runs to findings: one search per kind of divergence."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpcheck.diagnose import data_parallel, parameter_server, shrink, simulated
from ddpcheck.diagnose.fixed import check
from ddpcheck.diagnose.search import findings
from ddpcheck.diagnose.search.causes import Cause
from ddpcheck.diagnose.search.loop import Search
from ddpcheck.report.data import Finding, NotCompared, Run, Tolerance
from ddpcheck.report.progress import Silent
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session import acceptance, assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunOutcome, RunSpec
from ddpcheck.target.options import Options

# A variation of a run that hung gets less time: no rank needs that many times the time
# of the single-process run. If the ranks of the run waited for each other, its
# variations are checked earlier for that.
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
    # For the search of the smallest run that shows a divergence of DDP.
    removable: list[str] = field(default_factory=list)  # modules
    mended: shrink.Mended | None = None
    fixed: str = ""  # the text of fixed.py
    diff: str = ""  # the same as a change of the user's file


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
    for index in _by_world_size(runs, "ranks"):
        if index in explained:
            continue
        progress(f"diagnosing ddp at world size {runs[index].world_size}")
        search = Search(session, outcomes[index], limit, fix=options.fix)
        search.repeats = _repeats(session, outcomes[index], limit)
        causes = search.run()
        same, proven = _explained(
            search, causes, outcomes, runs, index, one_by_one=bool(options.accept)
        )
        same -= explained
        explained |= same | {index}
        diagnosis.removable = diagnosis.removable or shrink.removable(search.case)
        diagnosis.mended = diagnosis.mended or search.mended(causes)
        of_runs = sorted(same | {index})
        found = findings.make(
            causes,
            search.case,
            search.rest,
            of_runs,
            proven,
            unknown_at=search.unknown_at,
            tried=search.trials.left,
        )
        if options.fix and not diagnosis.findings and _is_proven(search, causes):
            found = _with_file(search, causes, outcomes, found, diagnosis)
        diagnosis.findings = findings.merge(diagnosis.findings, found)
    _diagnose_simulated(
        session, outcomes, limit, options, progress, diagnosis, explained
    )
    for index in _by_world_size(runs, "server"):
        _diagnose_server(session, outcomes, limit, options, progress, diagnosis, index)
    # Runs that DataParallel broke off have separate findings.
    of_replicas = (i for i in _by_world_size(runs, "replicas") if not runs[i].faults)
    rest = [i for i in of_replicas if i not in explained]
    for group in _groups(runs, rest, one_by_one=bool(options.accept)):
        _diagnose_replicas(
            session, outcomes, group, limit, options, progress, diagnosis
        )


def _with_file(
    search: Search,
    causes: list[Cause],
    outcomes: list[RunOutcome],
    found: list[Finding],
    diagnosis: Diagnosis,
) -> list[Finding]:
    """Returns the findings with fixed.py as their proof, if there is such a file.

    It also runs in other modes that diverge: a finding may be about these, too.
    """
    runs = diagnosis.runs
    sizes = {r.world_size for r in runs if mode_of(r.mode).explained_by == "ranks"}
    own = search.outcome.spec
    others: dict[str, RunSpec] = {}
    for run, outcome in zip(runs, outcomes, strict=False):  # smallest world size first
        spec = outcome.spec.but(batch_norm=own.batch_norm, loss=own.loss)
        is_known = mode_of(spec.mode).explained_by in ("replicas", "server", "ranks")
        if run.verdict == "divergent" and is_known and spec.mode != own.mode:
            others.setdefault(spec.mode, spec)
    made = check.make(
        search.session,
        search.outcome,
        [cause.proposal for cause in causes],
        sorted(sizes),
        search.limit,
        list(others.values()),
    )
    if made is None:
        return found
    diagnosis.fixed, diagnosis.diff = made.file.text, made.diff
    return check.verified(found, made)


def _groups(runs: list[Run], rest: list[int], *, one_by_one: bool) -> list[list[int]]:
    """Returns the runs that are looked at together: finite ones, and others."""
    if one_by_one:
        return [[i] for i in rest]
    bad = [i for i in rest if acceptance.not_finite(runs[i])]
    return [g for g in ([i for i in rest if i not in bad], bad) if g]


def _diagnose_replicas(
    session: Session,
    outcomes: list[RunOutcome],
    group: list[int],
    limit: Tolerance,
    options: Options,
    progress: Silent,
    diagnosis: Diagnosis,
) -> None:
    """Adds the findings of DataParallel runs, from DDP runs if these explain them."""
    runs, known = diagnosis.runs, diagnosis.findings
    mine, made, first = known, runs, runs[group[0]]
    twin = data_parallel.twin_of(runs, first, known)
    kinds = {mode_of(run.mode).explained_by for run in runs}
    has_others = not kinds.isdisjoint(("ranks", "stand-in"))
    if not has_others or (options.accept and twin is None):
        mine, twin = _under_ddp(session, outcomes, group, limit, options, progress)
        made = [*runs, twin.run]
    elif options.accept:  # DDP findings of another world size say nothing about these
        mine = [f for f in known if twin and twin.index in f.runs]
    found = data_parallel.explain(session, outcomes, made, group, mine, limit)
    if options.accept and twin is not None:
        found = data_parallel.judged(twin, mine, found, group[0], first)
    # The first ones are those of `mine`, with these runs or without.
    now = {id(old): new for old, new in zip(mine, found, strict=False)}
    diagnosis.findings = [now.pop(id(f), f) for f in known]
    for finding in (*now.values(), *found[len(mine) :]):
        diagnosis.findings = _with(diagnosis.findings, finding)


def _with(known: list[Finding], new: Finding) -> list[Finding]:
    """Returns the findings and a new one; that of another run if it is the same."""
    for number, other in enumerate(known):
        if (other.slug, other.summary) == (new.slug, new.summary):
            merged = findings.merge([other], [new])
            return [*known[:number], *merged, *known[number + 1 :]]
    return [*known, new]


def limit_patience(session: Session, outcomes: list[RunOutcome]) -> None:
    """Gives variations of these runs, and probes, less time than the runs had.

    They get more if the single-process run takes long: a probe makes many passes.
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
) -> tuple[list[Finding], data_parallel.Twin]:
    """Returns what DataParallel shares with DDP, not requested here, and DDP's run.

    Most causes occur under both; if DDP is right, the cause belongs to DataParallel.
    """
    spec = outcomes[rest[0]].spec.but(mode=DDP.name)
    outcome = session.run([spec])[0]
    run = assemble.to_run(outcome, limit.rtol)
    if run.verdict != "divergent":
        return [], data_parallel.Twin(run=run)
    progress(f"diagnosing ddp at world size {spec.world_size}")
    search = Search(session, outcome, limit, fix=options.fix)
    search.repeats = _repeats(session, outcome, limit)
    causes = search.run()
    found = findings.make(causes, search.case, search.rest, rest)
    known = [f for f in found if f.slug != findings.UNKNOWN]
    of_replicas = assemble.to_run(outcomes[rest[0]], limit.rtol)
    shared = data_parallel.alone(known, of_replicas, outcomes[rest[0]])
    return shared, data_parallel.Twin(
        run=run,
        num_findings=len(found),
        is_proven=_is_proven(search, causes),
    )


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
            found = findings.make(
                causes,
                search.case,
                search.rest,
                indices,
                unknown_at=search.unknown_at,
                tried=search.trials.left,
            )
            found = [simulated.said(f, stand_in.spec.world_size, spec) for f in found]
        diagnosis.findings = findings.merge(diagnosis.findings, found)


def _diagnose_server(
    session: Session,
    outcomes: list[RunOutcome],
    limit: Tolerance,
    options: Options,
    progress: Silent,
    diagnosis: Diagnosis,
    index: int,
) -> None:
    """Adds the findings of a run with a parameter server."""
    outcome, run = outcomes[index], diagnosis.runs[index]
    progress(f"diagnosing {run.mode} at world size {run.world_size}")
    if options.fix:
        found = parameter_server.found(session, outcome, run, index, limit)
    else:
        found = parameter_server.unverified(outcome, run, index)
    stand_in = None
    known = [] if found else _known_of_ranks(diagnosis, outcome, index)
    if known:
        diagnosis.findings = simulated.joined(diagnosis.findings, known, [index])
        return
    if not found:
        stand_in = parameter_server.stand_in(session, outcome, run, limit)
        found = [parameter_server.unknown(outcome, run, index)]
    if stand_in is not None:
        search = Search(session, stand_in, limit, fix=options.fix)
        causes = search.run()
        made = findings.make(causes, search.case, search.rest, [index])
        found = parameter_server.explained(
            session, outcome, run, index, limit, (search, made)
        )
    diagnosis.findings = findings.merge(diagnosis.findings, found)


def _known_of_ranks(diagnosis: Diagnosis, outcome: RunOutcome, index: int) -> list[int]:
    """Returns the run of ranks that diverges as this one with a server, if any does."""
    run = diagnosis.runs[index]
    if outcome.spec.ps_reduce != "mean":
        return []
    return [
        i
        for i in _by_world_size(diagnosis.runs, "ranks")
        if simulated.is_alike(diagnosis.runs[i], run)
        and diagnosis.runs[i].world_size == run.world_size
        and parameter_server.are_off_alike(run, diagnosis.runs[i])
    ]


def _repeats(session: Session, outcome: RunOutcome, limit: Tolerance) -> bool:
    """Returns whether the single-process run with other seeds gives the same result.

    Needed only if it does not on a permuted batch, and torch's generator is not used:
    draws from that generator are known anyway.
    """
    floor = limit.noise_floor
    if floor is None or floor <= limit.rtol:
        return True
    facts = outcome.reference.facts
    if facts["draws"] or facts["draws_later"]:
        return True
    again = session.run([outcome.spec.but(mode=SINGLE.name, world_size=1)])[0]
    return assemble.worst_excess(assemble.to_run(again, limit.rtol)) <= 1


def _by_world_size(runs: list[Run], kind: str) -> list[int]:
    found = [
        i
        for i, r in enumerate(runs)
        if mode_of(r.mode).explained_by == kind and r.verdict == "divergent"
    ]
    # Probes judge the first step: a run that differs from there on shows more.
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
    *,
    one_by_one: bool,
) -> tuple[set[int], set[int]]:
    """Returns the other divergent runs that have these causes, and those with a proof.

    The proof is that the same fixes make the run equal. `one_by_one`: the others have
    none of them, because a finding is accepted, which may hide another cause there.
    """
    others = _alike(runs, index, faults_apart=one_by_one)
    is_proven = _is_proven(search, causes)
    proven = {index} if is_proven else set()
    are_tested = bool(causes) and all(c.verified for c in causes)
    if not are_tested and one_by_one and not is_proven:
        return set(), proven
    if not are_tested and not one_by_one:
        # Nothing to test with: the same link breaks at every world size, unless one
        # run breaks off and another ends with other numbers.
        broke_off = bool(runs[index].faults)
        return {i for i in others if bool(runs[i].faults) == broke_off}, proven
    specs = [
        search.trials.with_fixes(outcomes[i].spec, [c.proposal for c in causes])
        for i in others
    ]
    excesses = search.trials.excesses(specs)
    mended = {i for i, excess in zip(others, excesses, strict=True) if excess <= 1}
    return mended, proven | mended


def _is_proven(search: Search, causes: list[Cause]) -> bool:
    """Returns whether the fixes of all causes make the run equal."""
    told = [cause.verified for cause in causes]
    return search.rest is None and True in told and False not in told


def _alike(runs: list[Run], index: int, *, faults_apart: bool) -> list[int]:
    """Returns the other divergent runs that may diverge in the same way.

    Non-finite runs are separate from others, even if one fix repairs both.
    `faults_apart`: so are ranks that fail.
    """
    run = runs[index]
    found = [
        i
        for i in _by_world_size(runs, "ranks")
        if i != index
        and runs[i].batch_norm == run.batch_norm
        and runs[i].loss == run.loss
        and bool(acceptance.not_finite(runs[i])) == bool(acceptance.not_finite(run))
    ]
    if not faults_apart:
        return found
    return [i for i in found if bool(runs[i].faults) == bool(run.faults)]
