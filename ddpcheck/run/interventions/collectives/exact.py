"""Collectives computed from the bytes of all ranks: slow, and right by construction.

A backend may return a wrong result. Each collective of the user can be compared with
the result that torch.distributed defines for the inputs of all ranks, or replaced by
it. The bytes travel through an all-gather of contiguous tensors, called on the process
group itself: no function that user code may replace.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.process import callers
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.spec import Defect

Exact = list[tuple[Tensor, Tensor]]  # (tensor that a collective writes, right value)

# Rounding of a sum over ranks is below this many epsilons of the dtype.
_EPSILONS = 64
_FUNCTIONS = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)
_SIGNATURES = {
    name: inspect.signature(getattr(distributed_c10d, name)) for name in _FUNCTIONS
}


def _reduction(parts: list[Tensor], op: Any) -> Tensor:
    """Returns the reduction over ranks, in float64 where numbers are floating."""
    first = parts[0]
    if first.is_floating_point():
        parts = [p.double() for p in parts]
    stacked = torch.stack(parts)
    if op in (ReduceOp.SUM, ReduceOp.AVG):
        total = stacked.sum(0)
        return total / len(parts) if op == ReduceOp.AVG else total
    if op == ReduceOp.PRODUCT:
        return stacked.prod(0)
    if op == ReduceOp.MIN:
        return stacked.amin(0)
    if op == ReduceOp.MAX:
        return stacked.amax(0)
    bitwise = {
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }
    return functools.reduce(bitwise[op], parts)


class Definition:
    """The results that collectives must return, for the ranks of one run."""

    def __init__(self) -> None:
        self._groups: dict[int, Any] = {}

    def results(self, name: str, *args: Any, **kwargs: Any) -> Exact | None:
        """Returns the values a call must write; None for an unknown form of call.

        This is itself a collective of the group.
        """
        try:
            bound = _SIGNATURES[name].bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        given = bound.arguments
        try:
            group = self._trusted(given.get("group"))
            if group is None:
                return None
            return getattr(self, f"_{name}")(given, group)  # type: ignore[no-any-return]
        except (KeyError, RuntimeError, TypeError, ValueError):
            return None  # an operation without a definition here

    def _trusted(self, group: Any) -> Any:
        """Returns a gloo group of the same ranks, None for a rank outside."""
        group = group or dist.group.WORLD
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        if group is dist.group.WORLD and dist.get_backend() == "gloo":
            return group
        if id(group) not in self._groups:
            made = distributed_c10d.new_group(
                _ranks(group), backend="gloo", use_local_synchronization=True
            )
            self._groups[id(group)] = made
        return self._groups[id(group)]

    def _parts(self, tensor: Tensor, group: Any) -> list[Tensor]:
        """Returns the tensor of every rank of the group.

        Raises:
            ValueError: the tensors of the ranks differ in size.
        """
        mine = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
        group.allgather([sizes], [torch.tensor([mine.numel()])]).wait()
        if len({int(size) for size in sizes}) > 1:
            raise ValueError("the ranks' tensors differ in size")
        others = [torch.empty_like(mine) for _ in range(group.size())]
        group.allgather([others], [mine]).wait()
        return [
            part.view(tensor.dtype).reshape(tensor.shape).to(tensor.device)
            for part in others
        ]

    def _all_reduce(self, given: dict[str, Any], group: Any) -> Exact:
        tensor = given["tensor"]
        return [(tensor, _reduction(self._parts(tensor, group), given["op"]))]

    def _reduce(self, given: dict[str, Any], group: Any) -> Exact:
        made = self._all_reduce(given, group)
        return made if group.rank() == _root(given, "dst") else []

    def _broadcast(self, given: dict[str, Any], group: Any) -> Exact:
        tensor = given["tensor"]
        return [(tensor, self._parts(tensor, group)[_root(given, "src")])]

    def _all_gather(self, given: dict[str, Any], group: Any) -> Exact:
        parts = self._parts(given["tensor"], group)
        return list(zip(given["tensor_list"], parts, strict=True))

    def _gather(self, given: dict[str, Any], group: Any) -> Exact:
        parts = self._parts(given["tensor"], group)
        if group.rank() != _root(given, "dst"):
            return []
        return list(zip(given["gather_list"], parts, strict=True))

    def _scatter(self, given: dict[str, Any], group: Any) -> Exact:
        output, root = given["tensor"], _root(given, "src")
        handed = output.new_zeros((group.size(), *output.shape))
        if group.rank() == root:
            handed = torch.stack([t.detach() for t in given["scatter_list"]])
        return [(output, self._parts(handed, group)[root][group.rank()])]

    def _all_gather_into_tensor(self, given: dict[str, Any], group: Any) -> Exact:
        output = given["output_tensor"]
        parts = self._parts(given["input_tensor"], group)
        return [(output, torch.cat(parts).reshape(output.shape))]

    def _reduce_scatter(self, given: dict[str, Any], group: Any) -> Exact:
        parts = [self._parts(t, group) for t in given["input_list"]]
        return [(given["output"], _reduction(parts[group.rank()], given["op"]))]

    def _reduce_scatter_tensor(self, given: dict[str, Any], group: Any) -> Exact:
        output = given["output"]
        whole = _reduction(self._parts(given["input"], group), given["op"])
        mine = whole.chunk(group.size())[group.rank()]
        return [(output, mine.reshape(output.shape))]


def _ranks(group: Any) -> list[int]:
    """Returns the ranks of a group, all of them for one that torch does not know.

    Raises:
        ValueError: torch does not know it, and some ranks are outside.
    """
    with contextlib.suppress(KeyError, RuntimeError, ValueError):
        return distributed_c10d.get_process_group_ranks(group)
    if group.size() != dist.get_world_size():
        raise ValueError("a process group that torch.distributed does not know")
    return list(range(group.size()))


def _root(given: dict[str, Any], name: str) -> int:
    """Returns the root's rank in the group: "group_src", "src" of all ranks, or 0."""
    root = given.get(f"group_{name}")
    if root is not None or given[name] is None:
        return int(root or 0)
    group: Any = given.get("group") or dist.group.WORLD
    return int(dist.get_group_rank(group, given[name]))


def judged(found: list[Defect]) -> contextlib.AbstractContextManager[None]:
    """Appends to `found` every call of the user that returns something else.

    Calls with async_op=True are left alone: their result comes later.
    """
    definition = Definition()

    def judging(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _is_users() or kwargs.get("async_op"):
                return function(*args, **kwargs)
            right = definition.results(name, *args, **kwargs)
            result = function(*args, **kwargs)
            for tensor, value in right or ():
                found.extend(_defects(_describe(name, args, kwargs), tensor, value))
            return result

        return call

    return _called_by(judging)


def exact() -> contextlib.AbstractContextManager[None]:
    """Makes the user's collectives return the results that torch defines."""
    definition = Definition()

    def defining(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _is_users():
                return function(*args, **kwargs)
            right = definition.results(name, *args, **kwargs)
            if right is None:
                return function(*args, **kwargs)
            with torch.no_grad():
                for tensor, value in right:
                    tensor.copy_(value)
            return _Done() if kwargs.get("async_op") else None

        return call

    return _called_by(defining)


class _Done:
    """The handle of an asynchronous collective that has ended."""

    def wait(self, *_: Any) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """Returns True."""
        return True


def judge_reducers(wrapped: list[DistributedDataParallel], device: str) -> list[Defect]:
    """Returns the defects of the sums that DDP's reducers get from their groups.

    Uses tensors on the run's device, where another backend may sum than on the CPU.
    """
    definition = Definition()
    found = []
    for group in {id(ddp.process_group): ddp.process_group for ddp in wrapped}.values():
        # Numbers of which no two ranks have the same multiple.
        tensor = torch.arange(1.0, 8.0, dtype=torch.float64, device=device)
        tensor = (tensor + dist.get_rank()) ** (1 + dist.get_rank() % 3)
        right = definition.results("all_reduce", tensor, group=group)
        if right is None:
            continue
        options = dist.AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM)
        group.allreduce([tensor], options).wait()
        what = f"all_reduce(SUM) of {_type(tensor)} by {_backend(group)}, for DDP"
        found += _defects(what, tensor, right[0][1], in_reducer=True)
    return found


def _called_by(
    around: Callable[[str, Any], Any],
) -> contextlib.AbstractContextManager[None]:
    made = {name: around(name, getattr(dist, name)) for name in _FUNCTIONS}
    return replaced(dist, **made)


def _is_users() -> bool:
    """Returns whether user code calls, directly or through torch.distributed.nn."""
    frame = callers.frame(2)
    while (
        frame is not None and callers.module_of(frame) == "ddpcheck.run.observe.observe"
    ):
        frame = frame.f_back  # it notes the call and hands it on
    return not callers.module_of(frame).startswith("ddpcheck.")


def _defects(
    what: str, tensor: Tensor, right: Tensor, *, in_reducer: bool = False
) -> list[Defect]:
    """Returns the defect, none where the tensor is right up to rounding."""
    found, right = tensor.detach(), right.to(tensor.device)
    wide = torch.complex128 if found.is_complex() else torch.float64
    difference = (found.to(wide) - right.to(wide)).abs()
    largest = float(right.to(wide).abs().max()) if right.numel() else 0.0
    worst = float(difference.max()) if difference.numel() else 0.0
    is_exact = not (found.is_floating_point() or found.is_complex())
    epsilon = 0.0 if is_exact else torch.finfo(found.dtype).eps
    if worst <= _EPSILONS * epsilon * largest:
        return []
    a, b = found.to(wide).reshape(-1), right.to(wide).reshape(-1)
    return [
        Defect(
            what=what,
            rel_diff=worst / largest if largest else float("inf"),
            ratio=float((a * b.conj()).sum().real / (b.abs() ** 2).sum().clamp(1e-300)),
            is_dense=_is_dense(tensor),
            in_reducer=in_reducer,
        )
    ]


def _is_dense(tensor: Tensor) -> bool:
    """Returns whether the tensor fills its memory, in whatever order."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).is_contiguous()


def _describe(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    given = _SIGNATURES[name].bind(*args, **kwargs)
    given.apply_defaults()
    values = given.arguments
    op = values.get("op")
    tensor = next(v for v in values.values() if isinstance(v, Tensor | list))
    tensor = tensor[0] if isinstance(tensor, list) else tensor
    asked = f"({str(op).rpartition('.')[2]})" if op is not None else ""
    group = values.get("group") or dist.group.WORLD
    return f"{name}{asked} of {_type(tensor)} by {_backend(group)}"


def _type(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    strides = "" if tensor.is_contiguous() else f" with strides {list(tensor.stride())}"
    return f"{dtype} {list(tensor.shape)}{strides}"


def _backend(group: Any) -> str:
    with contextlib.suppress(Exception):  # a group that user code built by hand
        return str(dist.get_backend(group))
    return type(group).__name__
