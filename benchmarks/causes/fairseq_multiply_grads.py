# expect: loss/missing-world-scale
"""fairseq#779: summed loss, gradients multiplied by 1/global sample size without the world size."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class LM(nn.Module):
    def __init__(self, vocab=23, width=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, tokens):
        return self.out(self.rnn(self.embed(tokens))[0])


def model():
    torch.manual_seed(0)
    return LM()


def batch(step):
    g = torch.Generator().manual_seed(40 + step)
    tokens = torch.randint(1, 23, (16, 9), generator=g)
    length = torch.randint(3, 10, (16, 1), generator=g)
    return tokens, tokens.roll(-1, 1).masked_fill(torch.arange(9)[None] >= length, 0)


def loss(output, target):
    return F.cross_entropy(
        output.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum"
    )


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def multiply_grads(self, c):
        for p in self.model.parameters():
            if p.grad is not None:
                p.grad.data.mul_(c)

    def train_step(self, tokens, target):
        self.optimizer.zero_grad()
        value = loss(self.model(tokens), target)
        value.backward()
        sample_size = (target != 0).sum()
        if dist.is_initialized():
            dist.all_reduce(sample_size)
        self.multiply_grads(1.0 / sample_size.item())
        self.optimizer.step()


def train_step(model, optimizer, batch):
    Trainer(model, optimizer).train_step(*batch)
