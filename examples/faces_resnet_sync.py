"""A ResNet that classifies faces and backgrounds, with synchronised batch norm.

The images are `skimage.data.lfw_subset`: 100 faces and 100 backgrounds of 25 x 25
pixels. The model is Hugging Face's `ResNetForImageClassification` from a config, with
random weights, converted by `nn.SyncBatchNorm.convert_sync_batchnorm` on every rank.
Needs transformers and scikit-image.
"""

from __future__ import annotations

import torch
from skimage.data import lfw_subset
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import ResNetConfig, ResNetForImageClassification
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

BATCH_SIZE = 32

_IMAGES = torch.from_numpy(lfw_subset()).float().unsqueeze(1)
_LABELS = torch.arange(200) // 100  # the first 100 are faces
_ORDER = torch.randperm(200, generator=torch.Generator().manual_seed(0))


def model() -> nn.Module:
    """Returns a ResNet of two stages for grey images and two classes."""
    torch.manual_seed(0)
    config = ResNetConfig(
        num_channels=1,
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        num_labels=2,
    )
    return ResNetForImageClassification(config)


def wrap(bare: nn.Module) -> nn.Module:
    """Returns what a rank trains: statistics over the global batch."""
    return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(bare))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns images (32, 1, 25, 25), and 0 for a face or 1 for a background."""
    rows = _ORDER[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
    return _IMAGES[rows], _LABELS[rows]


def loss(output: ImageClassifierOutputWithNoAttention, target: Tensor) -> Tensor:
    """Returns the mean cross entropy."""
    return nn.functional.cross_entropy(output.logits, target)


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns SGD with momentum."""
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4)
