"""From divergent runs to findings: one search per kind of divergence."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpcheck.diagnose import data_parallel, parameter_server, shrink, simulated
from ddpcheck.diagnose.fixed import check
from ddpcheck.diagnose.search import findings
from ddpcheck.diagnose.search.loop import Search
from ddpcheck.report.data import Finding, Run, Tolerance
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

    findings: list[Finding] = field(default_factory=list)
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
    diagnosis: Diagnosis,
) -> None:
    """Adds the findings for all divergent runs, one search after the other."""
    limit_patience(session, outcomes)
    searches = _Searches(session, outcomes, runs, limit, options, diagnosis)
    explained = searches.of_ranks()
    searches.of_simulated(explained)
    searches.of_servers()
    searches.of_replicas(explained)


class _Searches:
    """The searches of one check; each adds its findings to the diagnosis."""

    def __init__(
        self,
        session: Session,
        outcomes: list[RunOutcome],
        runs: list[Run],
        limit: Tolerance,
        options: Options,
        diagnosis: Diagnosis,
    ) -> None:
        self.session, self.outcomes, self.runs = session, outcomes, runs
        self.limit, self.options, self.diagnosis = limit, options, diagnosis
        # What is accepted passes where a run shows that nothing else differs.
        self.confirms = options.fix or bool(options.accept)

    def _search(self, outcome: RunOutcome) -> Search:
        """Returns the search for the causes of a run of ranks, at its end."""
        spec = outcome.spec
        self.session.progress(f"diagnosing {spec.mode} at world size {spec.world_size}")
        search = Search(self.session, outcome, self.limit, fix=self.confirms)
        search.repeats = _repeats(self.session, outcome, self.limit)
        search.run()
        return search

    def of_ranks(self) -> set[int]:
        """Adds the findings of real ranks; returns the numbers of their runs."""
        explained: set[int] = set()
        diagnosis = self.diagnosis
        for index in _by_world_size(self.runs, "ranks"):
            if index in explained:
                continue
            search = self._search(self.outcomes[index])
            same, proven = self._explained(search, index)
            same -= explained
            explained |= same | {index}
            diagnosis.removable = diagnosis.removable or shrink.removable(search.case)
            diagnosis.mended = diagnosis.mended or search.mended()
            found = search.findings(sorted(same | {index}), proven)
            if self.options.fix and not diagnosis.findings and search.is_proven:
                found = self._with_file(search, found)
            diagnosis.findings = findings.merge(diagnosis.findings, found)
        return explained

    def _with_file(self, search: Search, found: list[Finding]) -> list[Finding]:
        """Returns the findings with fixed.py as their proof, if there is such a file.

        It also runs in other modes that diverge: a finding may be about these, too.
        """
        of_ranks = [r for r in self.runs if mode_of(r.mode).explained_by == "ranks"]
        own = search.outcome.spec
        others: dict[str, RunSpec] = {}  # of the smallest world size
        for run, outcome in zip(self.runs, self.outcomes, strict=False):
            spec = outcome.spec.but(batch_norm=own.batch_norm, loss=own.loss)
            kind = mode_of(spec.mode).explained_by
            is_known = kind in ("replicas", "server", "ranks")
            if run.verdict == "divergent" and is_known and spec.mode != own.mode:
                others.setdefault(spec.mode, spec)
        try:
            made = check.make(
                self.session,
                search.outcome,
                [cause.proposal for cause in search.causes],
                sorted({run.world_size for run in of_ranks}),
                self.limit,
                list(others.values()),
            )
        except Exception as error:  # noqa: BLE001 (ours: the causes are known)
            self.session.note_own(error)
            return found
        if made is None:
            return found
        self.diagnosis.fixed, self.diagnosis.diff = made.file.text, made.diff
        return check.verified(found, made)

    def _explained(self, search: Search, index: int) -> tuple[set[int], set[int]]:
        """Returns the other divergent runs with these causes, and those with a proof.

        The proof is that the same fixes make the run equal. Where a finding is
        accepted, no other run has the causes without it: there may be another one.
        """
        causes, one_by_one = search.causes, bool(self.options.accept)
        others = _alike(self.runs, index, faults_apart=one_by_one)
        proven = {index} if search.is_proven else set()
        are_tested = bool(causes) and all(c.verified for c in causes)
        if not are_tested and one_by_one and not search.is_proven:
            return set(), proven
        if not are_tested and not one_by_one:
            # Nothing to test with: the same link breaks at every world size, unless one
            # run breaks off and another ends with other numbers.
            broke_off = bool(self.runs[index].faults)
            return {i for i in others if bool(self.runs[i].faults) == broke_off}, proven
        proposals = [c.proposal for c in causes]
        excesses = search.trials.excesses(
            [search.trials.with_fixes(self.outcomes[i].spec, proposals) for i in others]
        )
        mended = {i for i, excess in zip(others, excesses, strict=True) if excess <= 1}
        return mended, proven | mended

    def of_simulated(self, explained: set[int]) -> None:
        """Adds the findings of simulated runs, from real ranks that diverge alike.

        `explained` are the real runs whose findings are known.
        """
        runs, diagnosis = self.runs, self.diagnosis
        for indices in simulated.groups(runs):
            first = runs[indices[0]]
            known = [i for i in explained if simulated.is_alike(runs[i], first)]
            if known:
                diagnosis.findings = simulated.joined(
                    diagnosis.findings, known, indices
                )
                continue
            found = [simulated.unknown(first, indices)]
            stand_in = simulated.stand_in(
                self.session, self.outcomes, indices, self.limit
            )
            if stand_in is not None:
                made = self._search(stand_in).findings(indices)
                few, many = stand_in.spec.world_size, first.world_size
                found = [simulated.said(f, few, many) for f in made]
            diagnosis.findings = findings.merge(diagnosis.findings, found)

    def of_servers(self) -> None:
        """Adds the findings of runs with a parameter server."""
        for index in _by_world_size(self.runs, "server"):
            self._of_server(index)

    def _of_server(self, index: int) -> None:
        outcome, run, diagnosis = self.outcomes[index], self.runs[index], self.diagnosis
        given = self.session, outcome, run, index, self.limit
        self.session.progress(f"diagnosing {run.mode} at world size {run.world_size}")
        if self.confirms:
            found = parameter_server.found(*given)
        else:
            found = parameter_server.unverified(outcome, run, index)
        if not found:
            known = _known_of_ranks(self.runs, outcome, index)
            if known:
                diagnosis.findings = simulated.joined(
                    diagnosis.findings, known, [index]
                )
                return
            stand_in = parameter_server.stand_in(self.session, outcome, run, self.limit)
            if stand_in is None:
                found = [parameter_server.unknown(outcome, run, index)]
            else:
                found = parameter_server.explained(*given, self._search(stand_in))
        diagnosis.findings = findings.merge(diagnosis.findings, found)

    def of_replicas(self, explained: set[int]) -> None:
        """Adds the findings of DataParallel runs, but of those that it broke off.

        These have separate findings. Finite runs are looked at together, and others.
        """
        runs = self.runs
        rest = [
            i
            for i in _by_world_size(runs, "replicas")
            if i not in explained and not runs[i].faults
        ]
        bad = [i for i in rest if acceptance.not_finite(runs[i])]
        groups = [[i for i in rest if i not in bad], bad]
        if self.options.accept:
            groups = [[i] for i in rest]
        for group in filter(None, groups):
            self._of_replicas(group)

    def _of_replicas(self, group: list[int]) -> None:
        """Adds the findings of a group, from DDP runs if these explain them."""
        runs, known, accepts = self.runs, self.diagnosis.findings, self.options.accept
        mine, made, first = known, runs, runs[group[0]]
        twin = data_parallel.twin_of(runs, first, known)
        kinds = {mode_of(run.mode).explained_by for run in runs}
        has_others = not kinds.isdisjoint(("ranks", "stand-in"))
        if not has_others or (accepts and twin is None):
            mine, twin = self._under_ddp(group)
            made = [*runs, twin.run]
        elif accepts:  # DDP findings of another world size say nothing about these
            mine = [f for f in known if twin and twin.index in f.runs]
        found = data_parallel.explain(
            self.session, self.outcomes, made, group, mine, self.limit
        )
        if accepts and twin is not None:
            found = data_parallel.judged(twin, mine, found, group[0], first)
        # The first ones are those of `mine`, with these runs or without.
        now = {id(old): new for old, new in zip(mine, found, strict=False)}
        all_found = [now.pop(id(f), f) for f in known]
        for finding in (*now.values(), *found[len(mine) :]):
            all_found = _with(all_found, finding)
        self.diagnosis.findings = all_found

    def _under_ddp(self, rest: list[int]) -> tuple[list[Finding], data_parallel.Twin]:
        """Returns what DataParallel shares with DDP, not requested here, and DDP's run.

        Most causes occur under both; if DDP is right, the cause is DataParallel's.
        """
        of_replicas = self.outcomes[rest[0]]
        outcome = self.session.run([of_replicas.spec.but(mode=DDP.name)])[0]
        run = assemble.to_run(outcome, self.limit.rtol)
        if run.verdict != "divergent":
            return [], data_parallel.Twin(run=run)
        search = self._search(outcome)
        found = search.findings(rest)
        known = [f for f in found if f.slug != findings.UNKNOWN]
        shared = data_parallel.alone(known, self.runs[rest[0]], of_replicas)
        return shared, data_parallel.Twin(
            run=run, num_findings=len(found), is_proven=search.is_proven
        )


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


def _known_of_ranks(runs: list[Run], outcome: RunOutcome, index: int) -> list[int]:
    """Returns the run of ranks that diverges as this one with a server, if any does."""
    run = runs[index]
    if outcome.spec.ps_reduce != "mean":
        return []
    return [
        i
        for i in _by_world_size(runs, "ranks")
        if simulated.is_alike(runs[i], run)
        and runs[i].world_size == run.world_size
        and parameter_server.are_off_alike(run, runs[i])
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
