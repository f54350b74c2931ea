"""A rank's outputs beside the parts of one process's that they stand for."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.run.record import groups, lists
from ddpcheck.run.spec import ONE_SIDED

Named = dict[str, Tensor | None]
Rows = tuple[int, int, int]  # (first sample, samples of the shard, samples in all)


def missing(
    named: Collection[str], references: Collection[str], rows: Rows
) -> set[str]:
    """Returns the outputs of one process that the rank's model does not return."""
    if len(named) >= len(references):
        return set()
    listed = lists.of_samples(named, references, rows)
    return {
        name
        for name in references
        if name not in named and not tree.is_below(name, listed)
    }


def paired(
    named: Named, references: Named, rows: Rows
) -> tuple[Named, Named, dict[str, str]]:
    """Returns the leaves that are parts of the reference's, those parts, and the rest.

    The rest by name, with the reason why it is not compared.
    """
    mine: Named = {}
    theirs: Named = {}
    left_out: dict[str, str] = {}
    others = lists.counterparts(named, references, rows)
    for name, tensor in named.items():
        reference = references.get(others.get(name, name))
        if tensor is None or reference is None:
            left_out[name] = ONE_SIDED
            continue
        if name in others:  # all of it is one sample's
            part = reference if reference.shape == tensor.shape else None
        else:
            part = groups.rows_of(reference, tuple(tensor.shape), rows)
        if part is None:
            left_out[name] = (
                f"shape {tuple(tensor.shape)} on a rank is no part of "
                f"{tuple(reference.shape)} by samples"
            )
            continue
        mine[name], theirs[name] = tensor, part
    return mine, theirs, left_out
