"""Interventions on nn.DataParallel: what its replicas, scatter and gather could do."""

from __future__ import annotations

from collections.abc import Sequence
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


def without_scalars(value: Any) -> tuple[Any, dict[str, Tensor]]:
    """Returns the value with its 0-dimensional tensors as rows, and these."""
    scalars = {path: t for path, t in tree.tensors(value) if t.dim() == 0}
    size = max((len(t) for t in tree.held(value) if t.dim()), default=1)

    def rows(path: str, t: Tensor) -> Tensor:
        return t.expand(size) if path in scalars else t

    return tree.replace(value, rows), scalars


def with_scalars(value: Any, scalars: dict[str, Tensor]) -> Any:
    """Returns a replica's part with the 0-dimensional tensors whole."""
    return tree.replace(value, scalars.get)


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
