"""Cells onto the rank engine: references, predictions, candidates in batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ddpcheck.compare import space
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.ranks.task import Task
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session.session import crew_of, index_of
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.suite.cells import DIRECT_CASES, Cell, Row
from ddpcheck.suite.judge import Result, judge
from ddpcheck.suite.zoo import matrix
from ddpcheck.target.target import TargetRef

# What the fork server must have imported.
PRELOAD_MODULES = ("torch", "ddpcheck.run.process.later", "ddpcheck.suite.zoo.record")

# Where a differing cell of cells.DIRECT_CASES is compared with one process itself. The
# others equal their prediction, and that is compared: |c - r| >= |p - r| - |c - p|,
# candidate c, reference r, prediction p.
DIRECT_WORLD_SIZE = 2

_RECORD = "ddpcheck.suite.zoo.record"


class SuiteError(Exception):
    """A reference or a prediction could not be made."""


@dataclass(slots=True)
class _Planned:
    """One candidate run, waiting for its outcome."""

    spec: RunSpec
    ref: TargetRef
    reference: ReferenceResult  # or the prediction
    outcome: RunOutcome | None = None

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `ddpcheck.run.jobs.candidate`."""
        return {
            "ref": self.ref,
            "spec": self.spec,
            "trace": self.reference.trace,
            "find_unused": False,  # the zoo's targets bring their own wrap
        }


@dataclass(slots=True)
class _Plan:
    """The runs of one cell."""

    cell: Cell
    against_reference: _Planned
    against_prediction: _Planned | None = None

    def runs(self) -> Iterator[_Planned]:
        """Yields the runs to make."""
        prediction = self.against_prediction
        if prediction is not None:
            yield prediction
        if prediction is None or self._is_direct():
            yield self.against_reference

    def _is_direct(self) -> bool:
        row = self.cell.row
        is_small = self.cell.world_size == DIRECT_WORLD_SIZE
        return is_small and (row.model, row.loss) in DIRECT_CASES


@dataclass(slots=True)
class Runner:
    """Runs cells on a pool that has imported PRELOAD_MODULES.

    `settings` are fields of RunSpec that hold for all cells.
    """

    pool: Pool
    settings: dict[str, Any] = field(default_factory=dict)
    _case: tuple[str, str] = ("", "")
    _references: dict[tuple[bool, str], ReferenceResult] = field(default_factory=dict)

    def run(
        self,
        cells: Iterable[Cell],
        on_case: Callable[[list[Result]], None] | None = None,
    ) -> list[Result]:
        """Returns a result per cell, in order; those of one case run side by side.

        Raises:
            SuiteError: a reference or a prediction cannot be made.
            UsageError: environment-no-gpu.
        """
        results: list[Result] = []
        for case, group in groupby(cells, key=lambda c: (c.row.model, c.row.loss)):
            found = self._run_case(case, list(group))
            if on_case:
                on_case(found)
            results += found
        return results

    def _run_case(self, case: tuple[str, str], cells: list[Cell]) -> list[Result]:
        if case != self._case:
            self.forget()
            self._case = case
        plans = self._plan(cells)
        self._execute([run for plan in plans for run in plan.runs()])
        results = [_judged(plan) for plan in plans]
        predicted = [p.against_prediction for p in plans if p.against_prediction]
        self._remove([run.reference.trace for run in predicted])
        return results

    def forget(self) -> None:
        """Removes the references of the last case."""
        self._remove([made.trace for made in self._references.values()])
        self._references.clear()

    def _plan(self, cells: list[Cell]) -> list[_Plan]:
        self._make_references({_key(cell.row): cell.row for cell in cells})
        plans = [
            _Plan(cell=cell, against_reference=self._against_reference(cell))
            for cell in cells
        ]
        self._make_predictions([p for p in plans if p.cell.expected == "differs"])
        return plans

    def _against_reference(self, cell: Cell) -> _Planned:
        made = self._references[_key(cell.row)]
        return _Planned(spec=self._spec(cell), ref=_ref(cell.row), reference=made)

    def _spec(self, cell: Cell) -> RunSpec:
        return RunSpec(
            mode=cell.row.mode,
            world_size=cell.world_size,
            batch_norm=cell.row.batch_norm,
            noise=cell.row.noise,
            ps_reduce=cell.row.reduce or "mean",
            steps=matrix.STEPS,
            **self.settings,
        )

    def _make_references(self, rows: dict[tuple[bool, str], Row]) -> None:
        """Makes the references that are not there yet, by batch norm and noise."""
        for key in [key for key in rows if key not in self._references]:
            is_frozen, noise = key
            spec = RunSpec(
                mode=SINGLE.name,
                batch_norm="frozen" if is_frozen else "asis",
                noise=noise,
                steps=matrix.STEPS,
                **self.settings,
            )
            job = Job(
                function="ddpcheck.run.jobs:reference",
                arguments={"ref": _ref(rows[key]), "spec": spec},
            )
            self._references[key] = self._made([job])[0]

    def _make_predictions(self, plans: list[_Plan]) -> None:
        if not plans:
            return
        made = self._made(
            [
                Job(
                    function=f"{_RECORD}:predicted",
                    arguments={
                        "model": plan.cell.row.model,
                        "loss": plan.cell.row.loss,
                        "spec": plan.against_reference.spec,
                        "reference": plan.against_reference.reference.trace,
                    },
                )
                for plan in plans
            ]
        )
        for plan, prediction in zip(plans, made, strict=True):
            plan.against_prediction = dataclasses.replace(
                plan.against_reference, reference=prediction
            )

    def _made(self, jobs: Sequence[Job]) -> list[ReferenceResult]:
        """Returns what the jobs made, one after the other in the solo process."""
        job = Job(function=f"{_RECORD}:several", arguments={"jobs": list(jobs)})
        outcome = self.pool.run(job, SOLO)[0]
        if outcome.kind != "done":
            raise SuiteError(_why(outcome))
        made: list[ReferenceResult] = outcome.value
        for result in made:
            if result.problem is not None:
                # The suite's targets are sound: it is the environment.
                raise UsageError(result.problem)
        return made

    def _execute(self, runs: list[_Planned]) -> None:
        """Gives every run its outcome; all crews work side by side."""
        waiting: dict[tuple[int, int], list[_Planned]] = {}
        for run in runs:
            waiting.setdefault(_crew(run.spec), []).append(run)
        tasks: dict[tuple[int, int], tuple[Task, list[_Planned]]] = {}
        while waiting or tasks:
            for crew, batch in waiting.items():
                job = _batch_job(batch[:1] if _has_server(crew) else batch)
                tasks[crew] = self.pool.submit(job, *crew), batch
            waiting = {}
            task = next(self.pool.as_done([t for t, _ in tasks.values()]))
            crew = next(key for key, (other, _) in tasks.items() if other is task)
            _, batch = tasks.pop(crew)
            made = batch[:1] if _has_server(crew) else batch
            ended = _distribute(made, task.outcomes)
            if batch[ended:]:
                waiting = {crew: batch[ended:]}

    def _remove(self, traces: list[str]) -> None:
        for trace in traces:
            space.give_back(trace)


def _crew(spec: RunSpec) -> tuple[int, int]:
    """Returns the number of processes and the index of the crew that does a run."""
    return crew_of(spec), index_of(spec)


def _has_server(crew: tuple[int, int]) -> bool:
    """Returns whether one of its processes serves: it has one run per job."""
    return crew[1] < 0


def _batch_job(batch: list[_Planned]) -> Job:
    runs = [run.arguments() for run in batch]
    return Job(function=f"{_RECORD}:candidates", arguments={"runs": runs})


def _distribute(batch: list[_Planned], outcomes: list[Outcome]) -> int:
    """Gives runs of a batch their outcomes; returns how many have one now.

    The run in which a rank failed is the last of them, the others go again.
    """
    is_done = all(outcome.kind == "done" for outcome in outcomes)
    complete = min(len(outcome.progress) for outcome in outcomes)
    ended = len(batch) if is_done else min(complete + 1, len(batch))
    for position, run in enumerate(batch[:ended]):
        ranks = [_part(outcome, position) for outcome in outcomes]
        count = len(ranks) - mode_of(run.spec.mode).servers
        run.outcome = RunOutcome(
            spec=run.spec,
            reference=run.reference,
            ranks=ranks[:count],
            servers=ranks[count:],
        )
    return ended


def _part(outcome: Outcome, position: int) -> Outcome:
    """Returns how one run of the batch ended on one rank."""
    if position >= len(outcome.progress):
        return dataclasses.replace(outcome, value=None, progress=[])
    steps, result = outcome.progress[position]
    return Outcome(rank=outcome.rank, kind="done", value=result, progress=steps)


def _judged(plan: _Plan) -> Result:
    prediction = plan.against_prediction
    return judge(
        plan.cell,
        plan.against_reference.outcome,
        prediction.outcome if prediction else None,
    )


def _key(row: Row) -> tuple[bool, str]:
    """Returns what the references of one case differ by."""
    return row.batch_norm == "frozen", row.noise


def _ref(row: Row) -> TargetRef:
    arguments = (
        ("model", row.model),
        ("loss", row.loss),
        ("dropout", row.noise == "sample"),
    )
    return TargetRef(factory="ddpcheck.suite.zoo.cases:target", arguments=arguments)


def _why(outcome: Outcome) -> str:
    if outcome.raised is not None:
        return outcome.raised.stack
    return f"a solo process {outcome.kind}\n{outcome.stack}{outcome.stderr}"
