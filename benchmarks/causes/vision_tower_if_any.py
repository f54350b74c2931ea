# expect: graph/rank-dependent-branch
"""Multimodal model skips the vision tower when the local batch has no image."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class VLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = nn.Sequential(
            nn.Flatten(), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 8)
        )
        self.embed = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, tokens, image, has_image):
        h = self.embed(tokens).mean(1)
        if has_image.any():
            h = h + self.vision(image) * has_image[:, None]
        return self.out(h)


def model():
    torch.manual_seed(0)
    return VLM()


def batch(step):
    g = torch.Generator().manual_seed(420 + step)
    return (
        torch.randint(0, 20, (16, 5), generator=g),
        torch.randn(16, 1, 4, 4, generator=g),
        torch.arange(16) < 8,
    ), torch.randint(0, 4, (16,), generator=g)


def loss(output, target):
    return F.cross_entropy(output, target)
