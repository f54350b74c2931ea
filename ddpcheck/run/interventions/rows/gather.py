"""Gathers the rows of all ranks into one tensor, with gradients to each rank.

Interventions use `gathered` to run a module that mixes samples on the rows of the
global batch, or a loss on its outputs. Its backward sums the gradients of all ranks at
a rank's rows, which is the derivative of sum_r L_r.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from ddpcheck.compare import tree
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.process import graphs


@dataclass(slots=True)
class _Hidden:
    """Process groups that are hidden from user code.

    `group`: hidden from a model, None if none is. `in_backward`: hidden from the
    autograd functions that run, the outermost first. `from_steps`: hidden from steps
    until backward, and the group of this rank alone; `goes_back`: a backward runs.
    """

    group: dist.ProcessGroup | None = None
    in_backward: list[Any] = field(default_factory=list)
    from_steps: tuple[Any, Any] | None = None
    goes_back: bool = False


_hidden = _Hidden()
_UNINITIALISED = "process group has not been initialized"  # in what torch raises


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
        ctx.dim, ctx.sizes = dim, sizes
        return _gather(local.detach(), dim, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = grad.contiguous().clone()
        _all_reduce(total)
        rank = dist.get_rank()
        start = sum(ctx.sizes[:rank])
        return total.narrow(ctx.dim, start, ctx.sizes[rank]), None, None


class _OwnRows(torch.autograd.Function):
    """The rank's own rows, among those of all ranks."""

    @staticmethod
    def forward(_: Any, local: Tensor) -> Tensor:
        return local.view_as(local)

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad


class _MeanOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, local: Tensor) -> Tensor:
        mean = local.detach().clone()
        _all_reduce(mean)
        return mean / dist.get_world_size()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad / dist.get_world_size()


_OWN_NODES = {f"{f.__name__}Backward" for f in (_GatherRows, _OwnRows, _MeanOverRanks)}


def gathered(local: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """Returns the rows of all ranks in rank order; gradients are summed over ranks.

    Args:
        local: this rank's rows along `dim`; the other dimensions agree on all ranks.
        dim: of the rows.
        sizes: rows of every rank.
    """
    if not local.is_floating_point() and not local.is_complex():
        return _gather(local, dim, sizes)
    result: Tensor = _GatherRows.apply(local, dim, sizes)  # type: ignore[no-untyped-call]
    return result


def own_live(local: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """Returns the rows of all ranks, of which only this rank's carry gradient.

    With the loss of all rows on every rank, that is each rank's share of d L.
    """
    whole = _gather(local.detach(), dim, sizes)
    if not local.requires_grad:
        return whole
    rank = dist.get_rank()
    parts = list(whole.split(list(sizes), dim))
    parts[rank] = _OwnRows.apply(local)  # type: ignore[no-untyped-call]
    return torch.cat(parts, dim)


def mean_over_ranks(local: Tensor) -> Tensor:
    """Returns the mean of a value of every rank; d mean / d local = 1 / W."""
    result: Tensor = _MeanOverRanks.apply(local)  # type: ignore[no-untyped-call]
    return result


def rows_of_ranks(count: int, others: Sequence[int] = ()) -> tuple[int, ...]:
    """Returns `count` of every rank: a collective.

    Args:
        count: rows of this rank.
        others: sizes of the other dimensions, which must agree to be gathered: samples
            that are padded to the longest of a rank have other lengths.

    Raises:
        RuntimeError: they do not.
    """
    mine = torch.tensor([count, zlib.crc32(repr(tuple(others)).encode())])
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    if len({int(t[1]) for t in every}) > 1:
        message = f"tensors of other shapes on other ranks, here (*, {others})"
        raise RuntimeError(message)
    return tuple(int(t[0]) for t in every)


def alone(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function as a single process would: no process group is visible.

    User code that has cached the answer still calls collectives, or creates a group if
    it finds none. Then the function is called again with a visible group of this rank
    alone.
    """
    try:
        with _group_in_sight(None):
            return function(*args, **kwargs)
    except (ValueError, RuntimeError) as error:
        if _UNINITIALISED not in str(error):
            raise
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    try:
        with _group_in_sight(group):
            return function(*args, **kwargs)
    finally:
        dist.destroy_process_group(group)


def alone_with_backward(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As `alone`; the backward of autograd functions inside sees no group either.

    A synchronized norm also sums in backward.
    """
    output = alone(function, *args, **kwargs)
    _hide_behind(output)
    return output


def _hide_behind(output: Any) -> None:
    """Hides the group from the backward of autograd functions behind an output."""
    # Nodes before the gathered rows belong to each rank alone.
    begin = [t.grad_fn for t in tree.held(output)]
    for node in list(graphs.nodes(begin, ends=_OWN_NODES)):
        if isinstance(node, BackwardCFunction):  # of a function in Python
            _hide_from(node)


def _hide_from(node: Any) -> None:
    """Hides the group while an autograd function goes backward."""
    member = dist.GroupMember

    def hide(_: Any) -> None:
        _hidden.in_backward.append(member.WORLD)
        member.WORLD = _hidden.from_steps[1] if _hidden.from_steps else None

    def show(*_: Any) -> None:
        member.WORLD = _hidden.in_backward.pop()

    node.register_prehook(hide)
    node.register_hook(show)


@contextlib.contextmanager
def shown_again_at_exit() -> Iterator[None]:
    """Shows a group again that a backward which raised left hidden."""
    try:
        yield
    finally:
        if _hidden.in_backward:
            dist.GroupMember.WORLD = _hidden.in_backward[0]
            _hidden.in_backward.clear()


def without_ranks(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As `alone`, but interventions inside can use the group of all ranks.

    By `all_in_sight`: a model that a replica of DataParallel's is like.
    """
    with _group_in_sight(None, hidden=dist.GroupMember.WORLD):
        return function(*args, **kwargs)


def without_ranks_in_backward(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Calls a function; the backward of autograd functions inside sees no group."""
    output = function(*args, **kwargs)
    _hide_behind(output)
    return output


@contextlib.contextmanager
def all_in_sight() -> Iterator[None]:
    """Shows the group that `without_ranks` hides."""
    if _hidden.group is None:
        yield
        return
    with _group_in_sight(_hidden.group):
        yield


@contextlib.contextmanager
def _group_in_sight(
    group: dist.ProcessGroup | None, hidden: dist.ProcessGroup | None = None
) -> Iterator[None]:
    """Makes a group the default one, or torch.distributed look uninitialised.

    `dist.is_initialized` reads one module attribute under any imported name. No group
    can be created while it is hidden, as some libraries do if they find none.
    """
    member, make = dist.GroupMember, dist.init_process_group
    before = member.WORLD, _hidden.group
    member.WORLD, _hidden.group = group, hidden
    if group is None:
        dist.init_process_group = _refuse
    try:
        yield
    finally:
        member.WORLD, _hidden.group = before
        dist.init_process_group = make


@contextlib.contextmanager
def alone_until_backward() -> Iterator[None]:
    """Hides other ranks from a step until backward, except from interventions.

    A step with the samples of all ranks would count and gather them once more.
    """

    def run(backward: Any, *args: Any, **kwargs: Any) -> None:
        _hide_behind((args, kwargs))
        show_ranks()
        _hidden.goes_back = True  # what is recomputed there gathers, too
        try:
            backward(*args, **kwargs)
        finally:
            _hidden.goes_back = False

    one = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    _hidden.from_steps = dist.GroupMember.WORLD, one
    try:
        hide_ranks()
        with backwards.outermost(run):
            yield
    finally:
        show_ranks()
        _hidden.from_steps = None
        dist.destroy_process_group(one)


def show_ranks() -> None:
    """Shows the group again that `alone_until_backward` has hidden."""
    if _hidden.from_steps is not None:
        dist.GroupMember.WORLD = _hidden.from_steps[0]


def hide_ranks() -> None:
    """Shows a group of this rank alone, within `alone_until_backward`."""
    if _hidden.from_steps is not None and not _hidden.goes_back:
        dist.GroupMember.WORLD = _hidden.from_steps[1]


@contextlib.contextmanager
def between_steps() -> Iterator[None]:
    """Shows the group, and hides it from the next step."""
    show_ranks()
    try:
        yield
    finally:
        hide_ranks()


def _refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError(f"the {_UNINITIALISED}, and cannot be here")


def _gather(local: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """All-gather of unequal parts: each rank fills its rows of zeros, then a sum."""
    shape = list(local.shape)
    shape[dim] = sum(sizes)
    wide = torch.zeros(shape, dtype=_summable(local.dtype), device=local.device)
    start = sum(sizes[: dist.get_rank()])
    wide.narrow(dim, start, local.shape[dim]).copy_(local)
    _all_reduce(wide)
    return wide.to(local.dtype)


def _summable(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype == torch.bool else dtype


def _all_reduce(tensor: Tensor) -> None:
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    dist.all_reduce(flat)
