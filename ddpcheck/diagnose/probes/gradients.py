"""A rank's gradients at the cuts, and past them, against the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator

import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.diagnose.probes.cuts import Leaf
from ddpcheck.diagnose.probes.evidence import Cut, Direct, of_trace
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.observe import addends

# (quantity, cut) -> the reference's tensor, micro-batches put together
RecordedAt = Callable[[str, Leaf], Tensor | None]
# Quantities of the trace: gradients of one addend, and on the batch taken twice.
_ADDEND, _TWICE = "addend", "addend twice"
Dim = Callable[[str, Tensor], int]  # where the samples of a key's tensor are
_EXACT = 0.05
_NOTHING = 1e-12  # of the largest row's gradient on either side
_VISIBLE = 1e-6  # of the largest column's
_SUMS = 1e-6  # of the largest entry
_FITS = 1e-4  # of a gradient, beside one factor
_ENTRIES = 2**20  # of scores that are looked at


def at_cuts(
    leaves: list[Leaf],
    recorded: RecordedAt,
    reader: Reader,
    world_size: int,
    factor: float,
) -> Iterator[Cut]:
    """Yields what the loss's gradient at each cut is like.

    Args:
        leaves: the cuts of one step, after its backward.
        recorded: what the reference had.
        reader: of the reference's trace.
        world_size: number of ranks.
        factor: by which the step multiplies gradients after backward.
    """
    for leaf in leaves:
        reference = recorded("cut", leaf)
        mine = leaf.tensor.grad
        if reference is None and mine is None:
            continue
        if reference is None:
            reference = torch.zeros(1).expand_as(leaf.tensor)
            rows = reference
        else:
            rows = leaf.rows(reference)
        grad = torch.zeros_like(leaf.tensor) if mine is None else mine * factor
        ratio, residual, norm = fit(grad, rows)
        doubled = recorded("doubled", leaf)
        yield Cut(
            mixed=math.inf
            if doubled is None
            else unmixed(grad, rows, leaf.rows(doubled), world_size),
            doubled=None if doubled is None else doubling(leaf.rows(doubled), rows),
            on_the_way=leaf.key in of_trace(reader.index)["on_the_way"],
            row_sum=row_sum(grad - world_size * rows),
            row_spread=row_spread(grad),
            share_spread=share_spread(grad, leaf.tensor),
            are_probabilities=are_probabilities(leaf.tensor),
            selects=selects(grad, rows),
            selects_columns=selects_columns(grad, rows),
            key=leaf.key,
            module=leaf.module,
            micro=leaf.micro,
            ratio=ratio,
            residual=residual,
            norm=norm,
        )


def past_cuts(model: nn.Module, reader: Reader) -> Iterator[Direct]:
    """Yields what parameters get from the loss past all cuts."""
    names = set(reader.names("direct", 0))
    short = shortener(model)
    for path, parameter in contents.named_parameters(model):
        name = short(path)
        if name not in names:
            continue
        reference = reader.get("direct", 0, name)
        if reference is None:
            continue
        grad = parameter.grad
        mine = torch.zeros_like(reference) if grad is None else grad.to_dense()
        if mine.is_complex():
            mine = torch.view_as_real(mine)
        ratio, residual, norm = fit(mine, reference)
        yield Direct(name=name, ratio=ratio, residual=residual, norm=norm)


def of_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Returns the gradients that parameters have, dense and real."""
    return {
        n: torch.view_as_real(p.grad) if p.grad.is_complex() else p.grad.to_dense()
        for n, p in contents.named_parameters(model)
        if p.grad is not None
    }


def past_all_cuts(model: nn.Module) -> dict[str, Tensor | None]:
    """Returns the gradients that reached parameters though all outputs were cut."""
    return {
        n: p.grad
        for n, p in contents.named_parameters(model)
        if p.grad is not None and bool(p.grad.to_dense().any())
    }


class Addends:
    """The reference's addends, in a step whose backwards are all of the same loss.

    `kinds`: what computes each; empty for a loss that is no sum, or for several losses.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._kinds: tuple[str, ...] | None = None  # until a backward
        self._dim: Dim | None = None  # of the batch taken twice

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the operations that compute each addend."""
        return self._kinds or ()

    def note(self, loss: Tensor, outputs: dict[str, Tensor]) -> None:
        """Writes each addend's gradient at these outputs, by key."""
        if not outputs:
            return
        if self._dim is not None:
            self._note_halves(loss, outputs, self._dim)
            return
        kinds = tuple(addends.kinds(loss))
        if self._kinds not in (None, kinds):
            self._kinds = ()  # those of another loss, too
            return
        for number, found in enumerate(_of_each(loss, outputs)):
            mine = ((key, g) for key, g in found.items() if g is not None)
            self._writer.add(_ADDEND, number, mine)
        self._kinds = kinds

    def is_twice(self, dim: Dim | None) -> None:
        """Counts the following gradients as the repeated batch's; None ends it."""
        self._dim = dim

    @property
    def takes_twice(self) -> bool:
        """Whether they are still to come."""
        return self._dim is not None

    def _note_halves(self, loss: Tensor, outputs: dict[str, Tensor], dim: Dim) -> None:
        for number, found in enumerate(_of_each(loss, outputs)):
            halves = {
                key: grad.narrow(dim(key, grad), 0, grad.shape[dim(key, grad)] // 2)
                for key, grad in found.items()
                if grad is not None
            }
            self._writer.add(_TWICE, number, halves.items())


def of_addends(
    loss: Tensor,
    leaves: list[Leaf],
    reader: Reader,
    earlier: tuple[tuple[Cut, ...], ...] | None,
) -> tuple[tuple[Cut, ...], ...]:
    """Returns the gradient of each addend of the loss against the reference, by output.

    `earlier`: the same of the step's earlier backwards, None for the first. () for
    another loss than the reference's.
    """
    if earlier == ():
        return ()
    known = of_trace(reader.index)["addends"]
    if not (leaves and known) or len(addends.nodes(loss)) != len(known):
        return ()
    before = earlier or ((),) * len(known)
    told = {cut.key for cuts in before for cut in cuts}
    every = addends.gradients(loss, [leaf.tensor for leaf in leaves])
    return tuple(
        (*before[number], *_at_outputs(leaves, found, reader, number, told))
        for number, found in enumerate(every)
    )


def _of_each(
    loss: Tensor, outputs: dict[str, Tensor]
) -> Iterator[dict[str, Tensor | None]]:
    for found in addends.gradients(loss, list(outputs.values())):
        yield dict(zip(outputs, found, strict=True))


def _at_outputs(
    leaves: list[Leaf],
    found: list[Tensor | None],
    reader: Reader,
    number: int,
    told: Container[str],
) -> Iterator[Cut]:
    """Yields what an addend is like; `told`: the keys of another backward's outputs."""
    for leaf, grad in zip(leaves, found, strict=True):
        if grad is None and leaf.key in told:
            continue
        reference = reader.find(_ADDEND, number, leaf.key)
        if reference is None and grad is None:
            continue
        nothing = torch.zeros_like(leaf.tensor)
        rows = nothing if reference is None else leaf.rows(reference)
        mine = nothing if grad is None else grad
        twice = reader.find(_TWICE, number, leaf.key)
        ratio, residual, norm = fit(mine, rows)
        yield Cut(
            key=leaf.key,
            module=leaf.module,
            doubled=None if twice is None else doubling(leaf.rows(twice), rows),
            selects=selects(mine, rows),
            selects_columns=selects_columns(mine, rows),
            ratio=ratio,
            residual=residual,
            norm=norm,
        )


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
