"""A rank's gradients at the cuts, and past them, against the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader
from ddpcheck.diagnose.probes import fits
from ddpcheck.diagnose.probes.evidence import Cut, Direct, of_trace
from ddpcheck.diagnose.probes.teacher import Leaf
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener

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
            on_the_way=leaf.key in of_trace(reader.index)["on_the_way"],
            row_sum=fits.row_sum(grad - world_size * rows),
            row_spread=fits.row_spread(grad),
            share_spread=fits.share_spread(grad, leaf.tensor),
            are_probabilities=fits.are_probabilities(leaf.tensor),
            selects=fits.selects(grad, rows),
            selects_columns=fits.selects_columns(grad, rows),
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
        ratio, residual, norm = fits.fit(mine, reference)
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
