"""Interventions on nn.DataParallel: what its replicas, scatter and gather could do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck import tree
from ddpcheck.run import private

# What replicate sets up on every module anew, and torch's own bookkeeping.
_OWN = (vars(nn.Module()).keys() - {"training"}) | {"_former_parameters", "_is_replica"}


def fill_parameters(replica: nn.Module) -> None:
    """Gives a replica's modules the parameters that replicate made attributes."""
    for module in replica.modules():
        own = vars(module).get("_former_parameters", {})
        for name, tensor in own.items():
            private.parameters(module)[name] = tensor


def with_mean_scalars(outputs: Sequence[Any], sizes: list[int]) -> list[Any]:
    """Returns the outputs, every scalar the mean over replicas by their samples."""
    flat = [dict(tree.tensors(output)) for output in outputs]

    def mean(path: str, t: Tensor) -> Tensor:
        if t.numel() != 1:
            return t
        parts = [
            f[path].to(t.device) * size for f, size in zip(flat, sizes, strict=True)
        ]
        return torch.stack(parts).sum(0) / sum(sizes)

    return [tree.replace(output, mean) for output in outputs]


def first_scalars(gathered: Any, one: Any) -> Any:
    """Returns what was gathered, with one scalar for every vector of scalars."""
    scalars = {path: t for path, t in tree.tensors(one) if t.numel() == 1}
    return tree.replace(gathered, scalars.get)


def keep_state(module: nn.Module, replica: nn.Module) -> None:
    """Gives a module what its replica assigned to itself.

    Attributes, buffers, and the data of parameters that are not trained.
    """
    kept = assigned(module, replica)
    for mine, theirs in zip(module.modules(), replica.modules(), strict=True):
        for name, parameter in private.parameters(mine).items():
            _keep_data(parameter, vars(theirs).get(name))
    assign(module, kept)


def assigned(module: nn.Module, replica: nn.Module) -> list[dict[str, Any]]:
    """Returns the attributes and buffers that a replica assigned, module by module."""
    pairs = zip(module.modules(), replica.modules(), strict=True)
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
    """Gives a module what `assigned` returned."""
    for part, values in zip(module.modules(), kept, strict=True):
        buffers = private.buffers(part)
        for name, value in values.items():
            (buffers if name in buffers else vars(part))[name] = value


def _keep_data(parameter: nn.Parameter | None, replicas: Any) -> None:
    if parameter is None or parameter.requires_grad:
        return
    if isinstance(replicas, Tensor):
        parameter.data = replicas.detach()


def _same_memory(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.data_ptr() == b.data_ptr() and a.shape == b.shape


@dataclass(slots=True)
class BySamples:
    """The arguments of a call, of which samples alone are to be split.

    What stands for a list of samples, or for a tensor of something else, are numbers of
    samples: torch splits these, and `part` puts the rest back.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    whole: dict[str, Tensor] = field(default_factory=dict)
    lists: dict[Any, Any] = field(default_factory=dict)  # by position, or name

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
            if t.dim() and len(t) == size:
                return t
            self.whole[path] = t
            return numbers

        args = tuple(named.pop(position) for position in range(len(self.args)))
        given: tuple[tuple[Any, ...], dict[str, Any]]
        given = tree.replace((args, named), stand_in)
        return given

    def part(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns a replica's arguments, from those that torch made of `rows`."""
        args, kwargs = tree.replace((args, kwargs), self.whole.get)
        named: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for key, value in self.lists.items():
            named[key] = type(value)([value[n] for n in named[key].tolist()])
        return tuple(named.pop(n) for n in range(len(args))), named


def _samples(values: Sequence[Any]) -> int:
    """Returns how many samples a call is given: as many as its first tensor has rows.

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
