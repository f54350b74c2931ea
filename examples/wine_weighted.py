"""A multi-layer perceptron on the wine data, classes weighted by their rarity.

178 wines, 13 chemical measurements, 3 cultivars of unequal frequency, from
`sklearn.datasets`. Needs scikit-learn.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

BATCH_SIZE = 48

_WINE = load_wine()
_FEATURES = torch.from_numpy(StandardScaler().fit_transform(_WINE.data)).float()
_LABELS = torch.from_numpy(_WINE.target).long()
_ORDER = torch.randperm(len(_LABELS), generator=torch.Generator().manual_seed(0))
CLASS_WEIGHTS = len(_LABELS) / (3.0 * torch.bincount(_LABELS))


def model() -> nn.Module:
    """Returns the perceptron: 13 measurements in, 3 scores out."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(13, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 3)
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns measurements (48, 13) and cultivars (48,)."""
    rows = _ORDER[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
    return _FEATURES[rows], _LABELS[rows]


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the weighted mean: over the sum of the targets' weights."""
    weights = CLASS_WEIGHTS.to(output)
    return nn.functional.cross_entropy(output, target, weight=weights)


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns AdamW."""
    return torch.optim.AdamW(params, lr=1e-3)
