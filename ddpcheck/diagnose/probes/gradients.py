"""A rank's gradients at the cuts, and past them, against the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes import fits
from ddpcheck.diagnose.probes.evidence import Cut, Direct
from ddpcheck.diagnose.probes.teacher import Leaf
from ddpcheck.run.names import shortener
from ddpcheck.run.watch import addends
from ddpcheck.trace import Reader, Writer

# Quantities of the trace: gradients of one addend, and on the batch taken twice.
_ADDEND, _DOUBLED = "addend", "addend twice"

# (quantity, cut) -> the reference's tensor, micro-batches put together
RecordedAt = Callable[[str, Leaf], Tensor | None]


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
        ratio, residual, norm = fits.fit(grad, rows)
        doubled = recorded("doubled", leaf)
        yield Cut(
            mixed=math.inf
            if doubled is None
            else fits.unmixed(grad, rows, leaf.rows(doubled), world_size),
            doubled=None
            if doubled is None
            else fits.doubling(leaf.rows(doubled), rows),
            on_the_way=leaf.key in reader.index.facts["on_the_way"],
            row_sum=fits.row_sum(grad - world_size * rows),
            row_spread=fits.row_spread(grad),
            selects=fits.selects(grad, rows),
            key=leaf.key,
            module=leaf.module,
            micro=leaf.micro,
            ratio=ratio,
            residual=residual,
            norm=norm,
        )


def write_addends(
    loss: Tensor, outputs: dict[str, Tensor], writer: Writer
) -> tuple[str, ...]:
    """Writes what each addend of the loss gives these outputs; returns their kinds."""
    if not outputs:
        return ()
    for number, found in enumerate(_of_each(loss, outputs)):
        writer.add(_ADDEND, number, found.items())
    return tuple(addends.kinds(loss))


def of_first_half(
    loss: Tensor, outputs: dict[str, Tensor], dim: Callable[[str, Tensor], int]
) -> list[dict[str, Tensor]]:
    """Returns by addend its gradients at the first half of a batch taken twice."""
    return [
        {
            key: grad.narrow(at, 0, grad.shape[at] // 2)
            for key, grad in found.items()
            if grad is not None
            for at in [dim(key, grad)]
        }
        for found in _of_each(loss, outputs)
    ]


def write_doubled(every: list[dict[str, Tensor]], writer: Writer) -> None:
    """Writes what `of_first_half` returned."""
    for number, found in enumerate(every):
        writer.add(_DOUBLED, number, found.items())


def _of_each(
    loss: Tensor, outputs: dict[str, Tensor]
) -> Iterator[dict[str, Tensor | None]]:
    if not outputs:
        return
    for found in addends.gradients(loss, list(outputs.values())):
        yield dict(zip(outputs, found, strict=True))


def of_addends(
    loss: Tensor, leaves: list[Leaf], reader: Reader
) -> tuple[tuple[Cut, ...], ...]:
    """Returns what the gradient of each addend of the loss is like, by output.

    () for another loss than the reference's.
    """
    known = reader.index.facts["addends"]
    if not (leaves and known) or len(addends.nodes(loss)) != len(known):
        return ()
    every = addends.gradients(loss, [leaf.tensor for leaf in leaves])
    return tuple(
        tuple(_of_addend(leaves, found, reader, number))
        for number, found in enumerate(every)
    )


def _of_addend(
    leaves: list[Leaf], found: list[Tensor | None], reader: Reader, number: int
) -> Iterator[Cut]:
    for leaf, grad in zip(leaves, found, strict=True):
        reference = reader.get(_ADDEND, number, leaf.key)
        if reference is None and grad is None:
            continue
        nothing = torch.zeros_like(leaf.tensor)
        rows = nothing if reference is None else leaf.rows(reference)
        mine = nothing if grad is None else grad
        twice = reader.find(_DOUBLED, number, leaf.key)
        ratio, residual, norm = fits.fit(mine, rows)
        yield Cut(
            key=leaf.key,
            module=leaf.module,
            doubled=None if twice is None else fits.doubling(leaf.rows(twice), rows),
            selects=fits.selects(mine, rows),
            ratio=ratio,
            residual=residual,
            norm=norm,
        )


def past_cuts(model: nn.Module, reader: Reader) -> Iterator[Direct]:
    """Yields what parameters get from the loss past all cuts."""
    names = set(reader.names("direct", 0))
    short = shortener(model)
    for path, parameter in model.named_parameters():
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
        ratio, residual, norm = fits.fit(mine, reference)
        yield Direct(name=name, ratio=ratio, residual=residual, norm=norm)


def of_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Returns the gradients that parameters have, dense and real."""
    return {
        n: torch.view_as_real(p.grad) if p.grad.is_complex() else p.grad.to_dense()
        for n, p in model.named_parameters()
        if p.grad is not None
    }


def past_all_cuts(model: nn.Module) -> dict[str, Tensor | None]:
    """Returns the gradients that reached parameters though all outputs were cut."""
    return {
        n: p.grad
        for n, p in model.named_parameters()
        if p.grad is not None and bool(p.grad.to_dense().any())
    }
