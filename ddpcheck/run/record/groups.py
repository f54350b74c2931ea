"""Groups of tensors, one quantity of one step: their parts, a rank's rows, sums."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ddpcheck.compare.trace import PART
from ddpcheck.report.data import Quantity


def parts(references: dict[str, Tensor | None]) -> list[list[str]]:
    """Returns the names in parts of at most PART bytes, or one tensor."""
    parts: list[list[str]] = [[]]
    size = 0
    for name, tensor in references.items():
        needed = tensor.numel() * tensor.element_size() if tensor is not None else 0
        if parts[-1] and size + needed > PART:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += needed
    return parts


def present(*sides: Mapping[str, Tensor | None]) -> frozenset[str]:
    """Returns the names that have a tensor on any side: those that are compared."""
    return frozenset(n for side in sides for n, t in side.items() if t is not None)


def rows_of(
    whole: Tensor, shape: tuple[int, ...], rows: tuple[int, int, int]
) -> Tensor | None:
    """Returns the part of `whole` that a shard's tensor of `shape` stands for.

    Args:
        whole: of the global batch.
        shape: of the shard's tensor; one dimension is smaller, the samples (times
            whatever is flattened into it).
        rows: (first sample, samples of the shard, samples in all).

    Special values: None where no single dimension explains the two shapes; scalars
    have no samples, so they are None unless the shard is the whole batch.
    """
    start, size, total = rows
    if size == total:
        return whole if tuple(whole.shape) == shape else None
    if len(shape) != whole.dim():
        return None
    dims = [d for d in range(len(shape)) if shape[d] != whole.shape[d]]
    if len(dims) != 1:
        return None
    dim = dims[0]
    if whole.shape[dim] * size != shape[dim] * total:
        return None
    return whole.narrow(dim, whole.shape[dim] * start // total, shape[dim])


def add(first: Quantity, second: Quantity) -> Quantity:
    """Returns two groups of the same step as one."""
    rows = sorted(first.tensors + second.tensors, key=lambda r: -r.excess)
    candidates = [q.worst for q in (first, second) if q.worst]
    worst = max(candidates, key=lambda r: r.excess) if candidates else None
    return Quantity(
        compared=first.compared + second.compared,
        mismatched=first.mismatched + second.mismatched,
        worst=worst,
        tensors=tuple(rows),
        excess_by_step=(worst.excess,) if worst else (),
    )
