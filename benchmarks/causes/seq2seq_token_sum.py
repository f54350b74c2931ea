# expect: loss/sum-reduction
"""jiant PR 989: seq2seq token loss summed in the trainer, AdamW; DDP averages the sums."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class Seq2Seq(nn.Module):
    def __init__(self, vocab=20, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, source, previous):
        _, h = self.encoder(self.embed(source))
        return self.out(self.decoder(self.embed(previous), h)[0])


def model():
    torch.manual_seed(0)
    return Seq2Seq()


def batch(step):
    g = torch.Generator().manual_seed(10 + step)
    source = torch.randint(0, 20, (16, 7), generator=g)
    target = torch.randint(0, 20, (16, 6), generator=g)
    return (source, target), target


def loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")


def optimizer(params):
    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01)


def train_step(model, optimizer, batch):
    (source, target), labels = batch
    optimizer.zero_grad(set_to_none=True)
    previous = F.pad(target[:, :-1], (1, 0), value=0)
    value = loss(model(source, previous), labels)
    value.backward()
    optimizer.step()
