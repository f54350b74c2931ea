"""Pairs the outputs of a rank with parts of the single-process outputs.

A tensor of the shard is paired with the rows of its samples. Some outputs are lists
with an item per sample: a detector returns a dictionary of boxes for each image. The
items of a rank's list are paired with those of the same samples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.run.spec import ONE_SIDED


def of_samples(
    mine: Iterable[str], theirs: Iterable[str], rows: tuple[int, int, int]
) -> set[str]:
    """Returns the paths of lists with an item per sample, "" for the root.

    Args:
        mine: paths of the tensors in a rank's output, as in `tree.tensors`.
        theirs: those in the single-process output.
        rows: (first sample, samples of the shard, samples in all).
    """
    _, size, total = rows
    if size == total:
        return set()
    own = _lengths(mine)
    if size not in own.values():
        return set()
    whole = _lengths(theirs)
    return {path for path, n in own.items() if n == size and whole.get(path) == total}


def counterparts(
    mine: Collection[str], theirs: Iterable[str], rows: tuple[int, int, int]
) -> dict[str, str]:
    """Returns the single-process path of each of a rank's tensors in such lists.

    The arguments are those of `of_samples`.
    """
    lists = of_samples(mine, theirs, rows)
    if not lists:
        return {}
    moved = {path: _moved(path, lists, rows[0]) for path in mine}
    return {path: other for path, other in moved.items() if other is not None}


def _lengths(paths: Iterable[str]) -> dict[str, int]:
    """Returns how many items every list has, by its path."""
    items: dict[str, set[int]] = {}
    for path in paths:
        for outer, part in _steps(path):
            if part.isdigit():
                items.setdefault(outer, set()).add(int(part))
    return {path: len(n) for path, n in items.items() if max(n) == len(n) - 1}


def _moved(path: str, lists: set[str], start: int) -> str | None:
    parts = [
        str(int(part) + start) if outer in lists and part.isdigit() else part
        for outer, part in _steps(path)
    ]
    is_within = any(outer in lists for outer, _ in _steps(path))
    return ".".join(parts) if is_within else None


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Yields (path of the container, name) for every part of a path."""
    parts = path.split(".")
    for number, part in enumerate(parts):
        yield ".".join(parts[:number]), part


Named = dict[str, Tensor | None]
Rows = tuple[int, int, int]  # (first sample, samples of the shard, samples in all)


def missing(
    named: Collection[str], references: Collection[str], rows: Rows
) -> set[str]:
    """Returns the single-process outputs that the rank's model does not return."""
    if len(named) >= len(references):
        return set()
    listed = of_samples(named, references, rows)
    return {
        name
        for name in references
        if name not in named and not tree.is_below(name, listed)
    }


def paired(
    named: Named, references: Named, rows: Rows
) -> tuple[Named, Named, dict[str, str]]:
    """Returns paired tensors of the rank and the reference, and the unpaired rest.

    The rest is a reason why it is not compared, by name.
    """
    mine: Named = {}
    theirs: Named = {}
    left_out: dict[str, str] = {}
    others = counterparts(named, references, rows)
    for name, tensor in named.items():
        reference = references.get(others.get(name, name))
        if tensor is None or reference is None:
            left_out[name] = ONE_SIDED
            continue
        if name in others:  # the tensor belongs to one sample
            part = reference if reference.shape == tensor.shape else None
        else:
            part = rows_of(reference, tuple(tensor.shape), rows)
        if part is None:
            left_out[name] = (
                f"shape {tuple(tensor.shape)} on a rank is not a part of "
                f"{tuple(reference.shape)} by samples"
            )
            continue
        mine[name], theirs[name] = tensor, part
    return mine, theirs, left_out


def rows_of(
    whole: Tensor, shape: tuple[int, ...], rows: tuple[int, int, int]
) -> Tensor | None:
    """Returns the rows of `whole` that correspond to a shard's tensor of `shape`.

    Args:
        whole: tensor of the global batch.
        shape: of the shard's tensor; one dimension is smaller: the samples (times
            dimensions flattened into it).
        rows: (first sample, samples of the shard, samples in all).

    Special values: None if the shapes do not differ in exactly one dimension by the
    ratio of samples. Scalars have no samples: None unless the shard is the whole batch.
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
