"""Samples of a batch: parts that cannot be sharded, and a number for each sample.

Ranks that all train on the whole batch equal the single-process run, so a comparison
would not reveal it. The numbers identify samples across processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ddpcheck.compare import tree
from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.run import private
from ddpcheck.target.target import Target

_DEPTH = 3  # of attributes that are searched
_SHARED = (nn.Module, torch.optim.Optimizer, torch.Generator)  # never samples


def check_divisible(target: Target, batch: Any, size: int) -> None:
    """Raises if a part of a batch of `size` samples is no tensor but holds samples.

    Raises:
        UsageError: target-batch-undivided.
    """
    if tree.num_samples(batch) is not None:
        return  # a list of samples can be sharded
    for path, value in tree.leaves(batch):
        if not isinstance(value, _SHARED) and _holds_numbers(value):
            found = f"{type(value).__name__}, which holds tensors or arrays"
            raise _undivided(target, path, found)
    for path, items in tree.lists(batch):
        if len(items) == size and _is_per_sample(path, items):
            found = f"a list of {size}, the first a {type(items[0]).__name__}"
            raise _undivided(target, path, found)


def named_lists(batches: list[Any], sizes: list[int]) -> list[str]:
    """Returns the names of lists with as many numbers as samples in some step."""
    paths = {
        path: None
        for batch, size in zip(batches, sizes, strict=True)
        for path in lists_of_numbers(batch, size)
    }
    return [tree.batch_name(path) for path in paths]


def lists_of_numbers(batch: Any, size: int) -> list[str]:
    """Returns the paths of lists with as many numbers as samples.

    The numbers may or may not be one per sample. Rows of a list of lists do not count.
    """
    if tree.num_samples(batch) is not None:
        return []
    found = {path: items for path, items in tree.lists(batch) if len(items) == size}
    return [
        path
        for path, items in found.items()
        if all(isinstance(item, int | float) for item in items)
        and path.rpartition(".")[0] not in found
    ]


def _is_per_sample(path: str, items: list[Any]) -> bool:
    """Returns whether a list with as many items as samples has one per sample.

    True for strings, rows of different lengths, and numbers in the targets; not for
    numbers or None in the inputs, which may be strides or a cache.
    """
    if all(isinstance(item, str | bytes) for item in items):
        return True
    if all(isinstance(item, list) for item in items):
        return len({len(item) for item in items}) > 1 and not any(tree.tensors(items))
    numbers = all(isinstance(item, int | float) for item in items)
    return numbers and path.partition(".")[0] == "1"


def _holds_numbers(value: Any, depth: int = _DEPTH) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    if depth == 0 or isinstance(value, type):
        return False
    inside = tree.tensors(value) if tree.is_container(value) else iter(())
    return any(True for _ in inside) or any(
        _holds_numbers(part, depth - 1) for part in _attributes(value)
    )


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(value, name, None)


def _undivided(target: Target, path: str, found: str) -> UsageError:
    return usage_error(
        slug="target-batch-undivided",
        message=f"{target.name}: {tree.batch_name(path)} cannot be cut into shards",
        expected="tensors whose dimension 0 is the sample, in tuples and dicts",
        found=found,
        fix="pad and stack it, or let the batch hold sample numbers "
        "(torch.arange) that the model looks up",
    )


_MOST_ELEMENTS = 512  # elements read per sample: of a large one every k-th
_MOST_ROWS = 1 << 16  # samples of a call, hashed one by one in Python

Numbers = tuple[int, ...]  # of the samples of one call, in their order


def watch_samples(model: nn.Module, note: Callable[[Numbers], None]) -> RemovableHandle:
    """Calls `note` with the sample numbers of every training call of the model.

    Calls in eval mode, compiled calls and those under torch.func are skipped: their
    inputs cannot be read. So are those that the model makes of itself, as a model of
    Lightning does in training_step: one call has the samples. Returns the handle of the
    hook.
    """
    return nn.Module.register_forward_pre_hook(model, _Watcher(note), with_kwargs=True)


class _Watcher:
    """A hook that can be pickled with its model; the loaded hook does nothing."""

    def __init__(self, note: Callable[[Numbers], None] | None = None) -> None:
        self.note = note

    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self.note is None or not model.training:
            return
        is_seen = torch.is_grad_enabled() and not private.transforms()
        if is_seen and not _is_within_own_call(model):
            self.note(sample_numbers((args, kwargs)))

    def __reduce__(self) -> tuple[type[_Watcher], tuple[()]]:
        return _Watcher, ()


def _is_within_own_call(model: nn.Module) -> bool:
    """Returns whether the call of the model that begins is inside another of it."""
    code: Any = inspect.unwrap(nn.Module.__call__).__code__
    calls, frame = 0, inspect.currentframe()
    while frame is not None:
        calls += frame.f_code is code and frame.f_locals.get("self") is model
        frame = frame.f_back
    return calls > 1


def sample_numbers(inputs: Any) -> Numbers:
    """Returns a number for each sample; bitwise equal samples have equal numbers.

    Dimension 0 is the sample, of the length that most tensors have, or the longest.
    Empty without samples, or if they cannot be read.
    """
    if isinstance(inputs, tree.Collated):  # the padding depends on the other samples
        return tuple(map(_of_sample, inputs.samples))
    with contextlib.suppress(Exception):  # tensor subclasses of the target
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
    """Returns bytes of each sample; elements are selected before they are copied."""
    if not tensor.numel():
        return [b""] * len(tensor)
    inner = tensor.numel() // len(tensor)
    at = torch.arange(0, inner, 1 + inner // _MOST_ELEMENTS)
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
