"""Hooks that judge every module alone, and cut the network at module outputs.

Teacher forcing: whatever a module computes, the rest of the network goes on with the
reference's output, so one diverging module neither hides nor cascades into another.
Each output that goes on is a fresh leaf: what arrives at the leaves in backward is the
derivative of what lies behind them, the loss link.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes import segments
from ddpcheck.diagnose.probes.segments import SAME
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import PlainWrapper
from ddpcheck.run.model.names import shortener

_FEW = 64  # numbers: a loss per quantizer, not statistics per channel


@dataclass(slots=True)
class Leaf:
    """A cut: the leaf, and which part of the reference's tensor it is."""

    key: str
    module: str
    micro: int
    tensor: Tensor
    rows: Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Hooks:
    """Forward hooks on all modules of a model; call `remove`.

    What torch.func transforms (vmap, grad) has no values to record: it is passed over.

    `calls_per_micro`: calls of the model itself that make up one micro-batch, after
    which calls are counted anew; 0 where the step has no micro-batches.
    """

    calls_per_micro: int = 0
    micro: int = 0
    handles: list[Any] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    is_paused: bool = False
    # Calls, as "name#call", whose input a hook of the target's on the module has made.
    remade: set[str] = field(default_factory=set)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Lets calls pass as if there were no hooks: a forward that is tried out."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    def attach(
        self,
        model: nn.Module,
        before: Callable[[str, int, nn.Module, Any, Any], Any] | None,
        after: Callable[[str, int, nn.Module, Any], Any],
    ) -> None:
        """Calls `before` and `after` around every call of every module.

        `before(name, call, module, args, kwargs)` returns (args, kwargs) or None;
        `after(name, call, module, output)` returns the output or None.
        """
        for name, module in hooked(model).items():
            self._attach(name, module, before, after)

    def _attach(self, name: str, module: nn.Module, before: Any, after: Any) -> None:
        given: list[list[Tensor]] = []  # before any hook of the target's

        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            given.append(tree.held((args, kwargs)))

        def enter(_: nn.Module, args: Any, kwargs: Any) -> Any:
            before_hooks = given.pop() if given else None
            if self.is_paused or private.transforms():
                return None
            if not name and self.calls.get("", 0) == self.calls_per_micro > 0:
                self.calls.clear()
                self.micro += 1
            call = self.calls.get(name, 0)
            self.calls[name] = call + 1
            self.open.append(f"{name}#{call}")
            if before_hooks and _differ(before_hooks, tree.held((args, kwargs))):
                self.remade.add(self.open[-1])
            return before(name, call, module, args, kwargs) if before else None

        def leave(_: nn.Module, __: Any, output: Any) -> Any:
            if self.is_paused or private.transforms():
                return None
            call = int(self.open.pop().rpartition("#")[2])
            return after(name, call, module, output)

        if private.forward_pre_hooks(module):
            first = nn.Module.register_forward_pre_hook(
                module, note, prepend=True, with_kwargs=True
            )
            self.handles.append(first)
        self.handles.append(
            nn.Module.register_forward_pre_hook(module, enter, with_kwargs=True)
        )
        self.handles.append(nn.Module.register_forward_hook(module, leave))

    def remove(self) -> None:
        """Takes all hooks off."""
        for handle in self.handles:
            handle.remove()


def _differ(tensors: list[Tensor], others: list[Tensor]) -> bool:
    """Returns whether these are not the same objects."""
    return [id(t) for t in tensors] != [id(t) for t in others]


def hooked(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules that `Hooks` attaches to, by name."""
    short = shortener(model)
    return {
        short(path): module
        for path, module in contents.named_modules(model)
        if not isinstance(module, PlainWrapper)
    }


def key_of(name: str, call: int, path: str) -> str:
    """Returns the name under which a tensor of a module call is recorded."""
    return f"{name}#{call}/{path}"


def leaf_of(value: Tensor) -> Tensor:
    """Returns a cut: a parameter, as it stands for those that are behind it."""
    return nn.Parameter(value)


def paths_of(keys: Iterable[str]) -> set[str]:
    """Returns the places of tensors in what their modules return."""
    return {key.rpartition("/")[2] for key in keys}


def module_of(key: str) -> str:
    """Returns the module of a key, "" for the model itself."""
    return key.rpartition("#")[0]


def is_cut(tensor: Tensor) -> bool:
    """Returns whether an output tensor can be a leaf: floating point, with samples."""
    return tensor.dim() > 0 and tensor.is_floating_point()


def is_data(output: Tensor) -> bool:
    """Returns whether an output is made of no parameter, as a mask is.

    What is made without gradients may be given some, and go forward once more.
    """
    return torch.is_grad_enabled() and not output.requires_grad


def keeps_shape(call: tuple[Any, Any], output: Any) -> bool:
    """Returns whether nn.Identity could stand in for the module, as far as shapes go.

    Args:
        call: the arguments and keyword arguments of the module.
        output: what it returned.
    """
    args, kwargs = call
    if len(args) != 1 or kwargs:
        return False
    if not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
        return False
    return (args[0].shape, args[0].dtype) == (output.shape, output.dtype)


def part(
    whole: tuple[int, ...], mine: tuple[int, ...], rows: tuple[int, int, int]
) -> list[Callable[[Tensor], Tensor]]:
    """Returns the ways in which a shard's tensor may be a part of the whole.

    Args:
        whole: shape in the reference.
        mine: shape on the rank.
        rows: (first sample, samples of the shard, samples in all).

    A dimension of k * samples may hold k values per sample, or k blocks of all
    samples (two views of a batch, concatenated): both are returned. None fits: [].
    """
    start, size, total = rows
    dims = (
        [d for d in range(len(whole)) if whole[d] != mine[d]]
        if len(whole) == len(mine)
        else []
    )
    if len(dims) != 1:
        return []
    dim = dims[0]
    groups, rest = divmod(whole[dim], total)
    if rest or groups * size != mine[dim]:
        return []

    def contiguous(t: Tensor) -> Tensor:
        return t.narrow(dim, start * groups, size * groups)

    def blocks(t: Tensor) -> Tensor:
        split = t.unflatten(dim, (groups, total))
        return split.narrow(dim + 1, start, size).flatten(dim, dim + 1)  # type: ignore[no-any-return]

    return [contiguous, blocks] if groups > 1 else [contiguous]


def closest(
    actual: Tensor,
    reference: Tensor,
    rows: tuple[int, int, int],
) -> tuple[Callable[[Tensor], Tensor] | None, float]:
    """Returns the part of the reference that `actual` is closest to, and how close.

    The distance is max |a - b| over max |b|.
    """
    best: tuple[Callable[[Tensor], Tensor] | None, float] = (None, float("inf"))
    ways = part(tuple(reference.shape), tuple(actual.shape), rows)
    for take in ways:
        diff = distance(actual, take(reference), scale=reference)
        if best[0] is None or diff < best[1]:
            best = take, diff
    if best[1] <= SAME or len(ways) < 2:  # noqa: PLR2004 (a row per sample)
        return best
    sizes = zip(reference.shape, actual.shape, strict=True)
    dim = next(d for d, (a, b) in enumerate(sizes) if a != b)
    found = segments.part(actual, reference, rows, dim)
    return best if found is None else (found, 0.0)


def num_blocks(mine: Tensor, whole: Tensor, rows: tuple[int, int, int]) -> int:
    """Returns how many blocks of all samples lie one after the other in `whole`.

    1 where the rows of a sample lie together, and where the shard does not tell.
    """
    ways = part(tuple(whole.shape), tuple(mine.shape), rows)
    if len(ways) < 2:  # noqa: PLR2004 (a row per sample)
        return 1
    together, blocks = (distance(mine, take(whole), scale=whole) for take in ways)
    differ = (
        a // rows[2] for a, b in zip(whole.shape, mine.shape, strict=True) if a != b
    )
    return next(differ) if blocks < together else 1


def distance(actual: Tensor, expected: Tensor, *, scale: Tensor | None = None) -> float:
    """Returns max |actual - expected| over max |scale|; 0 for two empty tensors."""
    if not actual.numel():
        return 0.0
    a, b = actual.detach().double(), expected.detach().double()
    diff = float((a - b).abs().nan_to_num(0.0).max())
    top = float(
        (expected if scale is None else scale)
        .detach()
        .double()
        .abs()
        .nan_to_num(0.0)
        .max()
    )
    return diff / top if top > 0 else diff


def is_renumbered(actual: Tensor, expected: Tensor) -> bool:
    """Returns whether integers differ by one constant: positions, counted from 0 here.

    A shard numbers its rows, nodes or boxes from its own first one.
    """
    if actual.is_floating_point() or actual.is_complex() or not actual.numel():
        return False
    shift = expected.long() - actual.long()
    return bool((shift == shift.flatten()[0]).all())


def restore(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Puts parameters and buffers back to what `snapshot` saw."""
    with torch.no_grad():
        for name, tensor in [
            *contents.named_parameters(model),
            *contents.named_buffers(model),
        ]:
            if name not in tensors:
                continue
            if tensor.shape == tensors[name].shape:
                tensor.copy_(tensors[name])
            else:  # a hidden state has a row per sample once it is there
                tensor.data = tensors[name].clone()


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Returns copies of all parameters and buffers."""
    return {
        name: t.detach().clone()
        for name, t in [
            *contents.named_parameters(model),
            *contents.named_buffers(model),
        ]
    }


def tensors_of(value: Any) -> list[tuple[str, Tensor]]:
    """Returns the tensors of nested values with their paths.

    Packed rows lie by time, with counts and an order of their own: none is a sample's.
    """
    found = tree.tensors(value, skip=(PackedSequence,))
    return [(path or "output", t) for path, t in found]


def has_fractions(tensor: Tensor) -> bool:
    """Returns whether it holds real or complex numbers, no indices or masks."""
    return tensor.is_floating_point() or tensor.is_complex()


def is_term(actual: Tensor, reference: Tensor) -> bool:
    """Returns whether it can be a term of the loss: a real number, or a few of them."""
    return (
        actual.shape == reference.shape
        and actual.is_floating_point()
        and actual.numel() <= _FEW
    )


def pairs(actual: Tensor, reference: Tensor) -> list[tuple[float, float]]:
    """Returns the numbers of both, one by one."""
    mine, theirs = (t.detach().reshape(-1).tolist() for t in (actual, reference))
    return list(zip(mine, theirs, strict=True))
