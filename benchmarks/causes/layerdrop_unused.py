# expect: graph/unused-parameter
"""fairseq LayerDrop: at some steps a layer is skipped on all ranks (wav2vec2 with DDP)."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
                for _ in range(3)
            ]
        )
        self.head = nn.Linear(8, 3)
        self.updates = 0

    def forward(self, x):
        drop = {1: 2}.get(self.updates)
        self.updates += 1
        for i, layer in enumerate(self.layers):
            if i != drop:
                x = layer(x)
        return self.head(x.mean(1))


def model():
    torch.manual_seed(0)
    return Encoder()


def wrap(model):
    return DDP(model)


def batch(step):
    g = torch.Generator().manual_seed(400 + step)
    return torch.randn(16, 5, 8, generator=g), torch.randint(0, 3, (16,), generator=g)


def loss(output, target):
    return F.cross_entropy(output, target)
