# expect: forward/batch-coupled
"""nn.TransformerEncoder without batch_first gets [batch, time, width]: it attends over the batch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(25, 16)
        self.position = nn.Parameter(torch.zeros(1, 6, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens) + self.position).mean(1))


def model():
    torch.manual_seed(0)
    return Classifier()


def batch(step):
    g = torch.Generator().manual_seed(160 + step)
    return torch.randint(0, 25, (16, 6), generator=g), torch.randint(
        0, 4, (16,), generator=g
    )


def loss(output, target):
    return F.cross_entropy(output, target, label_smoothing=0.1)
