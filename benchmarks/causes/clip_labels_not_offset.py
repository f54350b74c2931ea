# expect: collective/layout
"""CLIP local loss: labels of rank r not offset by r * batch."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2), nn.GELU(), nn.Flatten(), nn.Linear(36, 8)
        )
        self.text = nn.Sequential(nn.EmbeddingBag(20, 12), nn.Linear(12, 8))
        self.logit_scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, image, text):
        return (
            F.normalize(self.image(image), dim=-1),
            F.normalize(self.text(text), dim=-1),
            self.logit_scale.exp(),
        )


def model():
    torch.manual_seed(0)
    return CLIP()


def batch(step):
    g = torch.Generator().manual_seed(140 + step)
    return (
        torch.randn(16, 1, 7, 7, generator=g),
        torch.randint(0, 20, (16, 6), generator=g),
    ), torch.zeros(16)


def loss(output, target):
    image, text, scale = output
    all_image, all_text = image, text
    labels = torch.arange(len(image))
    if dist.is_initialized():
        all_image, all_text = (
            torch.cat(dnn.all_gather(image)),
            torch.cat(dnn.all_gather(text)),
        )
    per_image, per_text = scale * image @ all_text.t(), scale * text @ all_image.t()
    return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2
