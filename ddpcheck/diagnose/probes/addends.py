"""The gradient of each addend of a loss at the model's outputs, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import torch
from torch import Tensor

from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.diagnose.probes import fits
from ddpcheck.diagnose.probes.evidence import Cut, of_trace
from ddpcheck.diagnose.probes.teacher import Leaf
from ddpcheck.run.observe import addends

# Quantities of the trace: gradients of one addend, and on the batch taken twice.
_ADDEND, _TWICE = "addend", "addend twice"

Dim = Callable[[str, Tensor], int]  # where the samples of a key's tensor are


class Noted:
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


def of_rank(
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
        (*before[number], *_cuts(leaves, found, reader, number, told))
        for number, found in enumerate(every)
    )


def _of_each(
    loss: Tensor, outputs: dict[str, Tensor]
) -> Iterator[dict[str, Tensor | None]]:
    for found in addends.gradients(loss, list(outputs.values())):
        yield dict(zip(outputs, found, strict=True))


def _cuts(
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
        ratio, residual, norm = fits.fit(mine, rows)
        yield Cut(
            key=leaf.key,
            module=leaf.module,
            doubled=None if twice is None else fits.doubling(leaf.rows(twice), rows),
            selects=fits.selects(mine, rows),
            selects_columns=fits.selects_columns(mine, rows),
            ratio=ratio,
            residual=residual,
            norm=norm,
        )
