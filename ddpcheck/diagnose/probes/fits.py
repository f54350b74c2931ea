"""How a gradient on a rank relates to the reference's: factors, and what they leave."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EXACT = 0.05
_NOTHING = 1e-12  # of the largest row's gradient on either side
_VISIBLE = 1e-6  # of the largest column's
_SUMS = 1e-6  # of the largest entry
_FITS = 1e-4  # of a gradient, beside one factor
_ENTRIES = 2**20  # of scores that are looked at


def row_sum(tensor: Tensor) -> float:
    """Returns the largest sum over the last dimension, relative to the largest entry.

    0 for what came back through a softmax over that dimension.
    """
    top = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not top or not math.isfinite(top):
        return math.inf
    return float(tensor.sum(-1).abs().max()) / top


def selects(grad: Tensor, rows: Tensor) -> bool:
    """Returns whether some rows, or places in them, have a gradient on one side alone.

    What a count divides has the same rows on both; what is chosen among others has not.
    Where each side has all rows or none, nothing is chosen: a term may vanish.
    """
    if grad.dim() == 0 or not grad.numel() or grad.shape != rows.shape:
        return False
    mine, theirs = (
        t.detach().double().abs().nan_to_num(0.0).reshape(len(t), -1).amax(1)
        for t in (grad, rows)
    )
    least = _NOTHING * torch.maximum(mine.max(), theirs.max())  # less is rounding
    has_mine, has_theirs = mine > least, theirs > least
    if not bool(has_mine.any()):
        return False  # a shard with nothing to count
    is_partly = any(
        bool(has.any()) and not bool(has.all()) for has in (has_mine, has_theirs)
    )
    return (is_partly and bool((has_mine != has_theirs).any())) or any(
        _chooses(grad, rows, classes)
        for classes in (1, -1)
        if grad.dim() > 2  # noqa: PLR2004
    )


def _chooses(grad: Tensor, rows: Tensor, classes: int) -> bool:
    """Returns whether a pixel or a token has a gradient on one side alone.

    classes: the dimension that is none of places. What is left out has exactly 0.
    """
    mine, theirs = (
        t.detach().abs().amax(classes).double().nan_to_num(0.0) for t in (grad, rows)
    )
    least = _VISIBLE * min(float(mine.max()), float(theirs.max()))
    lost = (mine == 0) & (theirs > least) & _is_elsewhere(mine > 0)
    gained = (mine > least) & (theirs == 0) & _is_elsewhere(theirs > 0)
    return bool(((mine > 0) & (theirs > 0)).any()) and bool((lost | gained).any())


def _is_elsewhere(has: Tensor) -> Tensor:
    """Returns where each index, of every dimension but the samples', has some entry.

    A class that a shard has none of may lose its weight, and with it all of its places.
    """
    found = torch.ones_like(has)
    for dim in range(1, has.dim()):
        others = [d for d in range(has.dim()) if d != dim]
        found &= has.any(others, keepdim=True)
    return found


def selects_columns(grad: Tensor, rows: Tensor) -> bool:
    """Returns whether a softmax takes some columns on one side, and not on the other.

    Those of the classes that are there: other columns have a gradient on both sides. A
    weight of a class may be 0, too, but such gradients add up to 0 over the columns.
    """
    if max(row_sum(grad), row_sum(rows)) > _SUMS:
        return False
    if grad.dim() < 2 or not grad.numel() or grad.shape != rows.shape:  # noqa: PLR2004
        return False
    mine, theirs = (
        t.detach().double().abs().nan_to_num(0.0).reshape(len(t), -1).amax(0)
        for t in (grad, rows)
    )
    in_both = (mine > 0) & (theirs > 0)
    least = _VISIBLE * theirs.max()
    lost, gained = (mine == 0) & (theirs > least), (mine > least) & (theirs == 0)
    return bool(in_both.any()) and bool((lost | gained).any())


def row_spread(tensor: Tensor) -> float:
    """Returns how far rows are from their mean, relative to the largest entry."""
    top = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not top or not math.isfinite(top) or tensor.dim() < 2:  # noqa: PLR2004
        return math.inf
    rows = tensor.reshape(-1, tensor.shape[-1])
    return float((rows - rows.mean(0)).abs().max()) / top


def share_spread(grad: Tensor, scores: Tensor) -> float:
    """Returns the spread of rows of the gradient at softmax(scores); inf without one.

    From p (v - <p, v>) at the scores v follows but for a constant. Of a vocabulary some
    tokens will do.
    """
    if scores.dim() < 2 or row_sum(grad) > _SUMS:  # noqa: PLR2004
        return math.inf
    size = scores.shape[-1]
    some = max(2, _ENTRIES // size)
    shares = scores.detach().reshape(-1, size)[:some].double().softmax(-1)
    at_shares = grad.reshape(-1, size)[:some].double() / shares
    return row_spread(at_shares - at_shares.mean(-1, keepdim=True))


def are_probabilities(tensor: Tensor) -> bool:
    """Returns whether no value is below 0, and the last dimension adds up to 1."""
    if tensor.dim() < 2 or not tensor.numel():  # noqa: PLR2004
        return False
    values = tensor.detach().double()
    return bool((values >= 0).all() and ((values.sum(-1) - 1).abs() <= _SUMS).all())


def unmixed(grad: Tensor, once: Tensor, twice: Tensor, world_size: int) -> float:
    """Returns what is left, relative, if one part is of a mean and one of a sum.

    With the batch taken twice a mean's gradient a halves and a sum's b stays: they are
    2 (once - twice) and 2 twice - once. On a rank they are W a and b.
    """
    mean, total = 2 * (once - twice), 2 * twice - once
    left = (grad - (world_size * mean + total)).double().norm()
    size = float(grad.double().norm())
    return float(left) / size if size else math.inf


def doubling(twice: Tensor, once: Tensor) -> float | None:
    """Returns 2 for a sum, 1 for a mean; None where no one factor fits."""
    ratio, residual, norm = fit(twice, once)
    return 2 * ratio if norm and residual < _EXACT else None


def fit(mine: Tensor, reference: Tensor) -> tuple[float, float, float]:
    """Returns (ratio, residual, norm of the reference) of mine ~ ratio * reference."""
    a = mine.detach().double().reshape(-1)
    b = reference.detach().double().reshape(-1)
    if not bool(torch.isfinite(a).all()):
        return float("nan"), float("inf"), float(b.norm())
    square = float(torch.dot(b, b))
    if square == 0:
        return 0.0, 0.0 if not float(a.abs().max()) else float("inf"), 0.0
    ratio = float(torch.dot(a, b)) / square
    left = float((a - ratio * b).norm())
    size = max(float(a.norm()), square**0.5)
    return ratio, left / size, square**0.5


def one_factor(once: dict[str, Tensor], both: dict[str, Tensor]) -> float | None:
    """Returns both / once where one factor fits all of the tensors, else None."""
    shared = [(once[n].double(), both[n].double()) for n in once if n in both]
    dot = sum(float((a * b).sum()) for a, b in shared)
    square = sum(float(t.double().pow(2).sum()) for t in once.values())
    if not square:
        return None
    ratio = dot / square
    left = sum(float((b - ratio * a).pow(2).sum()) for a, b in shared)
    return ratio if left <= (_FITS * ratio) ** 2 * square else None
