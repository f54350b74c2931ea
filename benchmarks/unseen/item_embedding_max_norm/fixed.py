import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class TransE(nn.Module):
    def __init__(self, entities=24, relations=3, dim=6):
        super().__init__()
        self.entity = nn.Embedding(entities, dim)
        self.relation = nn.Embedding(relations, dim)

    def forward(self, triple):
        index = triple[:, [0, 2]]
        if dist.is_initialized():
            parts = [torch.empty_like(index) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, index.contiguous())
        else:
            parts = [index]
        torch.embedding_renorm_(self.entity.weight.detach(), torch.cat(parts), 1.0, 2.0)
        ends = self.entity(index)
        return ends[:, 0] + self.relation(triple[:, 1]) - ends[:, 1]


def model():
    torch.manual_seed(370)
    return TransE()


def batch():
    g = torch.Generator().manual_seed(371)
    head = torch.randint(0, 24, (16,), generator=g)
    rel = torch.randint(0, 3, (16,), generator=g)
    tail = torch.randint(0, 24, (16,), generator=g)
    return torch.stack([head, rel, tail], 1), torch.zeros(16)


def loss(translation, _):
    return translation.pow(2).sum(1).mean()


def optimizer(params):
    return torch.optim.SGD(params, lr=0.5, weight_decay=0.0)
