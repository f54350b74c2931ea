"""Sketches: a few sums of a tensor's numbers with signs at random.

The map is linear: a sketch of a combination of tensors is that combination of their
sketches, so that its factors can be told from a few numbers of each.
"""

from __future__ import annotations

import torch
from torch import Tensor

SIZE = 64  # numbers of a sketch


def sketch(values: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Returns sums over every 64th number, float64, shape (64,).

    Args:
        values: of any shape and dtype; complex ones count as pairs.
        generator: of the signs, by default one that is alike for all tensors.
    """
    generator = generator or torch.Generator().manual_seed(0)
    values = values.detach().to("cpu")
    if values.is_complex():
        values = torch.view_as_real(values)
    flat = values.double().reshape(-1)
    signs = torch.randint(0, 2, flat.shape, generator=generator) * 2.0 - 1
    whole = torch.nn.functional.pad(flat * signs, (0, -len(flat) % SIZE))
    return whole.view(-1, SIZE).sum(0)
