import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class KGModel(nn.Module):
    def __init__(self, bidirectional=False):
        super().__init__()
        self.bidirectional = bidirectional
        self.forward_rel = nn.Embedding(10, 8, sparse=True)
        self.inverse_rel = nn.Embedding(10, 8)
        self.score = nn.Linear(8, 1)

    def forward(self, rel):
        h = self.forward_rel(rel)
        if self.bidirectional:
            h = h + self.inverse_rel(rel)
        return self.score(torch.tanh(h)).squeeze(1)


def model():
    torch.manual_seed(480)
    return KGModel()


def wrap(net):
    return DDP(net, find_unused_parameters=True)


def batch():
    g = torch.Generator().manual_seed(481)
    return torch.randint(0, 10, (16,), generator=g), torch.randint(0, 2, (16,), generator=g).float()


def loss(score, label):
    return nn.functional.binary_cross_entropy_with_logits(score, label)
