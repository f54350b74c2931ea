"""Rows of a shard that lie in the whole batch's tensor in no regular order.

A graph's messages are those of its edges, then those of its nodes' loops: neither the
rows of a sample nor blocks of all samples lie together. Each row is looked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SAME = 1e-6  # relative to the largest value


def positions(actual: Tensor, whole: Tensor, dim: int, *, once: bool) -> Tensor | None:
    """Returns where each row of `actual` lies in `whole`, a row being along `dim`.

    Special values: None where a row is not there; with `once`, where it is not the only
    one like it, too.
    """
    mine, theirs = (
        t.detach().movedim(dim, 0).flatten(1).double() for t in (actual, whole)
    )
    scale = float(theirs.abs().max()) if theirs.numel() else 0.0
    if not (scale > 0 and bool(theirs.isfinite().all() & mine.isfinite().all())):
        return None
    # One number for each row, by which rows are sorted and found.
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(mine.shape[1], generator=generator, dtype=torch.float64)
    keys, order = (theirs @ weights).sort()
    near = _SAME * scale * float(weights.sum())
    wanted = mine @ weights
    first = torch.searchsorted(keys, wanted - near)
    last = torch.searchsorted(keys, wanted + near, right=True)
    num_alike = last - first
    if bool((num_alike < 1).any()) or (once and bool((num_alike > 1).any())):
        return None
    found = order[first]
    is_same = (theirs[found] - mine).abs().max() <= _SAME * scale
    return found if bool(is_same) else None
