"""A DDP run of any world size in one process, which plays rank after rank.

A step is computed in rounds. In each round every rank runs the step from its beginning
to the next reduction, where its gradients are added to a sum and it is stopped; the
reductions of earlier rounds return their recorded results. The step is done when rank 0
reaches its end. With one reduction, as in most training, this takes W + 1 passes over a
shard, and memory for one model and one sum of gradients.

Ranks share what DDP keeps equal: weights, optimizer state, and the buffers that it
broadcasts. Per-rank state that persists between steps cannot be simulated:
`NotSimulatedError`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.compare import comparison as compare
from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.worker import Context, describe
from ddpcheck.run.facts import REFUSED, RankFacts, of_trace
from ddpcheck.run.model import model as models
from ddpcheck.run.model import user_code
from ddpcheck.run.model.draws import NoiseMismatchError
from ddpcheck.run.model.names import Names
from ddpcheck.run.model.noise import SampleNoise, bound, undefined
from ddpcheck.run.modes.jobs.batches import batches_of
from ddpcheck.run.modes.jobs.virtual.ddp import Wrapper, installed
from ddpcheck.run.modes.jobs.virtual.group import NotSimulatedError, World, world_of
from ddpcheck.run.modes.jobs.virtual.state import StepStart
from ddpcheck.run.observe import observe
from ddpcheck.run.process import isolation
from ddpcheck.run.process.loading import fingerprint, load
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.record.facts import align_start
from ddpcheck.run.record.recorders import ComparingRecorder
from ddpcheck.run.spec import CollectiveCount, CollectiveEnd, RankResult, RunSpec
from ddpcheck.run.steps import Training, batch_size
from ddpcheck.run.surroundings import (
    count_calls,
    loss_function,
    unlike_calls,
)
from ddpcheck.target.target import Target, TargetRef

_SEEDS_APART = 1_000_003  # between the steps of one rank
# Part of torch's error if a collective needs a backend of the group in
# virtual/group.py.
_NO_BACKEND = "No backend type associated with device type"


def simulated(
    context: Context,
    *,
    ref: TargetRef,
    spec: RunSpec,
    trace: str,
    find_unused: bool = False,
) -> RankResult:
    """Runs all ranks of a run and compares them with the reference's trace.

    The fact `REFUSED` is the reason if this is impossible. `rank` of the result is the
    rank that raised.
    """
    started = time.perf_counter()
    rank = 0
    facts: RankFacts = {}
    try:
        target = load(ref)
        with (
            isolation.isolated(),
            world_of(spec.world_size) as world,
            installed(world) as wrappers,
            observe.observing() as seen,
        ):
            seen.on_collective = _refuse
            run = _Simulation(context, target, spec, Reader(Path(trace)))
            run.world, run.wrappers = world, wrappers
            try:
                facts = run.execute(find_unused)
            finally:
                rank = world.rank
    except UsageError as error:
        return RankResult(rank=rank, problem=error.problem)
    except NoiseMismatchError as error:
        facts = undefined(error)
    except NotSimulatedError as error:
        facts = {REFUSED: str(error)}
    except Exception as error:  # noqa: BLE001 (user code; told as data)
        if _NO_BACKEND not in str(error):
            return RankResult(
                rank=rank, raised=describe(error), dtype=spec.dtype, is_clean=False
            )
        facts = {REFUSED: "the target uses a collective of torch.distributed"}
    return RankResult(
        rank=0,
        dtype=spec.dtype,
        facts=facts,
        seconds=time.perf_counter() - started,
        is_clean=facts.keys().isdisjoint((REFUSED, "noise_undefined")),
    )


def _refuse(told: CollectiveCount | CollectiveEnd) -> None:
    if isinstance(told, CollectiveCount):
        message = f"the target uses a collective of torch.distributed: {told.name}"
        raise NotSimulatedError(message)


class _Reached(BaseException):
    """A rank is at a reduction that has no answer yet."""


@dataclass(slots=True)
class _Once:
    """Passes on new events: rounds repeat earlier events of a step."""

    recorder: ComparingRecorder
    is_first_round: bool = True
    taken: set[tuple[str, int]] = field(default_factory=set)

    def take(self, quantity: str, step: int, named: dict[str, Tensor | None]) -> None:
        """Takes outputs of all ranks in the first round, the rest once."""
        if quantity == "outputs":
            if self.is_first_round:
                self._take_outputs(step, named)
            return
        if (quantity, step) not in self.taken:
            self.taken.add((quantity, step))
            self.recorder.take(quantity, step, named)

    def _take_outputs(self, step: int, named: dict[str, Tensor | None]) -> None:
        """Keeps the worst rank's row of every output: as many as one rank has."""
        known = self.recorder.quantities.pop("outputs", None)
        self.recorder.take("outputs", step, named)
        new = self.recorder.quantities["outputs"]
        if known is None:
            return
        rows = {row.name: row for row in known.tensors}
        for row in new.tensors:
            if row.name not in rows or row.excess > rows[row.name].excess:
                rows[row.name] = row
        merged = compare.quantity(
            list(rows.values()), compared=len(self.recorder.compared["outputs"])
        )
        tops = [q.worst for q in (known, new) if q.worst]
        worst = max(tops, key=lambda row: row.excess, default=None)
        self.recorder.quantities["outputs"] = dataclasses.replace(
            merged,
            worst=worst,
            excess_by_step=(worst.excess,) if worst else (),
        )


class _Simulation:
    """One run."""

    world: World
    wrappers: list[Wrapper]

    def __init__(
        self, context: Context, target: Target, spec: RunSpec, reader: Reader
    ) -> None:
        self.context, self.target, self.spec = context, target, spec
        self.reader = reader
        self.step = self.size = 0
        self.losses: list[float] = []  # of this step, rank 0 first
        self.answers: list[dict[int, Tensor]] = []  # of this step's reductions
        self.answered = 0  # reductions of the current rank
        self.sums: dict[int, Tensor] = {}

    def execute(self, find_unused: bool) -> RankFacts:  # noqa: FBT001
        """Trains all steps; returns the facts of the run."""
        spec = self.spec
        seed = user_code.seed_of_rank(spec, 0)
        model = models.build(self.target, spec, seed=seed)
        self.calls = count_calls(model)
        names = Names(model)
        alike = align_start(self.target, self.reader, names, model, checks=True)
        batches = batches_of(self.target, spec)
        self.size = batch_size(self.target, batches[0])
        user_code.compute(spec)
        isolation.seed_everything(seed)
        wrapped = models.wrap(self.target, spec, model, find_unused=find_unused)
        recorder = ComparingRecorder(
            reader=self.reader,
            rtol=spec.rtol,
            rank=0,
            rows=(0, self.size, self.size),
            floors=dict(spec.floors),
        )
        self.once = _Once(recorder)
        recorder.uncomparable = self._uncomparable
        self.training = Training(
            target=self.target,
            model=wrapped,
            optimizer=models.make_optimizer(self.target, spec, wrapped),
            names=names,
            recorder=self.once,
            spec=spec,
            loss=loss_function(self.target, spec),
            perform=self._perform,
            unfinished=of_trace(self.reader.index)["unfinished"],
        )
        self.optimizers = [self.training.optimizer]
        self.facts: RankFacts = {"rounded_start": alike}
        with self._reducing(), register_optimizer_step_pre_hook(self._before_update):
            self.training.run(self._emitting(batches, recorder))
        self._emit(recorder)
        return {**self.facts, "not_compared": recorder.not_compared}

    def _emitting(
        self, batches: list[Any], recorder: ComparingRecorder
    ) -> Iterator[Any]:
        for step, batch in enumerate(batches):
            if step:
                self._emit(recorder)
            self.step = step
            yield batch

    def _emit(self, recorder: ComparingRecorder) -> None:
        self.context.emit(recorder.finish(self.step, self.training.losses[self.step]))

    def _perform(
        self, train: Callable[[Any], float | None], batch: Any
    ) -> float | None:
        """Trains one step of all ranks; returns the mean of their losses."""
        self.start = StepStart(
            training=self.training,
            wrappers=self.wrappers,
            optimizers=self.optimizers,
            calls=self.calls,
            users_step=self.target.train_step is not None,
        )
        self.answers, self.losses, self.once.is_first_round = [], [], True
        before = fingerprint(self.target) if self.step == 0 else 0
        while not self._reaches_end(0, train, batch):
            for rank in range(1, self.spec.world_size):
                if self._reaches_end(rank, train, batch):
                    message = f"rank {rank} reduces less often than rank 0: DDP hangs"
                    raise RuntimeError(message)
            if self.step == 0 and before != fingerprint(self.target):
                message = "the target's file keeps state of its own, one for each rank"
                raise NotSimulatedError(message)
            self.answers.append(self.sums)
            self.sums, self.once.is_first_round = {}, False
        if self.step + 1 < self.spec.steps:
            self.start.check_own_state()
        if self.target.train_step is not None or not self.losses:
            return None
        return sum(self.losses) / len(self.losses)

    def _reaches_end(
        self, rank: int, train: Callable[[Any], float | None], batch: Any
    ) -> bool:
        """Trains the step as one rank; False if it reaches an open reduction."""
        spec = self.spec
        seed = user_code.seed_of_rank(spec, rank) + self.step * _SEEDS_APART
        self.start.restore(seed=seed if rank else None)
        self.world.rank = rank
        self.answered = 0
        start, rows = tree.shard_range(self.size, rank, spec.world_size)
        self.once.recorder.rows = (start, rows, self.size)
        self.once.recorder.rank = rank
        shard = tree.shard(batch, rank, spec.world_size)
        try:
            with bound(self._noise(start, rows)):
                train(shard)
        except _Reached:
            return False
        return True

    def _noise(self, start: int, rows: int) -> SampleNoise | None:
        if self.spec.noise != "sample":
            return None
        return SampleNoise(
            seed=self.spec.seed,
            step=self.step,
            shapes=of_trace(self.reader.index)["shapes"][self.step],
            start=start,
            size=rows,
            total=self.size,
        )

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        self.start.before_update(optimizer)

    @contextlib.contextmanager
    def _reducing(self) -> Iterator[None]:
        """Reduces after each outermost backward, as DDP's reducer does within it."""
        depth = 0
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def run(tensors: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal depth
            depth += 1
            try:
                backward(tensors, *args, **kwargs)
            finally:
                depth -= 1
            if depth == 0:
                self._note_loss(tensors)
                self._reduce()

        with replaced(torch.autograd, backward=run):
            yield

    def _note_loss(self, tensors: Any) -> None:
        if self.once.is_first_round and isinstance(tensors, Tensor):
            self.losses.append(float(tensors.detach().sum()))

    def _reduce(self) -> None:
        armed = [w for w in self.wrappers if w.is_armed]
        held = {id(p): p for w in armed if w.reduced() for p in w.parameters}
        if not held:
            return
        if self.answered < len(self.answers):
            answer = self.answers[self.answered]
            self.answered += 1
            several = self.target.train_step is not None
            for key, mean in answer.items():
                # Kept for the rounds of later reductions, where there may be any.
                held[key].grad = mean.clone() if several else mean
            return
        for key, parameter in held.items():
            self._add(key, parameter)
        raise _Reached

    def _add(self, key: int, parameter: nn.Parameter) -> None:
        """Adds to the mean: None is zero, and each part is divided first, as in DDP."""
        grad = parameter.grad
        if grad is None:
            return
        share = 1.0 / self.spec.world_size
        known = self.sums.get(key)
        with torch.no_grad():
            if known is None:
                self.sums[key] = grad.detach() * share
            elif grad.is_sparse:
                self.sums[key] = (known + grad.detach() * share).coalesce()
            else:
                known.add_(grad.detach(), alpha=share)

    def _uncomparable(self) -> set[str]:
        """Returns modules that were called another number of times than expected."""
        expected = of_trace(self.reader.index)["calls"]
        found = unlike_calls(
            expected, self.calls, steps=self.spec.steps, done=self.step + 1
        )
        if found:
            self.facts["uncomparable"] = found
        return set(found)
