"""Counts in the targets that a loss may divide by: their names, and how to count.

A local normalizer shows as a ratio N / n_r per rank; n_r is searched among these
counts. A name is "PATH KIND [VALUE]", e.g. "labels != -100"; messages show it, and the
intervention counts by it in every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.run.spec import SAMPLES
from ddpcheck.target.target import Target

_SHIFTED = "[:, 1:]"
_FEWEST = 4  # samples: a factor 1/2 need not be a mean of two
_MAX_VALUES = 12  # distinct integer values tried as an ignore value


def targets_of(target: Target, batch: Any) -> Any:
    """Returns the data in which a loss may count: targets and inputs, or the batch.

    A loss inside forward counts in the inputs (Hugging Face's `labels=`).
    """
    if isinstance(batch, tree.Collated):
        return batch.mapped(lambda made: targets_of(target, made))
    pair = isinstance(batch, tuple | list) and len(batch) == 2  # noqa: PLR2004
    if pair and target.train_step is None:
        return {"target": batch[1], "input": batch[0]}
    return {"batch": batch}


def names(targets: Any) -> Iterator[str]:
    """Yields the names of all counts in (a shard of) the targets."""
    yield SAMPLES
    for path, held in tree.tensors(targets):
        name, leaf = path or "target", tree.dense(held)
        if leaf.is_floating_point():
            if leaf.isnan().any():
                yield f"{name} not NaN"
            yield f"{name} sum"
            yield f"{name} != 0"
            continue
        if leaf.dtype == torch.bool:
            yield f"{name} sum"
            yield f"{name} == 0"
            continue
        for value in leaf.unique()[:_MAX_VALUES].tolist():
            yield f"{name} != {value}"
            yield f"{name} == {value}"
            if leaf.dim() > 1:
                # Language models shift the labels: the first token is never predicted.
                yield f"{name}{_SHIFTED} != {value}"
        yield f"{name} sum"


def count(name: str, targets: Any) -> float:
    """Returns the count of a name; 0 if the targets have no such leaf."""
    if name == SAMPLES:
        return float(samples(targets))
    path, kind = _split(name)
    shifted = path.endswith(_SHIFTED)
    for found, leaf in tree.tensors(targets):
        if (found or "target") == path.removesuffix(_SHIFTED):
            values = tree.dense(leaf)
            return _count(values[:, 1:] if shifted else values, kind)
    return 0.0


def part(targets: Any, size: int, rows: slice | Tensor) -> Any:
    """Returns the targets of some samples, cut from leaves with `size` rows."""
    if isinstance(targets, tree.Collated):
        return targets.rows(rows)
    return tree.replace(
        targets,
        lambda _, t: tree.rows_of(t, rows) if t.dim() and len(t) == size else t,
    )


def totals(targets: Any) -> set[int]:
    """Returns the numbers of samples and of elements that a mean may divide by.

    Small numbers, by which a loss may divide for other reasons, are left out.
    """
    found = {samples(targets), *(t.numel() for t in tree.held(targets))}
    return {n for n in found if n >= _FEWEST}


def samples(targets: Any) -> int:
    """Returns the number of samples, by default the longest dimension 0."""
    known = tree.num_samples(targets)
    if known is not None:
        return known
    return max((len(t) for t in tree.held(targets) if t.dim()), default=0)


def _split(name: str) -> tuple[str, str]:
    for kind in (" not NaN", " sum", " != ", " == "):
        path, found, rest = name.partition(kind)
        if found:
            return path, found + rest
    return name, ""


def _count(leaf: Tensor, kind: str) -> float:
    if kind == " not NaN":
        return float((~leaf.isnan()).sum())
    if kind == " sum":
        return float(leaf.nan_to_num().double().sum())
    value = float(kind[4:])
    same = leaf == value
    return float((same if kind.startswith(" ==") else ~same).sum())
