# expect: collective/no-autograd
"""open_clip without gather_with_grad: features gathered by dist.all_gather, own slot put back; logit_scale keeps factor 1."""

import torch
import torch.distributed as dist
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
            nn.Flatten(), nn.Linear(49, 16), nn.GELU(), nn.Linear(16, 8)
        )
        self.text = nn.Sequential(nn.EmbeddingBag(20, 12), nn.Linear(12, 8))
        self.logit_scale = nn.Parameter(torch.ones([]) * 1.2)

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
    g = torch.Generator().manual_seed(150 + step)
    return (
        torch.randn(16, 1, 7, 7, generator=g),
        torch.randint(0, 20, (16, 6), generator=g),
    ), torch.zeros(16)


def gather_features(image, text):
    if not dist.is_initialized():
        return image, text
    out = []
    for x in (image, text):
        parts = [torch.zeros_like(x) for _ in range(world())]
        dist.all_gather(parts, x)
        parts[rank()] = x
        out.append(torch.cat(parts, dim=0))
    return out


class ClipLoss(nn.Module):
    def forward(self, image, text, scale):
        image, text = gather_features(image, text)
        logits = scale * image @ text.t()
        labels = torch.arange(len(logits))
        return (
            F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)
        ) / 2


clip_loss = ClipLoss()


def loss(output, target):
    return clip_loss(*output)


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.98))
