import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class GroundingHead(nn.Module):
    def __init__(self, dim=12, queries=4):
        super().__init__()
        self.query_embed = nn.Embedding(queries, dim)
        self.mix = nn.Linear(dim, dim)
        self.box = nn.Linear(dim, 6)

    def forward(self, points):
        feat = torch.relu(self.mix(points[:, None] + self.query_embed.weight))
        return self.box(feat)


def model():
    torch.manual_seed(17)
    return GroundingHead()


def batch():
    g = torch.Generator().manual_seed(18)
    points = torch.randn(16, 12, generator=g)
    boxes = torch.rand(16, 4, 7, generator=g)
    boxes[..., 6] = (torch.arange(4) < torch.randint(1, 5, (16, 1), generator=g)).float()
    return points, boxes


def loss(pred, target):
    boxes, valid = target[..., :6], target[..., 6]
    num_boxes = valid.sum()
    if dist.is_initialized():
        dist.all_reduce(num_boxes)
        num_boxes = num_boxes / dist.get_world_size()
    num_boxes = torch.clamp(num_boxes, min=1)
    loss_bbox = (F.l1_loss(pred, boxes, reduction="none") * valid[..., None]).sum()
    return loss_bbox / num_boxes
