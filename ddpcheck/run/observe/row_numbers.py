"""Which samples a model is given: a number for each, to compare processes by."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ddpcheck.compare import tree
from ddpcheck.run import private

_MOST = 512  # elements of a sample that are read: of a large one every k-th
_MOST_ROWS = 1 << 16  # samples of a call, in Python one by one

Numbers = tuple[int, ...]  # of the samples of one call, in their order


def watch(model: nn.Module, told: Callable[[Numbers], None]) -> RemovableHandle:
    """Tells the numbers of the samples of every call of the model that trains.

    Not of calls in eval mode, nor of those that are compiled or transformed: there are
    no numbers to read.
    Returns what ends it.
    """
    return nn.Module.register_forward_pre_hook(model, _Watcher(told), with_kwargs=True)


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

    Dimension 0 is the sample, of the length that most tensors have, or the longest.
    Empty where there is none, or none that can be read.
    """
    if isinstance(inputs, tree.Collated):  # padded otherwise beside other samples
        return tuple(map(_of_sample, inputs.samples))
    with contextlib.suppress(Exception):  # tensors of the target's own kind
        leaves = [t.detach() for t in tree.held(inputs) if _has_rows(t)]
        lengths = Counter(len(t) for t in leaves)
        size = max(lengths, key=lambda n: (lengths[n], n), default=0)
        if size <= _MOST_ROWS:
            columns = [_bytes(t) for t in leaves if len(t) == size]
            return tuple(_number(parts) for parts in zip(*columns, strict=True))
    return ()


def _of_sample(sample: Any) -> int:
    parts = [_bytes(t.detach().reshape(1, -1))[0] for t in tree.held(sample)]
    return _number(tuple(parts) if parts else (repr(sample).encode(),))


def _has_rows(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and bool(tensor.dim())


def _bytes(tensor: Tensor) -> list[bytes]:
    """Returns what is read of each sample; elements are chosen before any is copied."""
    if not tensor.numel():
        return [b""] * len(tensor)
    inner = tensor.numel() // len(tensor)
    at = torch.arange(0, inner, 1 + inner // _MOST)
    index = torch.unravel_index(at, tensor.shape[1:]) if tensor.dim() > 1 else ()
    where: list[Any] = [slice(None), *(i.to(tensor.device) for i in index)]
    read = tensor[tuple(where)]
    read = torch.view_as_real(read) if read.is_complex() else read
    flat = read.contiguous().cpu().view(len(tensor), -1)
    return [bytes(row) for row in flat.view(torch.uint8).numpy()]


def _number(parts: tuple[bytes, ...]) -> int:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return int.from_bytes(found.digest(), "little")
