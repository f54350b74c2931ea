"""A rank's side of the probe: every module, and the loss, against the reference's."""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck import tree
from ddpcheck.diagnose.probes import (
    addends,
    earlier,
    gradients,
    micro,
    modules,
    past,
    span,
    training,
    with_buffers,
)
from ddpcheck.diagnose.probes.attached import Attached
from ddpcheck.diagnose.probes.evidence import (
    Cut,
    ModuleCall,
    RankEvidence,
    Span,
)
from ddpcheck.diagnose.probes.group import with_what_others_say
from ddpcheck.diagnose.probes.kept import Kept
from ddpcheck.diagnose.probes.teacher import (
    Hooks,
    Leaf,
    closest,
    distance,
    has_fractions,
    is_renumbered,
    is_term,
    keeps_shape,
    key_of,
    leaf_of,
    pairs,
    restore,
    snapshot,
)
from ddpcheck.diagnose.probes.written import writing
from ddpcheck.ranks.worker import Context, describe
from ddpcheck.run import averaged, batch_norm, private, shards
from ddpcheck.run import model as models
from ddpcheck.run.batches import batches_of
from ddpcheck.run.fixes import apply as fixes
from ddpcheck.run.fixes import exact
from ddpcheck.run.names import Names
from ddpcheck.run.noise import DrawCounter
from ddpcheck.run.process import isolation
from ddpcheck.run.process.loading import borrowed
from ddpcheck.run.spec import Defect, RunSpec
from ddpcheck.run.steps import batch_size
from ddpcheck.run.surroundings import bound_noise, set_default_dtype
from ddpcheck.run.watch import countables, generators, observe
from ddpcheck.target import Target, TargetRef
from ddpcheck.trace import Reader

_REDUCTIONS = {"all_reduce", "all_reduce_coalesced", "barrier", "reduce"}


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
            exact.judged(defects),
            observe.observing() as seen,
        ):
            probe = _Probe(target, spec, Reader(Path(trace)), rank, seen)
            probe.feeds_indices = feeds_indices
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
        self.modules: list[ModuleCall] = []
        self.leaves: list[Leaf] = []
        self.addends: tuple[tuple[Cut, ...], ...] | None = None  # until a backward
        self.cuts = set(reader.index.facts["cuts"])
        self.data: set[str] = reader.index.facts["data"]
        self.inside: set[str] = reader.index.facts["on_the_way"]
        self.attached = Attached() if reader.index.facts["attached"] else None
        self.trained_cuts = self.cuts & reader.index.facts["trained"]
        self.windows: micro.Windows = reader.index.facts["windows"]
        self.hooks = Hooks(calls_per_micro=self.windows.calls)
        self.inputs: dict[str, float] = {}
        self.before: dict[str, tuple[int, list[tuple[int, float]], list[float]]] = {}
        self.calls: dict[str, Any] = {}
        self.callers: dict[str, tuple[str, str]] = {}
        self.open: list[tuple[str, str]] = []
        self.silent: dict[str, list[nn.Module]] = {}
        self.feeds_indices = True
        self.trains_before = False
        self.rng = 0  # of the state of torch's generator when the forward begins
        self.held_rng = 0  # of the states of numpy's and Python's that the target holds
        self.rows_first = True  # of the module call that ended last

    def run(self, count_names: tuple[str, ...]) -> RankEvidence:
        """Trains one step under hooks; returns what this rank found.

        Where it asked for the group, once more without one: a collective that is called
        for a log leaves the loss as it is.
        """
        torch.set_default_dtype(torch.float32)
        spec = self.spec
        model = models.build(
            self.target, spec, seed=spec.seed + 1 + self.rank, rank=self.rank
        )
        model = fixes.before_wrap(model, spec.fixes)
        names = Names(model)
        *before, batch = batches_of(self.target, spec)
        order = self.reader.index.facts["order"]
        if order is not None:
            batch = tree.permute(batch, order)
        set_default_dtype(spec)
        isolation.seed_everything(spec.seed + 1 + self.rank)
        wrapped = averaged.replace_ddp(
            models.wrap(self.target, model, find_unused=False)
        )
        wrapped = fixes.after_wrap(wrapped, spec.fixes)
        if self.trains_before:
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
            other.feeds_indices = self.feeds_indices
            return other.observed(wrapped, model, batch, count_names)

        return with_what_others_say(found, again)

    def _train(self, trained: earlier.Trained, batches: list[Any]) -> None:
        """Trains the steps before; nothing is told of them."""
        mine = shards.of_rank(batches, self.spec.but(mode="averaged"), self.rank)
        size = batch_size(self.target, batches[0])
        rows = (*tree.shard_range(size, self.rank, self.spec.world_size), size)
        earlier.train(self.target, self.spec, trained, mine, rows)
        self.seen.collectives.clear()
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
        self.cursor = micro.Cursor(self.windows, start, rows, size)
        isolation.seed_everything(spec.seed + 1 + self.rank)
        shard = tree.shard(batch, self.rank, spec.world_size)
        targets = countables.targets_of(self.target, shard)
        called = {key.partition("#")[0] for key in self.reader.names("inputs", 0)}
        self.silent = modules.silent_parts(wrapped, called)
        self.model = model
        hooks = self.hooks
        hooks.attach(wrapped, self._before, self._after)
        drawn = DrawCounter()
        try:
            with (
                writing(wrapped) as written,
                past.noting(wrapped, self.seen.events.append) as past_wrapper,
                fixes.around_training(
                    spec.fixes,
                    lambda: countables.targets_of(self.target, shard),
                    lambda: model,
                ),
                bound_noise(spec, size, start, rows),
                drawn,
                self.attached.noting() if self.attached else nullcontext(),
            ):

                def note(loss: Tensor) -> None:
                    written.before_backward()
                    self._note_addends(loss)

                done = training.step(self.target, spec, wrapped, shard, note)
        finally:
            hooks.remove()
        return RankEvidence(
            rank=self.rank,
            modules=tuple(self.modules),
            cuts=self._cuts(done.factor),
            span=self._span(wrapped),
            written=tuple(sorted(written.buffers)),
            written_parameters=dict(sorted(written.parameters.items())),
            written_by_backward=tuple(sorted(written.by_backward)),
            events="".join(self.seen.events),
            past_wrapper=tuple(sorted(past_wrapper)),
            direct=tuple(gradients.past_cuts(wrapped, self.reader)),
            loss=done.loss,
            after_backward=done.factor,
            addends=self.addends if self.addends and done.factor == 1 else (),
            collectives=len(self.seen.collectives),
            moves_rows=bool(set(self.seen.collectives) - _REDUCTIONS),
            counts={n: countables.count(n, targets) for n in count_names},
            rng=self.rng,
            held_rng=self.held_rng,
            draws=drawn.count,
            micros=micro.described(
                tuple(self.cursor.sizes), start, targets, count_names
            ),
        )

    def _span(self, wrapped: nn.Module) -> Span | None:
        """Returns it where cuts may not tell: all ranks ask, or none."""
        if self.attached:
            return span.fitted(wrapped, self.reader, "every")
        if self.trained_cuts:
            return None
        return span.fitted(wrapped, self.reader, "direct")

    def _note_addends(self, loss: Tensor) -> None:
        own = [leaf for leaf in self.leaves if not leaf.module]
        is_first = self.addends is None
        self.addends = addends.of_rank(loss, own, self.reader) if is_first else ()

    def _cuts(self, factor: float) -> tuple[Cut, ...]:
        """Returns the cuts; the step has multiplied gradients by `factor`."""
        leaves = [leaf for leaf in self.leaves if leaf.key in self.trained_cuts]
        found = gradients.at_cuts(
            leaves, self._recorded_at, self.reader, self.spec.world_size, factor
        )
        return tuple(found)

    def _before(
        self, name: str, call: int, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        if not self.rng:
            self.rng = zlib.crc32(torch.get_rng_state().numpy().tobytes())
            self.held_rng = generators.states(self.model)
        if not name and not call:
            self.cursor.enter(args, kwargs, self._recorded)
        worst = 0.0

        def take(path: str, actual: Tensor) -> Tensor:
            nonlocal worst
            if not (self.feeds_indices or has_fractions(actual)):
                return actual
            key = key_of(name, call, path or "output")
            reference = self._recorded("inputs", key, actual)
            if reference is None or reference.dtype != actual.dtype:
                return actual
            rows, diff = closest(actual, reference, self.cursor.rows)
            if rows is None:
                return actual
            value = rows(reference)
            if is_renumbered(actual, value):
                return actual
            worst = max(worst, diff)
            if not actual.requires_grad:
                return value.clone()
            # The value is the reference's, the graph stays the rank's own.
            return actual + (value - actual.detach())

        new = tree.replace((args, kwargs), take)
        key = f"{name}#{call}"
        self.inputs[key] = worst
        told = modules.versions(module, self.silent.get(name, ()))
        self.before[key] = (len(self.seen.collectives), *told)
        self.calls[key] = new
        self.callers[key] = self.open[-1] if self.open else ("", "")
        self.open.append((name, type(module).__name__))
        return new

    def _after(self, name: str, call: int, module: nn.Module, output: Any) -> Any:
        worst: float | None = None
        numbers: list[tuple[float, float]] = []
        self.rows_first = True

        def take(path: str, actual: Tensor) -> Tensor:
            nonlocal worst
            key = key_of(name, call, path or "output")
            reference = self._recorded("outputs", key, actual)
            if reference is None:
                return actual
            if actual.shape[1:] != reference.shape[1:]:
                self.rows_first = False
            is_number = not actual.dim()
            rows, diff = closest(actual, reference, self.cursor.rows)
            if rows is None or is_number:
                if is_term(actual, reference) and (is_number or key not in self.inside):
                    numbers.extend(pairs(actual, reference))
                elif reference.shape == actual.shape and not is_number:
                    # No samples in it: the same on every rank or a shared quantity.
                    worst = max(worst or 0.0, distance(actual, reference))
                return actual
            if is_renumbered(actual, rows(reference)):
                diff = 0.0
            worst = max(worst or 0.0, diff)
            is_given = key in self.cuts or key in self.data
            if not is_given or not actual.is_floating_point():
                return actual
            given = rows(reference).to(actual.dtype).clone()
            if key in self.data:
                return actual if self.attached else given
            leaf = leaf_of(given)
            number = self.hooks.micro
            self.leaves.append(
                Leaf(key=key, module=name, micro=number, tensor=leaf, rows=rows)
            )
            return (
                self.attached.through(actual, leaf) if self.attached else leaf.clone()
            )

        new = tree.replace(output, take)
        keeps = keeps_shape(self.calls[f"{name}#{call}"], output)
        self._note(name, call, module, worst, numbers=tuple(numbers), keeps=keeps)
        return new

    def _note(
        self,
        name: str,
        call: int,
        module: nn.Module,
        rel_diff: float | None,
        *,
        numbers: tuple[tuple[float, float], ...],
        keeps: bool,
    ) -> None:
        key = f"{name}#{call}"
        collectives, buffers, parameters = self.before[key]
        args, kwargs = self.calls.pop(key)
        self.open.pop()
        caller, caller_kind = self.callers.pop(key)
        now = modules.versions(module, self.silent.get(name, ()))
        writes = now[0] != buffers
        called = len(self.seen.collectives) - collectives
        is_norm = isinstance(module, private.BATCH_NORMS)
        synchronized = is_norm and batch_norm.is_synchronized(module)
        with self.hooks.paused():
            invariant = bool(writes or called) and modules.is_scale_invariant(
                module, args, kwargs
            )
            # The slope only where it costs no collective: each is judged.
            normalises = is_norm or (
                writes
                and not called
                and modules.is_norm_like(module, args, kwargs, is_invariant=invariant)
            )
            # Not where it calls others, who may not ask: they are right.
            this = with_buffers.Call(key, module, args, kwargs, writes=writes)
            is_right = (bool(rel_diff) and not called) and with_buffers.is_right(
                this, self._recorded, self.cursor.rows
            )
        # Those that were called only to see what it does are not its caller's.
        del self.seen.collectives[collectives + called :]
        self.modules.append(
            ModuleCall(
                name=name,
                kind="SyncBatchNorm" if synchronized else type(module).__name__,
                call=call,
                rel_diff=rel_diff,
                caller=caller,
                caller_kind=caller_kind,
                input_diff=self.inputs[key],
                rows_first=self.rows_first,
                numbers=numbers,
                keeps_shape=keeps,
                collectives=called,
                writes_buffers=writes,
                through_buffers=is_right,
                writes_parameters=now[1] != parameters,
                scales_by_frequency=bool(getattr(module, "scale_grad_by_freq", False)),
                is_batch_norm=is_norm,
                is_synchronized=synchronized,
                is_scale_invariant=invariant,
                normalises=normalises,
            )
        )

    def _recorded(self, quantity: str, key: str, actual: Tensor) -> Tensor | None:
        shape, rows = tuple(actual.shape), self.cursor.rows[1]
        return micro.recorded(self.reader, self.windows, quantity, key, shape, rows)

    def _recorded_at(self, quantity: str, leaf: Leaf) -> Tensor | None:
        shape, rows = tuple(leaf.tensor.shape), self.cursor.rows_in(leaf.micro)
        return micro.recorded(
            self.reader, self.windows, quantity, leaf.key, shape, rows
        )
