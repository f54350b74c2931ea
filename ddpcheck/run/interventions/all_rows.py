"""Modules that compute on the rows of all ranks, as one process does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.run import private
from ddpcheck.run.interventions.gather import (
    all_in_sight,
    alone_with_backward,
    gathered,
    rows_of_ranks,
)

_sees_all: ContextVar[bool] = ContextVar("sees_all", default=False)


def see_all_rows(module: nn.Module, *, hides: bool) -> None:
    """Makes a module compute on the rows of all ranks and return this rank's."""
    forward = _with_its_hooks(module)
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

    module.forward = global_forward


def _with_its_hooks(module: nn.Module) -> Callable[..., Any]:
    """Returns the forward with the hooks that are on the module, and takes them off."""
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
    """Returns hooks, and whether each takes keyword arguments, and takes them off.

    `plain`: what those that do not are called with.
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
