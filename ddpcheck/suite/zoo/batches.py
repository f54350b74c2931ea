"""The batches of the suite: 48 samples whose shards differ on purpose.

Every quantity that a wrong loss could normalise by locally (valid entries, class
weights, foreground, scale of the input) drifts along the batch, so that contiguous
shards disagree at every world size from 2 to 16. All values are drawn in float32, on a
generator of their own, and then cast to the default dtype.

Shape legend: B batch, E entries of a target (B, B x T or B x H x W), rest as in models.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ddpcheck.suite.zoo import models
from ddpcheck.target.entries import IGNORED_CLASS

BATCH_SIZE = 48  # 1, 2, 3, 4, 8 and 16 divide it, and 16 ranks still get 3 samples each
KINDS = ("vector", "regression", "image", "segmentation", "tokens")

# Ignored samples in each triple of samples (a shard of 16 ranks). Never 3, as an empty
# shard is a fault of its own; the sums over 2, 4, 8 triples and over thirds differ too.
_IGNORED_PER_TRIPLE = (2, 1, 2, 0, 2, 1, 2, 2, 0, 1, 0, 0, 1, 0, 0, 0)
_SEED = 4100
_TARGET_SHAPES: dict[str, tuple[int, ...]] = {
    "vector": (BATCH_SIZE,),
    "regression": (BATCH_SIZE, 2),
    "image": (BATCH_SIZE,),
    "segmentation": (BATCH_SIZE, models.IMAGE_SIZE, models.IMAGE_SIZE),
    "tokens": (BATCH_SIZE, models.NUM_TOKENS),
}


def batch(kind: str, step: int, *, masked: bool) -> tuple[Tensor, Tensor]:
    """Returns inputs and targets of this kind, others at every step.

    Floats come in the default dtype.

    Args:
        kind: one of KINDS.
        step: 0, 1, ...; part of the seed.
        masked: whether some targets are -100, in different numbers in every shard.
    """
    inputs, targets = _drawn(kind, step, masked)
    return _as_default(inputs).clone(), _as_default(targets).clone()


@functools.lru_cache(maxsize=64)
def _drawn(kind: str, step: int, masked: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001
    """Returns inputs and targets in float32; warm ranks ask for them again."""
    generator = torch.Generator().manual_seed(_SEED + 10 * step + KINDS.index(kind))
    inputs = _inputs(kind, generator)
    targets = _targets(kind, inputs, generator)
    if masked:
        targets = targets.masked_fill(_ignored(targets.shape, generator), IGNORED_CLASS)
    return inputs, targets


def _inputs(kind: str, generator: torch.Generator) -> Tensor:
    """Returns samples whose scale grows and whose mean drifts along the batch."""
    if kind == "tokens":
        return _tokens(generator)
    image = (models.IMAGE_CHANNELS, models.IMAGE_SIZE, models.IMAGE_SIZE)
    flat = kind in ("vector", "regression")
    shape = (BATCH_SIZE, *((models.NUM_FEATURES,) if flat else image))
    place = _place(len(shape))
    drawn = torch.randn(shape, generator=generator, dtype=torch.float32)
    return drawn * (0.4 + 1.6 * place) + (place - 0.5)


def _tokens(generator: torch.Generator) -> Tensor:
    """Returns tokens of a vocabulary that grows along the batch. Shape: [B, T]."""
    shape = (BATCH_SIZE, models.NUM_TOKENS)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float32)
    return (drawn * (2 + (models.VOCABULARY - 2) * _place(2))).long()


def _targets(kind: str, inputs: Tensor, generator: torch.Generator) -> Tensor:
    shape = _TARGET_SHAPES[kind]
    if kind == "regression":
        noise = torch.randn(shape, generator=generator, dtype=torch.float32)
        return inputs[:, :2].sin() + 0.3 * noise * (1 + _place(2))
    drawn = torch.rand(shape, generator=generator, dtype=torch.float32)
    classes = models.VOCABULARY if kind == "tokens" else models.NUM_CLASSES
    return _drifting_classes(drawn, classes)


def _drifting_classes(drawn: Tensor, classes: int) -> Tensor:
    """Returns classes that rise along the batch: early samples are mostly class 0.

    Args:
        drawn: uniform in [0, 1), of the shape of the targets.
        classes: how many there are; all of them occur.
    """
    exponent = 3 - 2.7 * _place(drawn.ndim)
    return (classes * drawn**exponent).long().clamp(max=classes - 1)


def _ignored(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Returns which entries are ignored: whole samples, or a share of each sample's.

    Where a sample has several entries, its first one stays valid.
    """
    counts = torch.tensor(_IGNORED_PER_TRIPLE)
    if len(shape) == 1:
        return (torch.arange(3) < counts[:, None]).flatten()
    share = 0.1 + 0.35 * counts.repeat_interleave(3)
    share = share.reshape(-1, *[1] * (len(shape) - 1))
    drawn = torch.rand(shape, generator=generator, dtype=torch.float32)
    ignored = drawn < share
    ignored.view(BATCH_SIZE, -1)[:, 0] = False
    return ignored


def _place(ndim: int) -> Tensor:
    """Returns the place of each sample in the batch, 0 to 1. Shape: [B, 1, ...]."""
    place = torch.linspace(0, 1, BATCH_SIZE, dtype=torch.float32)
    return place.reshape(-1, *[1] * (ndim - 1))


def _as_default(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.to(torch.get_default_dtype())
    return tensor
