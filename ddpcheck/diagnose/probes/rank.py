"""A rank's side of the probe: every module, and the loss, against the reference's."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader
from ddpcheck.diagnose.probes import (
    addends,
    earlier,
    gradients,
    micro,
    past,
    span,
    training,
)
from ddpcheck.diagnose.probes.calls import Calls
from ddpcheck.diagnose.probes.evidence import (
    Cut,
    RankEvidence,
    Span,
)
from ddpcheck.diagnose.probes.group import with_what_others_say
from ddpcheck.diagnose.probes.kept import Kept
from ddpcheck.diagnose.probes.moving import Moving
from ddpcheck.diagnose.probes.teacher import restore, snapshot
from ddpcheck.diagnose.probes.written import writing
from ddpcheck.ranks.worker import Context, describe
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.interventions import exact
from ddpcheck.run.model import averaged, user_code
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names
from ddpcheck.run.modes import shards
from ddpcheck.run.modes.averaged import AVERAGED
from ddpcheck.run.modes.batches import batches_of
from ddpcheck.run.observe import countables, observe
from ddpcheck.run.observe.addends import Constant, constants, divisors
from ddpcheck.run.process import compiling, isolation
from ddpcheck.run.process.loading import borrowed
from ddpcheck.run.record import facts
from ddpcheck.run.spec import Defect, RunSpec
from ddpcheck.run.steps import batch_size
from ddpcheck.run.surroundings import bound_noise
from ddpcheck.target.target import Target, TargetRef


def judge(
    context: Context,
    *,
    ref: TargetRef,
    spec: RunSpec,
    trace: str,
    count_names: tuple[str, ...] = (),
    feeds_indices: bool = True,
    trains_before: bool = False,
) -> RankEvidence:
    """Returns what this rank found; what user code raises is in `failed`.

    `feeds_indices`: whole numbers that modules are called with are the reference's too.
    `trains_before`: the steps before the last are trained.
    """
    rank = context.seat.rank
    try:
        defects: list[Defect] = []
        with (
            borrowed(ref) as target,
            isolation.isolated(),
            compiling.off(),
            exact.judged(defects),
            observe.observing() as seen,
        ):
            probe = _Probe(target, spec, Reader(Path(trace)), rank, seen)
            probe.calls.feeds_indices = feeds_indices
            probe.trains_before = trains_before
            found = probe.run(count_names)
            ddp = [w.module for w in seen.wrapped]
            defects += exact.judge_reducers(ddp, context.seat.device)
            return replace(found, defects=tuple(defects))
    except Exception as error:  # noqa: BLE001 (user code under hooks; told as data)
        return RankEvidence(rank=rank, failed=describe(error).stack)


class _Probe:
    def __init__(
        self,
        target: Target,
        spec: RunSpec,
        reader: Reader,
        rank: int,
        seen: observe.Observed,
    ) -> None:
        self.target, self.spec, self.reader = target, spec, reader
        self.rank, self.seen = rank, seen
        self.calls = Calls(reader, seen)
        self.addends: tuple[tuple[Cut, ...], ...] | None = None  # until a backward
        self.constants: list[Constant] = []
        self.trained_cuts = self.calls.cuts & reader.index.facts["trained"]
        self.trains_before = False

    def run(self, count_names: tuple[str, ...]) -> RankEvidence:
        """Trains one step under hooks; returns what this rank found.

        Where it asked for the group, once more without one: a collective that is called
        for a log leaves the loss as it is.
        """
        spec = self.spec
        seed = user_code.seed_of_rank(spec, self.rank)
        model = models.build(self.target, spec, seed=seed, rank=self.rank)
        model = fixes.before_wrap(model, spec.fixes)
        names = Names(model)
        facts.align_start(self.target, self.reader, names, model, checks=False)
        *before, batch = batches_of(self.target, spec)
        batch = micro.alike_padded(self.target, batch)
        order = self.reader.index.facts["order"]
        if order is not None:
            batch = tree.permute(batch, order)
        user_code.compute(spec)
        isolation.seed_everything(seed)
        wrapped = averaged.replace_ddp(models.wrap(self.target, spec, model))
        wrapped = fixes.after_wrap(wrapped, spec.fixes)
        if self.trains_before and before:
            self._train(earlier.Trained(wrapped, model, names), before)
        start, kept = snapshot(wrapped), Kept(self.target, wrapped)
        found = self.observed(wrapped, model, batch, count_names)
        if not found.collectives and not self.seen.asks_distributed:
            return found

        def again() -> RankEvidence:
            restore(start, wrapped)
            kept.put_back()
            seen = observe.Observed()
            other = _Probe(self.target, spec, self.reader, self.rank, seen)
            other.calls.feeds_indices = self.calls.feeds_indices
            return other.observed(wrapped, model, batch, count_names)

        return with_what_others_say(found, again)

    def _train(self, trained: earlier.Trained, batches: list[Any]) -> None:
        """Trains the steps before; nothing is told of them."""
        mine = shards.of_rank(batches, self.spec.but(mode=AVERAGED.name), self.rank)
        size = batch_size(self.target, batches[0])
        rows = (*tree.shard_range(size, self.rank, self.spec.world_size), size)
        earlier.train(self.target, self.spec, trained, mine, rows)
        self.seen.collectives.clear()
        self.seen.passed = 0
        self.seen.events.clear()

    def observed(
        self,
        wrapped: nn.Module,
        model: nn.Module,
        batch: Any,
        count_names: tuple[str, ...],
    ) -> RankEvidence:
        """Returns what one step shows, on a model that stands at the beginning."""
        spec = self.spec
        size = batch_size(self.target, batch)
        start, rows = tree.shard_range(size, self.rank, spec.world_size)
        calls, moving = self.calls, Moving(self.seen, rows)
        cursor = micro.Cursor(calls.windows, start, rows, size)
        isolation.seed_everything(user_code.seed_of_rank(spec, self.rank))
        shard = tree.shard(batch, self.rank, spec.world_size)
        targets = countables.targets_of(self.target, shard)
        calls.watch(wrapped, model, cursor)
        try:
            with (
                writing(wrapped) as written,
                past.noting(wrapped, self.seen.events.append) as past_wrapper,
                fixes.around_training(spec.fixes, lambda: targets, lambda: model),
                bound_noise(spec, size, start, rows) as calls.noise,
                calls.drawn,
                calls.attached.noting() if calls.attached else nullcontext(),
            ):

                def note(loss: Tensor) -> None:
                    written.before_backward()
                    self._note_addends(loss)
                    self.constants += constants(loss)

                given = self.target, spec, wrapped, shard, note
                done = training.step(*given, puts_aside=not calls.attached)
        finally:
            calls.hooks.remove()
        return RankEvidence(
            rank=self.rank,
            modules=tuple(calls.modules),
            cuts=self._cuts(done.factor),
            span=self._span(wrapped),
            written=tuple(sorted(written.buffers)),
            written_parameters=dict(sorted(written.parameters.items())),
            written_by_backward=tuple(sorted(written.by_backward)),
            events="".join(self.seen.events),
            past_wrapper=tuple(sorted(past_wrapper)),
            direct=tuple(gradients.past_cuts(wrapped, self.reader)),
            loss=done.loss,
            divides_by_all=self._constant(batch),
            after_backward=done.factor,
            addends=self.addends if self.addends and done.factor == 1 else (),
            collectives=self.seen.exchanges,
            moves_rows=moving.moves_rows,
            counts={n: countables.count(n, targets) for n in count_names},
            rng=calls.rng,
            held_rng=calls.held_rng,
            draws=calls.drawn.count,
            own_seeds=frozenset(calls.drawn.seeds),
            micros=micro.described(tuple(cursor.sizes), start, targets, count_names),
        )

    def _span(self, wrapped: nn.Module) -> Span | None:
        """Returns it where cuts may not tell: all ranks ask, or none."""
        if self.calls.attached:
            return span.fitted(wrapped, self.reader, "every")
        if self.trained_cuts:
            return None
        return span.fitted(wrapped, self.reader, "direct")

    def _note_addends(self, loss: Tensor) -> None:
        found = self.calls.leaves, self.reader, self.addends
        self.addends = addends.of_rank(loss, *found)

    def _constant(self, batch: Any) -> int | None:
        """Returns what the loss is divided by, where it is a count of all samples."""
        totals = countables.totals(countables.targets_of(self.target, batch))
        every = set(divisors(self.constants))
        return max((n for n in totals if n in every), default=None)

    def _cuts(self, factor: float) -> tuple[Cut, ...]:
        """Returns the cuts; the step has multiplied gradients by `factor`."""
        leaves = [leaf for leaf in self.calls.leaves if leaf.key in self.trained_cuts]
        found = gradients.at_cuts(
            leaves, self.calls.recorded_at, self.reader, self.spec.world_size, factor
        )
        return tuple(found)
