"""Whether the single-process gradient is a combination of the ranks' own.

It is where the loss divides by a count, or a weight, of each shard: g = sum_r c_r g_r.
A loss that relates samples has another gradient, and so has one with several terms that
each divide by their own.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader
from ddpcheck.diagnose.probes.evidence import Span
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.observe.sketch import SIZE, sketch


def fitted(model: nn.Module, reader: Reader, quantity: str) -> Span | None:
    """Returns the best combination of the ranks' gradients.

    A collective: all ranks ask. Gradients are compared by sums of their numbers, with
    signs at random. None for as many ranks as sums, or as numbers, or without a
    gradient.

    Args:
        model: with this rank's gradients.
        reader: of the reference's trace.
        quantity: what it calls the single-process gradients.
    """
    world_size = dist.get_world_size()
    mine, reference = _sketches(model, reader, quantity)
    every = [torch.zeros_like(mine) for _ in range(world_size)]
    dist.all_gather(every, mine)
    size = float(reference.norm())
    numbers = sum(p.numel() for p in contents.parameters(model))
    if world_size >= min(SIZE, numbers) or not size:
        return None  # so few numbers are some combination of so many
    ranks = torch.stack(every, 1)
    weights = torch.linalg.lstsq(ranks, reference[:, None]).solution
    left = float((ranks @ weights - reference[:, None]).norm()) / size
    return Span(residual=left, weights=tuple(weights[:, 0].tolist()))


def _sketches(model: nn.Module, reader: Reader, quantity: str) -> tuple[Tensor, Tensor]:
    """Returns those of this rank's gradient and of one process's."""
    mine = torch.zeros(SIZE, dtype=torch.float64)
    reference = torch.zeros_like(mine)
    known, short = reader.names(quantity, 0), shortener(model)
    for number, (path, parameter) in enumerate(contents.named_parameters(model)):
        name = short(path)
        right = reader.get(quantity, 0, name) if name in known else None
        if right is None:
            continue
        reference += sketch(right, _signs(number))
        if parameter.grad is not None:
            mine += sketch(parameter.grad.to_dense(), _signs(number))
    return mine, reference


def _signs(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)
