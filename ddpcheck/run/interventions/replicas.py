"""Interventions on nn.DataParallel: other replication, scatter and gather."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.observe.external_state import MODULES_OWN

# Attributes that replicate creates on every module, and torch's own bookkeeping.
_OWN = (vars(nn.Module()).keys() - {"training"}) | {"_former_parameters", "_is_replica"}


def fill_parameters(replica: nn.Module) -> None:
    """Restores the parameters of a replica that replicate transposed into attributes.

    isinstance(..., nn.Parameter) holds too, as a module may check it. The attributes
    are removed: they would hide the tensors that functional_call sets in their place.
    """
    for module in contents.modules(replica):
        own = vars(module).get("_former_parameters", {})
        for name, tensor in own.items():
            setattr(tensor, "_is_param", True)  # noqa: B010 (isinstance asks for it)
            private.parameters(module)[name] = tensor
            vars(module).pop(name, None)


def with_mean_scalars(outputs: Sequence[Any], sizes: list[int]) -> list[Any]:
    """Returns the outputs, every scalar the mean over replicas by their samples."""
    flat = [dict(tree.tensors(output)) for output in outputs]

    def mean(path: str, t: Tensor) -> Tensor:
        return _mean([f[path].to(t.device) for f in flat], sizes) if _is_one(t) else t

    return [tree.replace(output, mean) for output in outputs]


def _is_one(tensor: Tensor) -> bool:
    return tensor.numel() == 1


def _mean(values: list[Tensor], sizes: list[int]) -> Tensor:
    """Returns the mean, weighted by numbers of samples if these are known."""
    weights = sizes if any(sizes) else [1] * len(values)
    parts = [value * weight for value, weight in zip(values, weights, strict=True)]
    return torch.stack(parts).sum(0) / sum(weights)


def first_scalars(gathered: Any, one: Any) -> Any:
    """Returns the gathered output with one scalar for every vector of scalars."""
    scalars = {path: t for path, t in tree.tensors(one) if _is_one(t)}
    return tree.replace(gathered, scalars.get)


def keep_state(module: nn.Module, replica: nn.Module) -> None:
    """Copies to a module what its replica assigned to itself.

    Attributes, buffers, and the data of parameters.
    """
    kept = assigned(module, replica)
    for mine, theirs in zip(
        contents.modules(module), contents.modules(replica), strict=True
    ):
        for name, parameter in private.parameters(mine).items():
            _keep_data(parameter, vars(theirs).get(name))
    assign(module, kept)


def assigned(module: nn.Module, replica: nn.Module) -> list[dict[str, Any]]:
    """Returns the attributes and buffers that a replica assigned, module by module."""
    pairs = zip(contents.modules(module), contents.modules(replica), strict=True)
    return [_assigned(mine, theirs) for mine, theirs in pairs]


def _assigned(mine: nn.Module, theirs: nn.Module) -> dict[str, Any]:
    buffers, known = private.buffers(mine), vars(mine)
    found = {
        name: value
        for name, value in vars(theirs).items()
        if name not in _OWN
        and name not in private.parameters(mine)
        and known.get(name) is not value
    }
    found |= {
        name: buffer
        for name, buffer in private.buffers(theirs).items()
        if buffer is not None and not _same_memory(buffer, buffers.get(name))
    }
    return {n: v.detach() if isinstance(v, Tensor) else v for n, v in found.items()}


def assign(module: nn.Module, kept: list[dict[str, Any]]) -> None:
    """Assigns the values that `assigned` returned to a module."""
    for part, values in zip(contents.modules(module), kept, strict=True):
        buffers = private.buffers(part)
        for name, value in values.items():
            (buffers if name in buffers else vars(part))[name] = value


def _keep_data(parameter: nn.Parameter | None, replicas: Any) -> None:
    if parameter is None or not isinstance(replicas, Tensor):
        return
    if not parameter.requires_grad or not _same_memory(replicas, parameter):
        parameter.data = replicas.detach()


def _same_memory(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.data_ptr() == b.data_ptr() and a.shape == b.shape


@dataclass(slots=True)
class BySamples:
    """Arguments of a call, of which only samples are split and gathered.

    Lists of samples, and tensors of other data, are replaced by sample numbers: torch
    splits these, and `part` restores the data. Tensors with samples in another
    dimension are transposed.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    whole: dict[str, Tensor] = field(default_factory=dict)
    lists: dict[Any, Any] = field(default_factory=dict)  # by position, or name
    transposed: dict[str, int] = field(default_factory=dict)  # by path: the dimension

    def rows(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments as torch is to split them."""
        size = _samples((*self.args, *self.kwargs.values()))
        named: dict[Any, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        self.lists = {
            key: value
            for key, value in named.items()
            if type(value) in (list, tuple) and len(value) == size
        }
        numbers = torch.arange(size)
        named |= dict.fromkeys(self.lists, numbers)

        def stand_in(path: str, t: Tensor) -> Tensor:
            dim = _dimension([t], [size])
            if dim is None:
                self.whole[path] = t
                return numbers
            if dim:
                self.transposed[path] = dim
            return t.movedim(dim, 0)

        args = tuple(named.pop(position) for position in range(len(self.args)))
        given: tuple[tuple[Any, ...], dict[str, Any]]
        given = tree.replace((args, named), stand_in)
        return given

    def part(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns a replica's arguments, from those that torch made of `rows`."""

        def given(path: str, t: Tensor) -> Tensor:
            return self.whole.get(path, t.movedim(0, self.transposed.get(path, 0)))

        args, kwargs = tree.replace((args, kwargs), given)
        named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for key, value in self.lists.items():
            named[key] = type(value)([value[n] for n in named[key].tolist()])
        return tuple(named.pop(n) for n in range(len(args))), named


def gathered(
    outputs: Sequence[Any], sizes: list[int], gather: Callable[[list[Any]], Any]
) -> Any:
    """Returns the outputs gathered along their dimension of samples.

    A tensor without one, of equal shape on all replicas, becomes their mean; single
    numbers are left to torch.

    Args:
        outputs: of the replicas.
        sizes: their numbers of samples.
        gather: torch's, along dimension 0.
    """
    flat = [dict(tree.tensors(output)) for output in outputs]
    transposed, means = dict[str, int](), dict[str, Tensor]()
    for path, first in flat[0].items():
        parts = [f[path] for f in flat if path in f]
        dim = _dimension(parts, sizes)
        if dim:
            transposed[path] = dim
        elif dim is None and not _is_one(first) and len({t.shape for t in parts}) == 1:
            means[path] = _mean([t.to(first.device) for t in parts], sizes)
    rows = [
        tree.replace(output, lambda path, t: t.movedim(transposed.get(path, 0), 0))
        for output in outputs
    ]

    def restored(path: str, t: Tensor) -> Tensor:
        return means.get(path, t.movedim(0, transposed.get(path, 0)))

    return tree.replace(gather(rows), restored)


def _dimension(parts: Sequence[Tensor], sizes: Sequence[int]) -> int | None:
    """Returns the dimension that samples lie in: the first one, else the only one."""
    dims = min((t.dim() for t in parts), default=0)
    fitting = [
        dim
        for dim in range(dims)
        if all(t.shape[dim] == n for t, n in zip(parts, sizes, strict=False))
    ]
    if fitting[:1] == [0]:
        return 0
    return fitting[0] if len(fitting) == 1 else None


def _samples(values: Sequence[Any]) -> int:
    """Returns the number of samples in a call: the rows of its first tensor.

    Or its first list items, where no argument is a tensor itself.
    """
    sizes = [len(v) for v in values if isinstance(v, Tensor) and v.dim()]
    sizes += [len(v) for v in values if isinstance(v, list | tuple)]
    return (sizes or [len(t) for t in tree.held(values) if t.dim()] or [1])[0]


def padded(outputs: Sequence[Any]) -> list[Any]:
    """Returns the outputs, tensors filled with zeros up to the longest of all."""
    flat = [dict(tree.tensors(output)) for output in outputs]

    def pad(path: str, t: Tensor) -> Tensor:
        shapes = [f[path].shape for f in flat]
        longest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        wanted = [t.shape[0], *longest[1:]] if t.dim() else []
        if list(t.shape) == wanted:
            return t
        room = [w - have for w, have in zip(wanted, t.shape, strict=True)]
        sides = [side for extra in reversed(room) for side in (0, extra)]
        return torch.nn.functional.pad(t, sides)

    return [tree.replace(output, pad) for output in outputs]


_SHARED = (list, dict, set)


class SharedObjects:
    """Lists, dicts and sets of a module that its replicas share."""

    def __init__(self, module: nn.Module) -> None:
        self._objects = [
            value
            for part in contents.modules(module)
            for name, value in vars(part).items()
            if name not in MODULES_OWN and type(value) in _SHARED
        ]
        self._before = list(map(copy.copy, self._objects))
        self._after: list[list[Any]] = []  # by replica

    def alone(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the call of a replica, with the objects as before all replicas."""

        def called(*args: Any, **kwargs: Any) -> Any:
            for held, before in zip(self._objects, self._before, strict=True):
                _fill(held, before)
            output = call(*args, **kwargs)
            self._after.append(list(map(copy.copy, self._objects)))
            return output

        return called

    def join(self, sizes: Sequence[int]) -> None:
        """Sets the objects as one process would: all rows, the mean of numbers."""
        for number, held in enumerate(self._objects):
            _fill(held, _joined([after[number] for after in self._after], sizes))


def _fill(held: Any, content: Any) -> None:
    held.clear()
    (held.extend if isinstance(held, list) else held.update)(content)


def _joined(versions: Sequence[Any], sizes: Sequence[int]) -> Any:
    first, last = versions[0], versions[-1]
    if isinstance(first, list) and len(set(map(len, versions))) == 1:
        return [_one(values, sizes) for values in zip(*versions, strict=True)]
    if isinstance(first, dict) and all(v.keys() == first.keys() for v in versions):
        return {key: _one([v[key] for v in versions], sizes) for key in first}
    return last


def _one(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Returns the rows of all replicas, the mean of numbers, or the last value."""
    last = values[-1]
    if not all(isinstance(value, Tensor) for value in values):
        return last
    each = list(zip(values, sizes, strict=True))
    if all(t.dim() and len(t) == size for t, size in each):
        return torch.cat(list(values))
    if last.dim() or not sum(sizes):
        return last
    return sum(t * size for t, size in each) / sum(sizes)
