# expect: loss/local-normalizer
"""RetinaNet focal and box loss divided by the local number of positives (detr num_boxes pattern)."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Detector(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.GroupNorm(3, 12), nn.SiLU()
        )
        self.cls = nn.Conv2d(12, classes, 3, padding=1)
        self.box = nn.Conv2d(12, 4, 3, padding=1)

    def forward(self, image):
        h = self.body(image)
        return {
            "logits": self.cls(h).flatten(2).transpose(1, 2),
            "boxes": self.box(h).flatten(2).transpose(1, 2),
        }


def model():
    torch.manual_seed(0)
    return Detector()


def batch(step):
    g = torch.Generator().manual_seed(20 + step)
    image = torch.randn(16, 3, 8, 8, generator=g)
    density = torch.linspace(0.05, 0.5, 16)[:, None]
    labels = torch.where(
        torch.rand(16, 16, generator=g) < density,
        torch.randint(0, 3, (16, 16), generator=g),
        -1,
    )
    return image, {"labels": labels, "boxes": torch.randn(16, 16, 4, generator=g)}


def sigmoid_focal(logits, onehot, alpha=0.25, gamma=2.0):
    p = logits.sigmoid()
    ce = F.binary_cross_entropy_with_logits(logits, onehot, reduction="none")
    pt = p * onehot + (1 - p) * (1 - onehot)
    return (
        (alpha * onehot + (1 - alpha) * (1 - onehot)) * ce * (1 - pt) ** gamma
    ).sum()


class SetCriterion:
    def __init__(self, box_weight=0.5):
        self.box_weight = box_weight

    def __call__(self, output, target):
        positive = target["labels"] >= 0
        onehot = (
            F.one_hot(target["labels"].clamp(min=0), 3).to(output["logits"].dtype)
            * positive[..., None]
        )
        num_pos = positive.sum().to(output["logits"].dtype)
        num_pos = num_pos.clamp(min=1)
        box = F.smooth_l1_loss(
            output["boxes"][positive], target["boxes"][positive], reduction="sum"
        )
        return (
            sigmoid_focal(output["logits"], onehot) / num_pos
            + self.box_weight * box / num_pos
        )


loss = SetCriterion()
