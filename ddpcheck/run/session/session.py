"""Runs of one target on one pool: references made once, specs in, outcomes out.

The tool's own process: no torch here, only plain results of ranks.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.compare import space
from ddpcheck.errors import frames, raised
from ddpcheck.errors.problem import Problem, UsageError
from ddpcheck.ranks import folder
from ddpcheck.ranks.budget import Budget, cores
from ddpcheck.ranks.messages import Job, Outcome, Raised
from ddpcheck.ranks.pool import SOLO, Pool, PreloadError
from ddpcheck.ranks.task import LOOKS, Task
from ddpcheck.report.progress import Silent, about
from ddpcheck.run.modes import memory
from ddpcheck.run.modes.memory import Room
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.spec import (
    CUT_OFF,
    FINE_RTOL,
    ReferenceResult,
    RunOutcome,
    RunSpec,
    StepBegin,
    StepResult,
    result_of,
)
from ddpcheck.target.target import TargetRef

# Ranks that compute at the same time, over all crews. More would only wait.
_MAX_BUSY_RANKS = 16
# Seconds of the single-process run above which ranks are busy with mathematics, and
# runs side by side take longer than one after the other.
_SLOW_S = 1.0
# A rank may take this many times as long as the single process.
_SLOWDOWN = 4.0
_LEAST_S = 1.0  # for a job that begins before the deadline
_LEAST_SLOWDOWN = 2.0  # that is not unusual
_MOST_STARVED = 0.5  # of a rank's time, waiting for a core: it still hung
_LAST_LINES = 4  # of output before a stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job that was begun, and its task; None in a replay."""

    job: Job
    task: Task | None = None


class CannotCheckError(Exception):
    """The target could not be run at all, and not by a mistake in its file."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.message, self.detail = message, detail

    def __str__(self) -> str:
        """The message, followed by the stack or the last output."""
        return f"{self.message}\n{self.detail}".rstrip("\n")


class InternalError(CannotCheckError):
    """ddpcheck itself failed before anything could be compared.

    `message`: the exception, `detail`: the stack of the rank.
    """


class Session:
    """A pool with one target loaded.

    Its records are in shared memory. The end of the pool removes them; `close` does so
    earlier, if the pool continues with another target.
    """

    def __init__(
        self,
        pool: Pool,
        ref: TargetRef,
        *,
        on_run: Callable[[RunOutcome], None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.pool, self.ref, self._budget = pool, ref, budget
        self._slots: dict[int, tuple[int, ...]] = {}  # of the runs in progress
        self._references: dict[RunSpec, ReferenceResult] = {}
        self._files = 0  # that were written, see of_file
        self.on_run = on_run
        self.progress = Silent()
        self._working: dict[int, tuple[RunSpec, Task]] = {}  # by the task's identity
        # Failures of ddpcheck itself in ranks: stack by message.
        self.internal: dict[str, str] = {}
        self.room: Room | None = None  # how much memory all ranks may take
        # The pool's deadline was chosen, and holds whatever the ranks need.
        self.is_bounded = False
        self.deadline: float | None = None  # of all jobs together, monotonic
        # Deadline of the ranks' jobs if it differs from the pool's.
        self.timeout_s: float | None = None
        self.quiet_looks = LOOKS  # of the ranks' jobs, see Pool.submit

    def reference(self, spec: RunSpec) -> ReferenceResult:
        """Returns the reference that a run of this spec is compared with.

        Raises:
            UsageError: the target is wrong.
            CannotCheckError: the reference died, hung or broke the tool.
        """
        key = spec.but(
            mode=SINGLE.name,
            world_size=1,
            batch_norm="frozen" if spec.batch_norm == "frozen" else "asis",
            permute=0,
            jitter=0.0,
            reround=False,
            fixes=tuple(f for f in spec.fixes if f.in_reference),
            tile=spec.tile,
            floors=(),
            ps_reduce="mean",
            ps_lr=1.0,
            rtol=FINE_RTOL,  # a reference is compared with nothing
        )
        if key not in self._references:
            job = Job(
                function="ddpcheck.run.jobs:reference",
                arguments={"ref": self.ref, "spec": key, "room": self.room},
            )
            with self._budget.taken(1) if self._budget else contextlib.nullcontext():
                made = self._value(*self._solo(job, key))
            self._references[key] = made
            if made.spec is not None:  # the dtype that worked stands for "auto"
                self._references.setdefault(made.spec, made)
        return self._references[key]

    def _solo(self, job: Job, spec: RunSpec) -> tuple[Outcome, float]:
        """Returns the outcome of the single-process run, and its seconds."""
        task = self.pool.submit(
            job,
            SOLO,
            timeout_s=self._in_time(self.pool.timeout_s),
            is_bounded=self.is_bounded,
        )
        self._working[id(task)] = (spec, task)
        try:
            self.pool.wait([task])
        finally:
            del self._working[id(task)]
        return task.outcomes[0], task.seconds

    def where(self) -> str:
        """Returns the training step in progress, "" without one.

        May be called in another thread: it reads the progress that ranks have written.
        """
        return "; ".join(_place(spec, task) for spec, task in [*self._working.values()])

    def trains(self, spec: RunSpec) -> bool:
        """Returns whether a single process can train with this spec.

        A target that trains on its batch may fail with another order or other weights:
        a class without a sample, a divisor of zero.
        """
        try:
            self.reference(spec)
        except (UsageError, CannotCheckError):
            return False
        return True

    def close(self) -> None:
        """Removes the records of the single-process run, for runs and for probes."""
        self._references.clear()
        space.clear([self.pool.folder, folder.on_disk(self.pool.folder)])

    def run(self, specs: Iterable[RunSpec], *, apart: bool = False) -> list[RunOutcome]:
        """Returns the outcome of every spec, in order; runs side by side.

        The cheapest run that can diverge starts first: it is reported even if the check
        is interrupted.

        Args:
            specs: what to run.
            apart: also runs those of one world size side by side, each on its own crew,
                for ranks that only wait. Not in an existing process group, which has
                one rank per process.
        """
        outcomes = [
            RunOutcome(spec=spec, reference=self.reference(spec)) for spec in specs
        ]
        if apart and not self.pool.is_given:
            _part(outcomes)
        waiting = sorted(range(len(outcomes)), key=lambda i: _cost(outcomes[i].spec))
        running: dict[int, tuple[int, Task]] = {}
        try:
            while waiting or running:
                for index in list(waiting):
                    if not self._may_start(outcomes[index], running, outcomes):
                        continue
                    if not self._take(index, outcomes[index].spec, wait=not running):
                        break
                    waiting.remove(index)
                    task = self._submit(outcomes[index])
                    running[id(task)] = (index, task)
                    self._working[id(task)] = (outcomes[index].spec, task)
                done = next(iter(self.pool.as_done([t for _, t in running.values()])))
                index, _ = running.pop(id(done))
                self._working.pop(id(done))
                self._give_back(index)
                self._finish(outcomes[index], done)
        finally:
            self._working.clear()
            for index in list(self._slots):
                self._give_back(index)
        return outcomes

    def _take(self, index: int, spec: RunSpec, *, wait: bool) -> bool:
        """Takes slots of the machine's budget; waits only while holding none."""
        if self._budget is not None:
            ranks = _busy_ranks(spec)
            budget = self._budget
            slots = budget.take(ranks) if wait else budget.try_take(ranks)
            if slots is None:
                return False
            self._slots[index] = slots
        return True

    def _give_back(self, index: int) -> None:
        slots = self._slots.pop(index, ())
        if self._budget is not None:
            self._budget.give_back(slots)

    def _may_start(
        self,
        outcome: RunOutcome,
        running: dict[int, tuple[int, Task]],
        outcomes: list[RunOutcome],
    ) -> bool:
        others = [outcomes[i] for i, _ in running.values()]
        if any(_crew(other) == _crew(outcome) for other in others):
            return False
        specs = [outcome.spec, *(other.spec for other in others)]
        if others and not self._fits_beside(outcomes, specs):
            return False
        return not others or _have_cores([outcome, *others])

    def _fits_beside(self, outcomes: list[RunOutcome], specs: list[RunSpec]) -> bool:
        sizes = outcomes[0].reference.facts.get("sizes")
        if self.room is None or sizes is None:
            return True
        needed = sum(memory.at_work(sizes, s.mode, s.world_size) for s in specs)
        return bool(needed + sizes.recorded <= self.room.limit)

    def _submit(self, outcome: RunOutcome) -> Task:
        spec, reference = outcome.spec, outcome.reference
        job = Job(
            function=mode_of(spec.mode).entry_point,
            arguments={
                "ref": self.ref,
                "spec": spec,
                "trace": reference.trace,
                "find_unused": bool(reference.facts["idle"]),
            },
            files=("trace",),
        )
        return self.pool.submit(
            job,
            *_crew(outcome),
            timeout_s=self._in_time(self.timeout_s or self._patience_s(outcome)),
            quiet_looks=self.quiet_looks,
            is_bounded=self.is_bounded,
        )

    @contextlib.contextmanager
    def of_file(self, text: str) -> Iterator[Session | None]:
        """Yields a session of another target, compared with this one's references.

        Its ranks are new: no user code has run in them. None in a replay.

        Args:
            text: of the file, which is removed again.

        Raises:
            ServerDiedError: there can be no such ranks.
        """
        self._files += 1
        path = self.pool.folder / f"file{self._files}" / "fixed.py"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        try:
            with contextlib.closing(self.pool.fresh()) as pool:
                ref = TargetRef(path=str(path), is_plain=True)
                other = Session(pool, ref, budget=self._budget)
                other._references = self._references
                other.timeout_s, other.quiet_looks = self.timeout_s, self.quiet_looks
                other.room, other.deadline = self.room, self.deadline
                other.is_bounded = self.is_bounded
                yield other
        finally:
            shutil.rmtree(path.parent, ignore_errors=True)

    def compare_with_own(self) -> None:
        """Compares the next runs with this target's own single-process run."""
        self._references = {}

    def begin(self, job: Job, world_size: int) -> Asked:
        """Starts a job that is no run: a probe, a question about the target."""
        task = self.pool.submit(
            job,
            world_size,
            timeout_s=self.timeout_s,
            quiet_looks=self.quiet_looks,
            is_bounded=self.is_bounded,
        )
        return Asked(job=job, task=task)

    def end(self, asked: Asked) -> list[Outcome]:
        """Returns what each process of a job that was begun answered."""
        assert asked.task is not None
        self.pool.wait([asked.task])
        return asked.task.outcomes

    def ask(self, job: Job, world_size: int) -> list[Outcome]:
        """Returns what each process answered to a job that is no run."""
        return self.end(self.begin(job, world_size))

    def is_late(self) -> bool:
        """Returns whether the time for all jobs is over."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def _in_time(self, limit_s: float) -> float:
        """Returns the limit of a job, or the time left for all jobs if that is less."""
        if self.deadline is None:
            return limit_s
        return min(limit_s, max(_LEAST_S, self.deadline - time.monotonic()))

    def _patience_s(self, outcome: RunOutcome) -> float:
        """Returns the deadline of a run: the setting, by default more where it is slow.

        Ranks that share a core with others take turns: a slow run is no hang.
        """
        needed_s = _SLOWDOWN * _turns(outcome.spec) * outcome.reference.seconds
        usual_s = self.pool.timeout_s
        return usual_s if self.is_bounded else max(usual_s, needed_s)

    def _finish(self, outcome: RunOutcome, task: Task) -> None:
        ranks = len(task.outcomes) - mode_of(outcome.spec.mode).servers
        outcome.ranks, outcome.servers = task.outcomes[:ranks], task.outcomes[ranks:]
        outcome.seconds = task.seconds
        if self.is_bounded and any(rank.kind == "hung" for rank in task.outcomes):
            outcome.cut_off = _cut_off(outcome, task)
        results = [result_of(told) for told in task.outcomes]
        for result in results:
            if result is not None and result.problem is not None:
                raise UsageError(result.problem)
        if any(r is None or not r.is_clean for r in results):
            self.pool.retire(*_crew(outcome))
        for rank, result in zip(task.outcomes, results, strict=True):
            if told := rank.raised or (result.raised if result else None):
                self.note_failure(told.stack)
        if self.on_run:
            self.on_run(outcome)

    def note_failure(self, stack: str) -> None:
        """Records a failure of ddpcheck itself in a rank, recognized by its stack."""
        frame = frames.raised_in_own_work(stack)
        if frame is not None:
            message = stack.rstrip().rpartition("\n")[2]
            self.internal.setdefault(f"{message} ({frame.short})", stack)

    def note_own(self, error: Exception) -> None:
        """Records a failure of ddpcheck itself in this process."""
        stack = raised.whole_stack(error)
        message = f"{type(error).__name__}: {raised.text_of(error)}"
        own = next((f for f in frames.frames(stack) if f.is_own), None)
        if own is not None:
            message += f" ({own.short})"
        self.internal[message] = stack

    def _value(self, outcome: Outcome, seconds: float) -> ReferenceResult:
        if outcome.kind == "done":
            made: ReferenceResult = outcome.value
            if made.problem is not None:
                raise UsageError(made.problem)
            if not made.is_clean:
                self.pool.retire(SOLO)
            return made
        self.pool.retire(SOLO)
        if outcome.kind == "raised":
            assert outcome.raised is not None
            detail = outcome.raised.stack
            if frames.raised_in_own_work(detail):
                raise InternalError(_kind_and_words(outcome.raised), detail)
            raise CannotCheckError(_broke(outcome.raised), detail)
        if outcome.kind == "hung":
            # What waited for cores, or stood still, was given more by default.
            limit_s = self.pool.timeout_s
            more = seconds > 1.1 * limit_s + 1
            message = (
                "the single-process run did not end within "
                f"{seconds if more else limit_s:.3g} s"
                f"{frames.in_users(outcome.stack)}; if it needs longer: --timeout-s"
            )
            raise CannotCheckError(message, outcome.stack)
        message = f"the single-process run {describe_exit(outcome.exit_code)}"
        raise CannotCheckError(message, _last_words(outcome))


def _place(spec: RunSpec, task: Task) -> str:
    told = task.crew.ranks[0].progress()
    begun = [event.step for event in told if isinstance(event, StepBegin)]
    ended = sum(isinstance(event, StepResult) for event in told)
    step = begun[-1] if begun else min(ended, spec.steps - 1)
    place = f"step {step + 1} of {spec.steps}"
    if spec.mode == SINGLE.name:
        return place
    return f"{spec.mode} W={spec.world_size} {place}"


def _kind_and_words(raised: Raised) -> str:
    return f"{raised.type_name}: {raised.message}".splitlines()[0]


def _broke(raised: Raised) -> str:
    """Returns what ended the reference run, in words."""
    if raised.type_name != "SystemExit":
        return "the reference run broke: " + raised.message
    code = "" if raised.message == "None" else raised.message
    plain = code if code.lstrip("-").isdecimal() or not code else repr(code)
    where = f" at {Path(raised.where).name}" if raised.where else ""
    return f"sys.exit({plain}) was called{where}"


def _crew(outcome: RunOutcome) -> tuple[int, int]:
    """Returns the world size and the index of the crew that does the run."""
    return crew_of(outcome.spec), index_of(outcome.spec, outcome.crew_index)


def crew_of(spec: RunSpec) -> int:
    """Returns the number of processes of the crew that does a run, SOLO for one."""
    return mode_of(spec.mode).processes(spec.world_size)


def index_of(spec: RunSpec, place: int = 0) -> int:
    """Returns the index of a crew among those of its size.

    One with a server stays connected to it: its index is below 0, and no run without a
    server has it.
    """
    return -1 - place if mode_of(spec.mode).servers else place


def expected_s(spec: RunSpec, reference: ReferenceResult) -> float:
    """Returns about how long a run takes, estimated from the single-process run.

    Ranks share the cores; a simulated rank takes at least as long as a small batch.
    """
    passes = mode_of(spec.mode).passes(spec.world_size)
    if passes > 1:
        return reference.seconds * passes / 2
    return reference.seconds * max(1.0, crew_of(spec) / cores())


def _cost(spec: RunSpec) -> tuple[bool, int, bool]:
    """Returns what orders runs: one rank last, which has nothing to divide."""
    return spec.world_size < 2, spec.world_size, not mode_of(spec.mode).is_wrapped  # noqa: PLR2004


def _turns(spec: RunSpec) -> float:
    """Returns how many passes a core makes, as long as a whole batch's at most."""
    passes = mode_of(spec.mode).passes(spec.world_size)
    return max(passes, crew_of(spec) / (os.cpu_count() or 1))


def _cut_off(outcome: RunOutcome, task: Task) -> str:
    """Returns why a run may have needed more than the limit, "" where it hung in it."""
    did = f"{CUT_OFF} {task.limit_s:g}, which is no hang: "
    needed_s = _LEAST_SLOWDOWN * _turns(outcome.spec) * outcome.reference.seconds
    if needed_s > task.limit_s:
        return did + f"from the single-process time it may need {about(needed_s)}"
    if task.starved_s > task.limit_s * _MOST_STARVED:
        return did + f"its ranks waited for a core for {task.starved_s:.3g} s"
    return ""


def is_quick(reference: ReferenceResult) -> bool:
    """Returns whether the computation is so small that other runs can go on."""
    sizes = reference.facts.get("sizes")
    is_large = sizes is not None and sizes.is_large
    return reference.seconds <= _SLOW_S and not is_large


def _have_cores(runs: list[RunOutcome]) -> bool:
    """Returns whether runs are sooner done side by side."""
    is_slow = any(run.reference.seconds > _SLOW_S for run in runs)
    most = min(cores(), _MAX_BUSY_RANKS) if is_slow else _MAX_BUSY_RANKS
    return sum(map(_busy_cores, runs)) <= most


def _busy_cores(run: RunOutcome) -> int:
    sizes = run.reference.facts.get("sizes")
    uses_all = crew_of(run.spec) == SOLO and sizes is not None and sizes.is_large
    return cores() if uses_all else _busy_ranks(run.spec)


def _busy_ranks(spec: RunSpec) -> int:
    return max(1, crew_of(spec))


def _part(outcomes: list[RunOutcome]) -> None:
    """Gives every run a crew of its own."""
    seen: collections.Counter[int] = collections.Counter()
    for outcome in outcomes:
        size = crew_of(outcome.spec)
        outcome.crew_index = seen[size]
        seen[size] += 1


def _last_words(outcome: Outcome) -> str:
    """Returns the last output of a dead process, and its stack if it wrote one."""
    if not outcome.stack:
        return outcome.stderr
    last = outcome.stderr.splitlines()[-_LAST_LINES:]
    return "\n".join([*last, outcome.stack])


def describe_exit(code: int | None) -> str:
    """Returns how a process ended: "was killed by SIGSEGV", "exited with code 3"."""
    import signal  # noqa: PLC0415

    if code is None:
        return "ended"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"


def preload_problem(error: PreloadError, name: str) -> Problem | None:
    """Returns the usage error behind a failed import, None for hangs and deaths."""
    if error.kind != "raised" or error.of_user:
        return None
    last = error.detail.strip().splitlines()[-1]
    return Problem(
        slug="environment-import",
        message=f"ddpcheck cannot start for {name}",
        expected="an environment in which torch can be imported",
        found=last,
        fix="python -c 'import torch, ddpcheck.run.jobs'",
    )
