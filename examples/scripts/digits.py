"""The digits of examples/data, for the scripts of this folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

FILE = Path(__file__).parents[1] / "data" / "digits.npz"


def dataset(count: int = 512) -> TensorDataset:
    """Returns the first images, of 1 x 8 x 8, with their labels."""
    with np.load(FILE) as data:
        images = torch.from_numpy(data["images"][:count]).reshape(-1, 1, 8, 8) / 16
        labels = torch.from_numpy(data["labels"][:count]).long()
    return TensorDataset(images.to(torch.get_default_dtype()), labels)
