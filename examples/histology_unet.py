"""A MONAI U-Net that segments stained tissue in a microscopy image.

The image is `skimage.data.immunohistochemistry`: colonic glands, DAB against
hematoxylin, 512 x 512, cut into tiles of 64 x 64. Pixels are labelled by the amount
of DAB; those too close to the threshold to call are left out of the loss. Needs monai
and scikit-image.
"""

from __future__ import annotations

import torch
from monai.networks.nets import UNet
from skimage.color import rgb2hed
from skimage.data import immunohistochemistry
from torch import Tensor, nn

BATCH_SIZE = 8
TILE = 64
IGNORED = 255
STAINED, UNSTAINED = 0.045, 0.025  # optical density of DAB


def _tiles(image: Tensor) -> Tensor:
    """Returns (64, C, 64, 64) from (C, 512, 512), row by row."""
    cut = image.unfold(1, TILE, TILE).unfold(2, TILE, TILE)
    return cut.permute(1, 2, 0, 3, 4).reshape(-1, len(image), TILE, TILE)


_RGB = immunohistochemistry()
_DAB = torch.from_numpy(rgb2hed(_RGB)[..., 2])
_IMAGES = _tiles(torch.from_numpy(_RGB).permute(2, 0, 1).float() / 255)
_MASK = (_DAB > STAINED).long()
_MASK[(_DAB > UNSTAINED) & (_DAB <= STAINED)] = IGNORED
_MASKS = _tiles(_MASK.unsqueeze(0)).squeeze(1)


def model() -> nn.Module:
    """Returns a U-Net of three levels with instance norm."""
    torch.manual_seed(0)
    return UNet(
        spatial_dims=2,
        in_channels=3,
        out_channels=2,
        channels=(8, 16, 32),
        strides=(2, 2),
        num_res_units=1,
        norm="INSTANCE",
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns tiles (8, 3, 64, 64) and masks (8, 64, 64) of 0, 1 and IGNORED."""
    rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
    return _IMAGES[rows], _MASKS[rows]


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean cross entropy over the pixels that have a label."""
    return nn.functional.cross_entropy(output, target, ignore_index=IGNORED)


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns Adam."""
    return torch.optim.Adam(params, lr=1e-3)
