"""Which samples a model is given: a number for each, to compare processes by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ddpcheck import tree
from ddpcheck.run import private

_MOST = 512  # elements of a sample that are read: of a large one every k-th

Numbers = tuple[int, ...]  # of the samples of one call, in their order


def watch(model: nn.Module, told: Callable[[Numbers], None]) -> RemovableHandle:
    """Tells the numbers of the samples of every call of the model that trains.

    Not of calls in eval mode, nor of those that are compiled or transformed: there are
    no numbers to read.
    Returns what ends it.
    """
    return model.register_forward_pre_hook(_Watcher(told), with_kwargs=True)


class _Watcher:
    """A hook that a model may be saved with: what is loaded again watches nothing."""

    def __init__(self, told: Callable[[Numbers], None] | None = None) -> None:
        self.told = told

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self.told is None or not model.training:
            return
        if torch.is_grad_enabled() and not private.transforms():
            self.told(numbers((args, kwargs)))

    def __reduce__(self) -> tuple[type[_Watcher], tuple[()]]:
        return _Watcher, ()


def numbers(inputs: Any) -> Numbers:
    """Returns a number for each sample: equal ones are the same, bit by bit.

    Dimension 0 is the sample, as in the first tensor that has one; others of another
    length are no part of it. Empty where there is none, or none that can be read.
    """
    leaves = [t.detach() for _, t in tree.tensors(inputs) if _has_rows(t)]
    if not leaves:
        return ()
    size = len(leaves[0])
    try:
        columns = [_bytes(t) for t in leaves if len(t) == size]
    except (RuntimeError, TypeError, NotImplementedError):
        return ()  # a tensor of the target's own kind
    return tuple(_number(parts) for parts in zip(*columns, strict=True))


def _has_rows(tensor: Tensor) -> bool:
    return bool(tensor.dim()) and tensor.layout == torch.strided


def _bytes(tensor: Tensor) -> list[bytes]:
    flat = tensor.reshape(len(tensor), -1) if tensor.numel() else tensor[:, None]
    step = 1 + flat.shape[1] // _MOST
    flat = torch.view_as_real(flat) if flat.is_complex() else flat
    read = flat[:, ::step].contiguous().cpu()
    if not read.numel():
        return [b""] * len(tensor)
    return [bytes(row) for row in read.view(len(tensor), -1).view(torch.uint8).numpy()]


def _number(parts: tuple[bytes, ...]) -> int:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return int.from_bytes(found.digest(), "little")
