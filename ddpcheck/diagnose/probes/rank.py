"""The probe of a rank: one step, compared with the reference's trace."""

from __future__ import annotations

import contextlib
import functools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader
from ddpcheck.diagnose.probes import gradients, micro, training
from ddpcheck.diagnose.probes.calls import Calls
from ddpcheck.diagnose.probes.evidence import (
    Cut,
    Direct,
    Micro,
    ModuleCall,
    RankEvidence,
    Span,
    of_trace,
)
from ddpcheck.diagnose.probes.kept import Kept
from ddpcheck.diagnose.probes.modules import versions, versions_of_buffers
from ddpcheck.ranks.worker import Context, describe
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.interventions.collectives import exact
from ddpcheck.run.interventions.rows import gather
from ddpcheck.run.model import averaged, contents, user_code
from ddpcheck.run.model import model as models
from ddpcheck.run.model.averaged import PlainWrapper
from ddpcheck.run.model.names import Names, shortener
from ddpcheck.run.modes.averaged import AVERAGED
from ddpcheck.run.modes.jobs.batches import batches_of, batches_of_rank
from ddpcheck.run.observe import countables, observe
from ddpcheck.run.observe.addends import Constant, constants, divisors
from ddpcheck.run.observe.observe import Observed
from ddpcheck.run.observe.sketches import SIZE, sketch
from ddpcheck.run.process import compiling, isolation
from ddpcheck.run.process.loading import borrowed
from ddpcheck.run.process.replacing import hooked
from ddpcheck.run.record import facts
from ddpcheck.run.spec import CollectiveCount, CollectiveEnd, Defect, RunSpec
from ddpcheck.run.steps import batch_size
from ddpcheck.run.surroundings import bound_noise
from ddpcheck.target.target import Target, TargetRef

# Collectives that reduce element by element, or send nothing.
_REDUCTIONS = {"all_reduce", "all_reduce_coalesced", "barrier", "reduce"}
_TABLE = 2  # dimensions: (samples, features)
_LOSS, _AFTER = "loss", "after backward"
_SAME = 1e-9  # relative; the same operations give the same numbers in any dtype


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
    """Returns the evidence of this rank; an error of user code is in `failed`.

    `feeds_indices`: integer inputs of modules are replaced by the reference's too.
    `trains_before`: the steps before the last one are trained.
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
    except Exception as error:  # noqa: BLE001 (user code under hooks; reported as data)
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
        self.trained_cuts = self.calls.cuts & of_trace(reader.index)["trained"]
        self.trains_before = False

    def run(self, count_names: tuple[str, ...]) -> RankEvidence:
        """Does the step under hooks; if it asks for the process group, twice.

        The group is hidden in the second step: see `_with_group_effects`.
        """
        spec = self.spec
        seed = user_code.seed_of_rank(spec, self.rank)
        model = models.build(self.target, spec, seed=seed, rank=self.rank)
        model = fixes.before_wrap(model, spec.fixes)
        names = Names(model)
        facts.align_start(self.target, self.reader, names, model, checks=False)
        *before, batch = batches_of(self.target, spec)
        batch = micro.alike_padded(self.target, batch)
        order = of_trace(self.reader.index)["order"]
        if order is not None:
            batch = tree.permute(batch, order)
        user_code.compute(spec)
        isolation.seed_everything(seed)
        wrapped = averaged.replace_ddp(models.wrap(self.target, spec, model))
        wrapped = fixes.after_wrap(wrapped, spec.fixes)
        training.begin(self.target, spec, wrapped)
        if self.trains_before and before:
            self._train(training.Trained(wrapped, model, names), before)
        kept = Kept(self.target, wrapped)
        found = self.observed(wrapped, model, batch, count_names)
        if not found.collectives and not self.seen.asks_distributed:
            return found

        def again() -> RankEvidence:
            kept.put_back()
            seen = observe.Observed()
            other = _Probe(self.target, spec, self.reader, self.rank, seen)
            other.calls.feeds_indices = self.calls.feeds_indices
            return other.observed(wrapped, model, batch, count_names)

        return _with_group_effects(found, again)

    def _train(self, trained: training.Trained, batches: list[Any]) -> None:
        """Trains the steps before the probed one, and forgets what was observed."""
        mine = batches_of_rank(batches, self.spec.but(mode=AVERAGED.name), self.rank)
        size = batch_size(self.target, batches[0])
        rows = (*tree.shard_range(size, self.rank, self.spec.world_size), size)
        training.train_before(self.target, self.spec, trained, mine, rows)
        self.seen.collectives.clear()
        self.seen.passed = 0
        self.seen.events.clear()

    def _note_loss(self, written: _Written, loss: Tensor) -> None:
        written.before_backward()
        compared = self.calls.leaves, self.reader, self.addends
        self.addends = gradients.of_addends(loss, *compared)
        self.constants += constants(loss)

    def observed(
        self,
        wrapped: nn.Module,
        model: nn.Module,
        batch: Any,
        count_names: tuple[str, ...],
    ) -> RankEvidence:
        """Returns the evidence of one step, on a model in its initial state."""
        spec = self.spec
        size = batch_size(self.target, batch)
        start, rows = tree.shard_range(size, self.rank, spec.world_size)
        calls, moving = self.calls, _Collectives(self.seen, rows)
        cursor = micro.Cursor(calls.windows, start, rows, size)
        isolation.seed_everything(user_code.seed_of_rank(spec, self.rank))
        shard = tree.shard(batch, self.rank, spec.world_size)
        targets = countables.targets_of(self.target, shard)
        calls.watch(wrapped, model, cursor)
        try:
            with (
                _writing(wrapped) as written,
                _noting_calls_past(wrapped, self.seen.events.append) as past_wrapper,
                fixes.around_training(spec.fixes, lambda: targets, lambda: model),
                bound_noise(spec, size, start, rows) as calls.noise,
                calls.drawn,
                calls.attached.noting() if calls.attached else nullcontext(),
            ):
                note = functools.partial(self._note_loss, written)
                given = self.target, spec, wrapped, shard, note
                done = training.step(*given, puts_aside=not calls.attached)
        finally:
            calls.hooks.remove()
        return RankEvidence(
            rank=self.rank,
            shard=_checksum(shard),
            modules=tuple(calls.modules),
            cuts=self._cuts(done.factor),
            span=self._span(wrapped),
            written=tuple(sorted(written.buffers)),
            written_parameters=dict(sorted(written.parameters.items())),
            written_by_backward=tuple(sorted(written.by_backward)),
            events="".join(self.seen.events),
            past_wrapper=tuple(sorted(past_wrapper)),
            is_redirected=calls.hooks.is_redirected,
            direct=tuple(gradients.past_cuts(wrapped, self.reader)),
            loss=done.loss,
            divides_by_all=self._constant(batch),
            after_backward=done.factor,
            of_sum=done.of_sum,
            addends=self.addends if self.addends and done.factor == 1 else (),
            collectives=self.seen.exchanges,
            moves_rows=moving.moves_rows,
            counts={n: countables.count(n, targets) for n in count_names},
            rng=calls.rng,
            held_rng=calls.held_rng,
            draws=calls.drawn.count,
            own_seeds=frozenset(calls.drawn.seeds),
            micros=_micros(cursor, shard, targets, count_names),
        )

    def _span(self, wrapped: nn.Module) -> Span | None:
        """Returns the span if cuts are attached or none is trained: on all ranks."""
        if self.trained_cuts and not self.calls.attached:
            return None
        quantity = "every" if self.calls.attached else "direct"
        return _span(wrapped, self.reader, quantity)

    def _constant(self, batch: Any) -> int | None:
        """Returns the divisor of the loss if it is a count over the global batch."""
        totals = countables.totals(countables.targets_of(self.target, batch))
        every = set(divisors(self.constants))
        return max((n for n in totals if n in every), default=None)

    def _cuts(self, factor: float) -> tuple[Cut, ...]:
        """Returns the trained cuts; the step has multiplied gradients by `factor`."""
        leaves = [leaf for leaf in self.calls.leaves if leaf.key in self.trained_cuts]
        found = gradients.at_cuts(
            leaves, self.calls.recorded_at, self.reader, self.spec.world_size, factor
        )
        return tuple(found)


def _micros(
    cursor: micro.Cursor, shard: Any, targets: Any, names: tuple[str, ...]
) -> tuple[Micro, ...]:
    if cursor.windows.deal > 1:
        return micro.described_apart(shard, cursor.sizes, names, cursor.starts)
    start = cursor.starts[0] if cursor.starts else 0
    return micro.described(cursor.sizes, start, targets, names)


def _checksum(shard: Any) -> int:
    found = 0
    for tensor in tree.held(shard):
        if tensor.layout == torch.strided:
            own = tensor.detach().reshape(-1).contiguous().cpu()
            found = zlib.crc32(own.view(torch.uint8).numpy().data, found)
    return found


class _Collectives:
    """Observes whether the collectives of a step move rows between ranks."""

    def __init__(self, seen: Observed, rows: int) -> None:
        self._seen, self._rows = seen, rows
        self._adds = False
        seen.on_collective = self._note

    @property
    def moves_rows(self) -> bool:
        """Whether a collective does more than reduce, or reduces rows of samples."""
        moves = bool(set(self._seen.collectives) - _REDUCTIONS)
        return moves or self._adds or self._seen.passed > 0

    def _note(self, event: CollectiveCount | CollectiveEnd) -> None:
        if not isinstance(event, CollectiveCount) or "B" in self._seen.events:
            return  # after a backward, collectives are of gradients
        shape = event.shape or ()
        is_of_rows = len(shape) >= _TABLE and shape[0] == self._rows > 1
        self._adds |= is_of_rows and event.name in _REDUCTIONS


@contextlib.contextmanager
def _noting_calls_past(
    wrapped: nn.Module, note: Callable[[str], None]
) -> Iterator[set[str]]:
    """Adds the modules that are called past their wrapper to the yielded set.

    DDP reduces the gradients of the backward after its own forward. If a step calls the
    wrapper once and a module inside another time, the second backward stays local.
    `note` is called with "F" for a wrapper's forward, and "P" for a call past the
    wrapper, if gradients are enabled.
    """
    found: set[str] = set()
    depth, handles, short = 0, [], shortener(wrapped)

    def watch(module: nn.Module, event: str, name: str) -> None:
        def enter(*_: Any) -> None:
            nonlocal depth
            depth += 1
            if depth == 1 and torch.is_grad_enabled():
                note(event)
                if event == "P":
                    found.add(name)

        def leave(*_: Any) -> None:
            nonlocal depth
            depth -= 1

        handles.append(nn.Module.register_forward_pre_hook(module, enter))
        handles.append(nn.Module.register_forward_hook(module, leave, always_call=True))

    paths = {id(m): short(path) for path, m in contents.named_modules(wrapped)}
    for wrapper in [m for m in contents.modules(wrapped) if type(m) is PlainWrapper]:
        watch(wrapper, "F", "")
        for module in contents.modules(wrapper.module):
            if any(p.requires_grad for p in contents.parameters(module)):
                watch(module, "P", paths[id(module)])
    with hooked(*handles):
        yield found


def _span(model: nn.Module, reader: Reader, quantity: str) -> Span | None:
    """Returns the single-process gradient as a combination of the ranks' gradients.

    If the loss divides by a count, or a weight, of each shard, then g = sum_r c_r g_r
    with a factor c_r per rank. A loss that relates samples, or that has several terms
    with divisors of their own, has no such factors.

    Gradients are compared by sketches: sums of their numbers with random signs. None if
    there are as many ranks as sums, or as numbers, or if there is no gradient.

    This calls a collective: all ranks call it, or none. `quantity`: the name of the
    single-process gradients in the trace.
    """
    world_size = dist.get_world_size()
    mine = torch.zeros(SIZE, dtype=torch.float64)
    reference = torch.zeros_like(mine)
    known, short = reader.names(quantity, 0), shortener(model)
    for number, (path, parameter) in enumerate(contents.named_parameters(model)):
        name = short(path)
        right = reader.get(quantity, 0, name) if name in known else None
        if right is None:
            continue
        signs = torch.Generator()
        reference += sketch(right, signs.manual_seed(number))
        if parameter.grad is not None:
            mine += sketch(parameter.grad.to_dense(), signs.manual_seed(number))
    every = [torch.zeros_like(mine) for _ in range(world_size)]
    dist.all_gather(every, mine)
    size = float(reference.norm())
    numbers = sum(p.numel() for p in contents.parameters(model))
    if world_size >= min(SIZE, numbers) or not size:
        return None  # so many gradients always combine to so few numbers
    ranks = torch.stack(every, 1)
    weights = torch.linalg.lstsq(ranks, reference[:, None]).solution
    left = float((ranks @ weights - reference[:, None]).norm()) / size
    return Span(residual=left, weights=tuple(weights[:, 0].tolist()))


@dataclass(frozen=True, slots=True)
class _Written:
    """The modules whose own buffers, or own parameters, are written in forward.

    `parameters`: the sums that are left of them; ranks that write equal parameters have
    equal sums. `by_backward`: the modules whose parameters have changed when a backward
    begins, by forward or by the step.
    """

    model: nn.Module
    begun: dict[str, list[float]]  # sums of parameters when the step began
    buffers: set[str] = field(default_factory=set)
    parameters: dict[str, tuple[float, ...]] = field(default_factory=dict)
    by_backward: set[str] = field(default_factory=set)

    def before_backward(self) -> None:
        """Compares the parameters with those at the beginning of the step."""
        now = _parameters(self.model)
        self.by_backward.update(n for n in now if self.begun.get(n) != now[n])


@contextlib.contextmanager
def _writing(wrapped: nn.Module) -> Iterator[_Written]:
    """Yields a record of what the model's forward writes, also outside module calls.

    A regulariser with an `update` method runs no hooks, yet its buffers are written in
    the model's forward. A model may normalise the rows of an embedding before calling
    the embedding.
    """
    short = shortener(wrapped)
    whole = [m for path, m in contents.named_modules(wrapped) if not short(path)]
    model, before, weights = whole[-1], {}, {}
    found = _Written(model, _parameters(model))

    def enter(*_: Any) -> None:
        before.update(_buffers(model))
        weights.update(_parameters(model))

    def leave(*_: Any) -> None:
        now = _buffers(model)
        found.buffers.update(name for name in now if before.get(name) != now[name])
        found.parameters.update(
            (name, tuple(sums))
            for name, sums in _parameters(model).items()
            if weights.get(name) != sums
        )

    with (
        nn.Module.register_forward_pre_hook(model, enter),
        nn.Module.register_forward_hook(model, leave),
    ):
        yield found


def _buffers(model: nn.Module) -> dict[str, list[tuple[int, float]]]:
    short = shortener(model)
    return {
        short(path): found
        for path, module in contents.named_modules(model)
        if (found := versions_of_buffers(module))
    }


def _parameters(model: nn.Module) -> dict[str, list[float]]:
    short = shortener(model)
    return {
        short(path): versions(module)[1]
        for path, module in contents.named_modules(model)
    }


def _with_group_effects(
    found: RankEvidence, again: Callable[[], RankEvidence]
) -> RankEvidence:
    """Returns the evidence with what changes if the process group is hidden.

    These are `asks_others`, `group_factor` and `addend_factors`: a collective may also
    be called for a log, a bound or a clock, and leave the loss as it is. A module whose
    output is as wrong without the group communicates only for its state, and counts as
    one that calls no collective. `again` does the same step from the same beginning.
    """
    try:
        alone = gather.alone(again)
    except Exception:  # noqa: BLE001 (a program that needs its group: it may ask)
        return found
    factors = tuple(map(_group_factor, found.addends, alone.addends))
    return replace(
        found,
        modules=tuple(_without_idle_calls(found.modules, alone.modules)),
        asks_others=_asks_others(found, alone),
        group_factor=_group_factor(found.cuts, alone.cuts),
        addend_factors=factors if len(factors) == len(found.addends) else (),
    )


def _without_idle_calls(
    calls: tuple[ModuleCall, ...], alone: tuple[ModuleCall, ...]
) -> Iterator[ModuleCall]:
    known = {(m.name, m.call): m.rel_diff for m in alone}
    idle: list[ModuleCall] = []
    for m in calls:  # a call comes after the calls inside
        without = known.get((m.name, m.call))
        inside = sum(i.collectives for i in idle if i.name.startswith(f"{m.name}."))
        own = replace(m, collectives=max(0, m.collectives - inside))
        is_wrong = m.collectives and m.rel_diff and without is not None
        if not (is_wrong and _is_close(m.rel_diff or 0.0, without or 0.0)):
            yield own
            continue
        idle.append(own)
        normalises = m.normalises or (m.writes_buffers and m.is_scale_invariant)
        yield replace(m, collectives=0, normalises=normalises)


def _asks_others(found: RankEvidence, alone: RankEvidence) -> tuple[str, ...]:
    """Returns which results change when the process group is hidden.

    A loss that is scaled up before backward, and its gradients down after backward, is
    the same loss. If the loss is the same but the gradients are not, the step itself
    multiplies the gradients after backward.
    """
    if _are_close(_numbers(found, 1.0), _numbers(alone, 1.0)):
        return ()
    ours, theirs = found.after_backward or 1.0, alone.after_backward or 1.0
    if _are_close(_numbers(found, 1 / ours), _numbers(alone, 1 / theirs)):
        return (_AFTER,)
    return _LOSS, _AFTER


def _group_factor(found: Sequence[Cut], alone: Sequence[Cut]) -> float | None:
    """Returns the single factor by which the group changes all gradients, or None."""
    pairs = [
        (cut.ratio, other.ratio)
        for cut, other in zip(found, alone, strict=False)
        if cut.key == other.key
        and other.ratio
        and _is_close(cut.residual, other.residual)
    ]
    if not pairs or len(found) != len(alone):
        return None
    factors = [mine / theirs for mine, theirs in pairs]
    is_one = all(_is_close(factor, factors[0]) for factor in factors)
    return factors[0] if is_one and math.isfinite(factors[0]) else None


def _numbers(found: RankEvidence, factor: float) -> list[tuple[str, float]]:
    """Returns the loss, times `factor` and `after_backward`, and the fits of gradients.

    Gradients already contain `after_backward`; their ratios are multiplied by `factor`.
    """
    loss = (found.loss or 0.0) * found.after_backward
    numbers = [("loss", loss * factor)]
    named: list[tuple[str, Cut | Direct]] = [
        *((f"{cut.key} {cut.micro}", cut) for cut in found.cuts),
        *((direct.name, direct) for direct in found.direct),
    ]
    for name, one in named:
        numbers += [(name, one.ratio * factor), (name, one.residual)]
    return numbers


def _are_close(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> bool:
    return len(ours) == len(theirs) and all(
        name == other and _is_close(value, known)
        for (name, value), (other, known) in zip(ours, theirs, strict=True)
    )


def _is_close(value: float, other: float) -> bool:
    if not (math.isfinite(value) and math.isfinite(other)):
        return repr(value) == repr(other)
    return abs(value - other) <= _SAME * max(1.0, abs(value), abs(other))
