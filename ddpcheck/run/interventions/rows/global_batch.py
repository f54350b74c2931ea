"""Modules and losses computed on the rows of all ranks: the global batch."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, MutableMapping
from contextvars import ContextVar
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.compare import tree
from ddpcheck.run import private
from ddpcheck.run.intervention import GlobalLoss, GlobalLossOfOutputs, Output
from ddpcheck.run.interventions.rows.gather import (
    all_in_sight,
    alone,
    alone_with_backward,
    gathered,
    hide_ranks,
    mean_over_ranks,
    own_live,
    rows_of_ranks,
    show_ranks,
)
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener

_sees_all: ContextVar[bool] = ContextVar("sees_all", default=False)


def see_all_rows(module: nn.Module, *, hides: bool) -> None:
    """Makes a module compute on the rows of all ranks and return this rank's.

    Also if its forward is replaced later: Lightning puts training_step in its place for
    a call of the wrapper.
    """
    module.forward = _of_all_ranks(module, _with_its_hooks(module), hides=hides)
    with contextlib.suppress(TypeError):  # classes that have another layout
        module.__class__ = _seeing_all(type(module), hides=hides)


_SEES_ALL = "sees_all_rows"  # on a forward: it computes on the rows of all ranks


def _seeing_all(kind: type, *, hides: bool) -> type:
    """Returns the class whose modules see all rows in each forward they are given."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if name == "forward" and not hasattr(value, _SEES_ALL):
            value = _of_all_ranks(self, value, hides=hides)
        super(made, self).__setattr__(name, value)  # type: ignore[arg-type]

    names = {"__setattr__": set_attribute, "__module__": kind.__module__}
    made = type(kind.__name__, (kind,), names)
    return made


def _of_all_ranks(
    module: nn.Module, forward: Callable[..., Any], *, hides: bool
) -> Callable[..., Any]:
    """Returns the forward that computes on the rows of all ranks."""
    compute = functools.partial(alone_with_backward, forward) if hides else forward

    def global_forward(*args: Any, **kwargs: Any) -> Any:
        with all_in_sight():
            return of_all_ranks(*args, **kwargs)

    def of_all_ranks(*args: Any, **kwargs: Any) -> Any:
        if not (module.training and dist.is_initialized()) or _sees_all.get():
            return forward(*args, **kwargs)
        sizes: dict[str, tuple[int, ...]] = {}

        def gather(path: str, t: Tensor) -> Tensor:
            if t.dim() == 0:
                return t
            sizes[path] = rows_of_ranks(len(t), t.shape[1:])
            return gathered(t, 0, sizes[path])

        args, kwargs = tree.replace((args, kwargs), gather)
        token = _sees_all.set(True)
        try:
            whole = compute(*args, **kwargs)
        finally:
            _sees_all.reset(token)
        return _own_rows(whole, next(iter(sizes.values()), (1,)))

    setattr(global_forward, _SEES_ALL, True)
    return global_forward


def _with_its_hooks(module: nn.Module) -> Callable[..., Any]:
    """Returns the forward with the module's hooks, and removes them from the module."""
    forward = module.forward
    pre_hooks = _taken_off(private.forward_pre_hooks(module), plain=2)
    hooks = _taken_off(private.forward_hooks(module), plain=3)

    def hooked(*args: Any, **kwargs: Any) -> Any:
        for hook, takes_kwargs in pre_hooks:
            if takes_kwargs:
                args, kwargs = hook(module, args, kwargs) or (args, kwargs)
                continue
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        output = forward(*args, **kwargs)
        for hook, takes_kwargs in hooks:
            given = (args, kwargs) if takes_kwargs else (args,)
            changed = hook(module, *given, output)
            output = output if changed is None else changed
        return output

    return hooked if hooks or pre_hooks else forward


def _taken_off(
    hooks: MutableMapping[int, Any], *, plain: int
) -> list[tuple[Callable[..., Any], bool]]:
    """Returns hooks, and whether each takes keyword arguments, and removes them.

    `plain`: the arguments of hooks that take no keyword arguments.
    """
    found = [(h, len(inspect.signature(h).parameters) > plain) for h in hooks.values()]
    hooks.clear()
    return found


def _own_rows(whole: Any, sizes: tuple[int, ...]) -> Any:
    rank, total = dist.get_rank(), sum(sizes)
    start, size = sum(sizes[:rank]), sizes[rank]
    lists = [path for path, items in tree.lists(whole) if _is_of_samples(items, total)]
    if lists:
        whole = tree.cut_lists(whole, lists, slice(start, start + size))

    def rows(path: str, t: Tensor) -> Tensor:
        if tree.is_below(path, lists):
            return t
        dim = _row_dim(tuple(t.shape), total)
        if dim is None:
            return t
        step = t.shape[dim] // total
        return t.narrow(dim, start * step, size * step)

    return tree.replace(whole, rows)


def _is_of_samples(items: list[Any], total: int) -> bool:
    """Returns whether a list has an item for each sample, and no rows of all in one."""
    shapes = [tuple(t.shape) for t in tree.held(items)]
    return len(items) == total and any(_row_dim(s, total) is None for s in shapes)


def _row_dim(shape: tuple[int, ...], total: int) -> int | None:
    """Returns which dimension holds the samples; behind views or time it is another."""
    if shape and shape[0] % total == 0:
        return 0
    found = [dim for dim, size in enumerate(shape) if size == total]
    return found[0] if len(found) == 1 else None


Loss = Callable[[Any, Any], Any]
# (args, kwargs) of the global batch, those of a rank's samples, samples of all.
Own = tuple[Any, Any, int]


def global_loss(
    model: nn.Module,
    bare: nn.Module,
    what: GlobalLoss,
    shard: tuple[int, int],
    collated: Callable[[], Own | None] = lambda: None,
) -> nn.Module:
    """Returns a model that takes the global batch and computes this rank's rows.

    Its output is that of the global batch. Where the output itself cannot be gathered
    (the loss is computed inside forward), the modules that `what` names gather instead.
    Modules before them compute all rows, except batch norms, whose statistics are not
    part of the loss.

    Args:
        model: as wrapped.
        bare: the module inside.
        what: modules of `bare`, parameters and outputs, see GlobalLoss.
        shard: (first row, rows) of this rank.
        collated: returns the model's arguments for the global batch of the current step
            and for this rank's samples, if collate builds both.
    """
    if what.modules in ((), ("",)):
        gathering = _Gathering(shard, what.outputs, collated)
        for each in _called(model, bare):
            gathering.attach(each)
        return model
    short = shortener(bare)  # a wrap() may have wrapped parts of it
    gathering = _Gathering(shard)
    for path, parameter in contents.named_parameters(bare):
        if short(path) in what.parameters:
            # Used in the loss itself, which now is the whole loss on every rank.
            parameter.register_hook(lambda g: g / dist.get_world_size())
            gathering.passes_on(parameter)
    norms = [m for m in contents.modules(bare) if isinstance(m, private.BATCH_NORMS)]
    # Also the module inside a wrapper: a step may call it.
    named = [
        m for path, m in contents.named_modules(bare) if short(path) in what.modules
    ]
    for each in dict.fromkeys(named + norms):
        gathering.attach(each)
    return model


def _called(model: nn.Module, bare: nn.Module) -> list[nn.Module]:
    """Returns the modules that a step may call as the model.

    A step may call the module inside the wrapper too. If wrap() put the model into
    another module and wrapped that, the forward of that module may compute the loss.
    """
    inside: Any = model
    while isinstance(inside, DistributedDataParallel):
        inside = inside.module
    if inside is not bare and any(
        module is bare for module in contents.modules(inside)
    ):
        return [bare]
    return list(dict.fromkeys((model, bare)))


class _Gathering:
    """Global batch in, this rank's rows through a module, all rows out.

    By hooks: training code may unwrap the module and access attributes below. A call
    within another call is unchanged.
    """

    def __init__(
        self,
        shard: tuple[int, int],
        outputs: Collection[Output] = (),
        collated: Callable[[], Own | None] = lambda: None,
    ) -> None:
        self._shard, self._outputs, self._collated = shard, outputs, collated
        self._depth = 0
        self._rows = shard[1]  # of the call that is running
        self._passed_on = set[int]()  # ids of parameters

    def passes_on(self, parameter: nn.Parameter) -> None:
        """Leaves a parameter as it is where a module returns it."""
        self._passed_on.add(id(parameter))

    def attach(self, module: nn.Module) -> None:
        """Gathers the output of the module."""
        nn.Module.register_forward_pre_hook(module, self._enter, with_kwargs=True)
        nn.Module.register_forward_hook(module, self._leave, always_call=True)

    def _enter(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        if self._depth > 1:
            return None
        show_ranks()
        own, given = self._collated(), (args, kwargs)
        if own and not _has_rows(given, own[2]) and _is_same(given, own[0]):
            self._rows = self._shard[1]
            return own[1]
        local, self._rows = _local_rows((args, kwargs), self._shard)
        return local

    def _leave(self, _: nn.Module, __: Any, output: Any) -> Any:
        self._depth -= 1
        if self._depth or output is None:
            return None
        gathered = _gather_output(output, self._rows, self._outputs)
        hide_ranks()
        kept = {p: t for p, t in tree.tensors(output) if id(t) in self._passed_on}
        return tree.replace(gathered, kept.get) if kept else gathered


def _has_rows(given: Any, samples: int) -> bool:
    """Returns whether every tensor has a row for each sample."""
    return all(len(t) == samples for t in tree.held(given) if t.dim())


def _is_same(given: Any, whole: Any) -> bool:
    """Returns whether a call is given the very tensors of the global batch."""
    mine, theirs = tree.held(given), tree.held(whole)
    return len(mine) == len(theirs) and all(
        a is b for a, b in zip(mine, theirs, strict=True)
    )


def _local_rows(value: Any, shard: tuple[int, int]) -> tuple[Any, int]:
    """Returns this rank's part of a value, and its number of rows.

    Arguments with another number of rows than the batch or a multiple of it are a
    micro-batch, which is divided among the ranks.
    """
    start, size = shard
    total = sum(rows_of_ranks(size))
    lengths = Counter(len(t) for t in tree.held(value) if t.dim())
    most = max(lengths, key=lambda n: (lengths[n], n), default=0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if most >= world_size and not any(n and n % total == 0 for n in lengths):
        total, (start, size) = most, tree.shard_range(most, rank, world_size)

    def rows(_: str, t: Tensor) -> Tensor:
        if t.dim() == 0 or len(t) % total or len(t) < total:
            return t
        step = len(t) // total
        return t.narrow(0, start * step, size * step)

    return tree.replace(value, rows), size


def _gather_output(output: Any, size: int, others: Collection[Output]) -> Any:
    """Returns the rows of all ranks; `others` are no row per sample."""
    lists = {other.path for other in others if other.is_list}
    layouts = {o.path: (o.blocks, o.dim) for o in others if not o.is_list}

    def gather(path: str, t: Tensor) -> Tensor:
        if tree.is_below(path, lists):
            return t
        usual = 1, int(t.dim() > 1 and len(t) % size > 0)
        number, dim = layouts.get(path or "output", usual)
        if dim >= t.dim() > 0:  # of another call
            number, dim = usual
        if t.dim() == 0 or number == 0:
            return mean_over_ranks(t) if t.is_floating_point() else t
        parts = t.unflatten(dim, (number, t.shape[dim] // number))
        around = (*parts.shape[: dim + 1], *parts.shape[dim + 2 :])
        sizes = rows_of_ranks(parts.shape[dim + 1], around)
        whole = own_live(parts, dim + 1, sizes)
        return whole.flatten(dim, dim + 1)

    return tree.change_at(tree.replace(output, gather), lists, _items_of_all)


def _items_of_all(items: Any) -> Any:
    """Returns the items of all ranks, of which only this rank's carry gradient."""
    every: list[Any] = [None] * dist.get_world_size()
    own = list(items)
    dist.all_gather_object(every, tree.replace(own, lambda _, t: t.detach()))
    every[dist.get_rank()] = own
    return type(items)(item for part in every for item in part)


def without_process_group(loss: Loss) -> Loss:
    """Returns the loss as a single process computes it: without process group."""
    return functools.partial(alone, loss)


def partly_global(
    loss: Loss,
    some: Collection[GlobalLossOfOutputs],
    size: int,
    whole_targets: Callable[[], Any],
) -> Loss:
    """Returns a loss that is global for some outputs and local for the others.

    Its gradient at the outputs of `some` is W times the single-process gradient, at the
    others that of the rank's own loss. Its value has no meaning.

    Args:
        loss: of (output, targets).
        some: names of tensors in the model's output.
        size: samples of this rank.
        whole_targets: returns the targets of the global batch.
    """
    without = {path: Output(path=path) for fix in some for path in fix.whole}
    mine = {path for fix in some for path in fix.paths} | without.keys()

    def both(output: Any, targets: Any) -> Any:
        rest = tree.replace(output, lambda p, t: t.detach() if p in mine else t)
        given = tree.replace(output, lambda p, t: t if p in mine else t.detach())
        gathered = _gather_output(given, size, without.values())
        whole = alone(loss, gathered, whole_targets())
        return loss(rest, targets) + dist.get_world_size() * whole

    return both
