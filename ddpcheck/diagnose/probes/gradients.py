"""The gradient of the loss on a rank against the single-process run's.

Compared are the gradients at the cuts (probes/cuts.py), those of each addend of the
loss at the cuts, and those that reach parameters directly from the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.diagnose.probes.cuts import Leaf
from ddpcheck.diagnose.probes.evidence import Cut, Direct, of_trace
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.observe import addends

# (quantity, cut) -> the reference's tensor, of all micro-batches
RecordedAt = Callable[[str, Leaf], Tensor | None]
# (key, tensor) -> the dimension of the samples
Dim = Callable[[str, Tensor], int]
# Quantities of the trace: the gradients of one addend, on the batch and on the batch
# repeated once.
_ADDEND, _TWICE = "addend", "addend twice"
_EXACT = 0.05  # a larger residual means that no single factor fits
# A row counts if its gradient exceeds this fraction of the largest row's, of both sides
_NOTHING = 1e-12
# A column counts if its gradient exceeds this fraction of the largest column's.
_VISIBLE = 1e-6
# A sum counts as 0 up to this fraction of the largest entry.
_SUMS = 1e-6
_FITS = 1e-4  # largest residual, relative, of one factor for all parameters
_ENTRIES = 2**20  # scores that `share_spread` reads; more would be slow


def at_cuts(
    leaves: list[Leaf],
    recorded: RecordedAt,
    reader: Reader,
    world_size: int,
    factor: float,
) -> Iterator[Cut]:
    """Yields the comparison of the loss's gradient at each cut, after a step.

    `factor`: by which the step multiplies gradients after backward.
    """
    for leaf in leaves:
        reference, mine = recorded("cut", leaf), leaf.tensor.grad
        if reference is None and mine is None:
            continue
        nothing = torch.zeros_like(leaf.tensor)
        rows = nothing if reference is None else leaf.rows(reference)
        grad = nothing if mine is None else mine * factor
        twice = recorded("doubled", leaf)
        yield replace(
            _cut(leaf, grad, rows, twice),
            mixed=math.inf
            if twice is None
            else unmixed(grad, rows, leaf.rows(twice), world_size),
            on_the_way=leaf.key in of_trace(reader.index)["on_the_way"],
            row_sum=row_sum(grad - world_size * rows),
            row_spread=row_spread(grad),
            share_spread=share_spread(grad, leaf.tensor),
            are_probabilities=are_probabilities(leaf.tensor),
        )


def _cut(leaf: Leaf, grad: Tensor, rows: Tensor, twice: Tensor | None) -> Cut:
    """Returns how a gradient at a cut relates to the reference's rows.

    `twice`: the reference's gradient on the batch repeated once, if it is known.
    """
    ratio, residual, norm = fit(grad, rows)
    return Cut(
        key=leaf.key,
        module=leaf.module,
        micro=leaf.micro,
        doubled=None if twice is None else doubling(leaf.rows(twice), rows),
        selects=selects(grad, rows),
        selects_columns=selects_columns(grad, rows),
        ratio=ratio,
        residual=residual,
        norm=norm,
    )


def past_cuts(model: nn.Module, reader: Reader) -> Iterator[Direct]:
    """Yields the comparison of gradients that reach parameters past all cuts."""
    names, short = set(reader.names("direct", 0)), shortener(model)
    for path, parameter in contents.named_parameters(model):
        name = short(path)
        reference = reader.get("direct", 0, name) if name in names else None
        if reference is None:
            continue
        grad = parameter.grad
        mine = torch.zeros_like(reference) if grad is None else _dense(grad)
        ratio, residual, norm = fit(mine, reference)
        yield Direct(name=name, ratio=ratio, residual=residual, norm=norm)


def of_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Returns the gradients of the parameters that have one, dense and real."""
    return {
        n: _dense(p.grad)
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


def _dense(grad: Tensor) -> Tensor:
    return torch.view_as_real(grad) if grad.is_complex() else grad.to_dense()


class Addends:
    """Writes the gradient of each addend of the reference's loss to the trace.

    `kinds`: the operation that computes each addend. Empty if the loss is not a sum, or
    if the step calls backward on losses that are different sums.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._kinds: tuple[str, ...] | None = None  # until a backward
        self._dim: Dim | None = None  # set while the batch is repeated

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the operations that compute each addend."""
        return self._kinds or ()

    def note(self, loss: Tensor, outputs: dict[str, Tensor]) -> None:
        """Writes each addend's gradient at these outputs, by key."""
        if not outputs:
            return
        kinds = tuple(addends.kinds(loss)) if self._dim is None else self._kinds
        if self._kinds not in (None, kinds):
            self._kinds = ()  # an earlier backward had another loss
            return
        quantity = _ADDEND if self._dim is None else _TWICE
        every = addends.gradients(loss, list(outputs.values()))
        for number, found in enumerate(every):
            known = {
                key: g if self._dim is None else _first_half(g, self._dim(key, g))
                for key, g in zip(outputs, found, strict=True)
                if g is not None
            }
            self._writer.add(quantity, number, known.items())
        self._kinds = kinds

    def is_twice(self, dim: Dim | None) -> None:
        """Writes the following gradients as the repeated batch's; None ends this."""
        self._dim = dim

    @property
    def takes_twice(self) -> bool:
        """Whether the gradients on the repeated batch are written now."""
        return self._dim is not None


def _first_half(grad: Tensor, dim: int) -> Tensor:
    return grad.narrow(dim, 0, grad.shape[dim] // 2)


def of_addends(
    loss: Tensor,
    leaves: list[Leaf],
    reader: Reader,
    earlier: tuple[tuple[Cut, ...], ...] | None,
) -> tuple[tuple[Cut, ...], ...]:
    """Returns the comparison of each addend's gradient at each output.

    `earlier`: the result for the step's earlier backwards, None for the first. Empty if
    the loss is not the sum that the reference's is.
    """
    known = of_trace(reader.index)["addends"]
    if earlier == () or not (leaves and known):
        return ()
    if len(addends.nodes(loss)) != len(known):
        return ()
    before = earlier or ((),) * len(known)
    done = {cut.key for cuts in before for cut in cuts}
    every = addends.gradients(loss, [leaf.tensor for leaf in leaves])
    return tuple(
        (*before[number], *_at_outputs(leaves, found, reader, number, done))
        for number, found in enumerate(every)
    )


def _at_outputs(
    leaves: list[Leaf],
    found: list[Tensor | None],
    reader: Reader,
    number: int,
    done: Container[str],
) -> Iterator[Cut]:
    """Yields the comparison of one addend; `done`: keys of earlier backwards."""
    for leaf, grad in zip(leaves, found, strict=True):
        reference = reader.find(_ADDEND, number, leaf.key)
        if grad is None and (reference is None or leaf.key in done):
            continue
        nothing = torch.zeros_like(leaf.tensor)
        rows = nothing if reference is None else leaf.rows(reference)
        twice = reader.find(_TWICE, number, leaf.key)
        yield _cut(leaf, nothing if grad is None else grad, rows, twice)


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
    """Returns both / once if one factor fits all tensors, else None."""
    shared = [(once[n].double(), both[n].double()) for n in once if n in both]
    dot = sum(float((a * b).sum()) for a, b in shared)
    square = sum(float(t.double().pow(2).sum()) for t in once.values())
    if not square:
        return None
    ratio = dot / square
    left = sum(float((b - ratio * a).pow(2).sum()) for a, b in shared)
    return ratio if left <= (_FITS * ratio) ** 2 * square else None


def doubling(twice: Tensor, once: Tensor) -> float | None:
    """Returns 2 for a sum over samples, 1 for a mean, None if no single factor fits."""
    ratio, residual, norm = fit(twice, once)
    return 2 * ratio if norm and residual < _EXACT else None


def unmixed(grad: Tensor, once: Tensor, twice: Tensor, world_size: int) -> float:
    """Returns the relative residual of grad ~ W * (mean's gradient) + sum's gradient.

    If the batch is repeated, the gradient of a mean halves and that of a sum stays. So
    the mean's part is 2 * (once - twice), and the sum's part is 2 * twice - once.
    """
    mean, total = 2 * (once - twice), 2 * twice - once
    left = (grad - (world_size * mean + total)).double().norm()
    size = float(grad.double().norm())
    return float(left) / size if size else math.inf


def row_sum(tensor: Tensor) -> float:
    """Returns the largest sum over the last dimension, relative to the largest entry.

    It is 0 for a gradient that came through a softmax over that dimension.
    """
    top = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not top or not math.isfinite(top):
        return math.inf
    return float(tensor.sum(-1).abs().max()) / top


def row_spread(tensor: Tensor) -> float:
    """Returns the distance of rows from their mean, relative to the largest entry."""
    top = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not top or not math.isfinite(top) or tensor.dim() < 2:  # noqa: PLR2004
        return math.inf
    rows = tensor.reshape(-1, tensor.shape[-1])
    return float((rows - rows.mean(0)).abs().max()) / top


def share_spread(grad: Tensor, scores: Tensor) -> float:
    """Returns `row_spread` of the gradient at softmax(scores), inf without a softmax.

    The gradient at the scores is p * (v - <p, v>), where p is the softmax and v the
    gradient at the softmax; v follows up to a constant. Of many rows the first suffice.
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


def selects(grad: Tensor, rows: Tensor) -> bool:
    """Returns whether some rows, or places in them, have a gradient on one side only.

    A loss that is divided by a count has gradients at the same rows on both sides; a
    loss that selects samples by comparing them does not. A side on which all rows or
    none have a gradient does not select: the term may be 0 there.
    """
    if grad.dim() == 0 or not grad.numel() or grad.shape != rows.shape:
        return False
    mine, theirs = (_sizes(t).amax(1) for t in (grad, rows))
    least = _NOTHING * torch.maximum(mine.max(), theirs.max())  # less is rounding
    has_mine, has_theirs = mine > least, theirs > least
    if not bool(has_mine.any()):
        return False  # a shard with nothing to count
    is_partly = any(
        bool(has.any()) and not bool(has.all()) for has in (has_mine, has_theirs)
    )
    return (is_partly and bool((has_mine != has_theirs).any())) or any(
        _selects_places(grad, rows, classes)
        for classes in (1, -1)
        if grad.dim() > 2  # noqa: PLR2004
    )


def _selects_places(grad: Tensor, rows: Tensor, classes: int) -> bool:
    """Returns whether a pixel or a token has a gradient on one side only.

    `classes`: the dimension of the classes; all others are places. Places that a loss
    leaves out have a gradient of exactly 0.
    """
    mine, theirs = (
        t.detach().abs().amax(classes).double().nan_to_num(0.0) for t in (grad, rows)
    )
    least = _VISIBLE * min(float(mine.max()), float(theirs.max()))
    lost = (mine == 0) & (theirs > least) & _is_elsewhere(mine > 0)
    gained = (mine > least) & (theirs == 0) & _is_elsewhere(theirs > 0)
    return bool(((mine > 0) & (theirs > 0)).any()) and bool((lost | gained).any())


def _is_elsewhere(has: Tensor) -> Tensor:
    """Returns where every index, except the sample's, has an entry in another place.

    A class that does not occur in a shard may get the weight 0, and then none of its
    places has a gradient: this is a weight, not a selection.
    """
    found = torch.ones_like(has)
    for dim in range(1, has.dim()):
        others = [d for d in range(has.dim()) if d != dim]
        found &= has.any(others, keepdim=True)
    return found


def selects_columns(grad: Tensor, rows: Tensor) -> bool:
    """Returns whether a softmax includes some columns on one side only.

    So it is for a softmax over the classes that occur. A class may also have the weight
    0, but then the gradient does not add up to 0 over the columns.
    """
    if max(row_sum(grad), row_sum(rows)) > _SUMS:
        return False
    if grad.dim() < 2 or not grad.numel() or grad.shape != rows.shape:  # noqa: PLR2004
        return False
    mine, theirs = (_sizes(t).amax(0) for t in (grad, rows))
    in_both = (mine > 0) & (theirs > 0)
    least = _VISIBLE * theirs.max()
    lost, gained = (mine == 0) & (theirs > least), (mine > least) & (theirs == 0)
    return bool(in_both.any()) and bool((lost | gained).any())


def _sizes(tensor: Tensor) -> Tensor:
    """Returns the absolute values, as a matrix with a row per sample."""
    return tensor.detach().double().abs().nan_to_num(0.0).reshape(len(tensor), -1)
