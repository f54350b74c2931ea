"""Digests of tensors: a few sums, to compare ranks with each other."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ddpcheck.compare.trace import as_dense

_CHUNK = 1 << 17  # elements summed at once: 1 MiB of float64, a core's cache
# In digests, for NaN, infinity and its negative; and what sums of squares can hold.
_STAND_INS = (1.2345, 2.3456, -3.4567)
_LARGEST_SUMMED = 1e140
# Up to this many elements all tensors of a digest are concatenated.
_FEW = 1 << 14


def digest(tensors: Mapping[str, Tensor | None]) -> tuple[float, ...]:
    """Returns numbers that are equal on two ranks whose tensors are equal.

    Weighted sums, not a hash: ranks whose tensors differ by rounding have digests
    that differ by rounding. The last number is the magnitude to compare them by. All
    are finite, even for NaN and infinity, so that differences are defined.
    """
    held = {
        position: as_dense(tensor).reshape(-1)
        for position, tensor in enumerate(tensors.values(), start=1)
        if tensor is not None and tensor.numel()
    }
    if sum(map(len, held.values())) <= _FEW:
        return _digest_of_few(held)
    linear = square = top = 0.0
    for position, whole in held.items():
        half = len(whole) // 2
        for start in range(0, len(whole), _CHUNK):
            flat = _summable(whole[start : start + _CHUNK].to(torch.float64))
            first = flat[: max(0, half - start)]
            squares = float(torch.dot(flat, flat))
            linear += position * float(flat.sum()) + float(first.sum())
            square += position * squares
            top += position * (float(flat.abs().sum()) + squares)
    return linear, square, top


def _digest_of_few(held: Mapping[int, Tensor]) -> tuple[float, ...]:
    """Returns the digest of tensors by position, in a few operations.

    By torch, whose memory has a fixed alignment: sums by numpy are not bitwise
    reproducible.
    """
    if not held:
        return 0.0, 0.0, 0.0
    flat = torch.cat([tensor.to(torch.float64) for tensor in held.values()])
    values = _summable(flat)
    weights, positions = _weights(tuple((p, len(t)) for p, t in held.items()))
    linear, square = torch.dot(weights, values), torch.dot(positions, values * values)
    top = torch.dot(positions, values.abs()) + square
    return float(linear), float(square), float(top)


@functools.lru_cache(maxsize=8)
def _weights(
    lengths: tuple[tuple[int, int], ...],
) -> tuple[Tensor, Tensor]:
    """Returns the weights of elements and of their squares, from (position, length).

    By numpy, which is independent of torch's default device.
    """
    counts = [length for _, length in lengths]
    positions = np.repeat([float(position) for position, _ in lengths], counts)
    first = np.concatenate([np.arange(count) < count // 2 for count in counts])
    weights = positions + first
    return torch.from_numpy(weights).clone(), torch.from_numpy(positions).clone()


def _summable(flat: Tensor) -> Tensor:
    """Returns finite numbers, whose squares can be summed."""
    finite = flat.nan_to_num(*_STAND_INS)
    return finite.clamp_(-_LARGEST_SUMMED, _LARGEST_SUMMED)
