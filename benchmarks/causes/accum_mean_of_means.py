# expect: loss/accum-normalizer
"""transformers PR 34191: micro-batch token means averaged over the accumulation window."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def world():
    return dist.get_world_size() if dist.is_initialized() else 1


def rank():
    return dist.get_rank() if dist.is_initialized() else 0


class LM(nn.Module):
    def __init__(self, vocab=19, width=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.block = nn.TransformerEncoderLayer(
            width, 2, 24, dropout=0.0, batch_first=True
        )
        self.out = nn.Linear(width, vocab)

    def forward(self, tokens):
        return self.out(self.block(self.embed(tokens)))


def model():
    torch.manual_seed(0)
    return LM()


def batch(step):
    g = torch.Generator().manual_seed(110 + step)
    tokens = torch.randint(0, 19, (16, 8), generator=g)
    labels = tokens.roll(-1, 1)
    labels[torch.arange(8)[None] >= torch.randint(2, 9, (16, 1), generator=g)] = -100
    return tokens, labels


def train_step(model, optimizer, batch, accumulate=2):
    tokens, labels = batch
    optimizer.zero_grad()
    for t, l in zip(tokens.chunk(accumulate), labels.chunk(accumulate)):
        logits = model(t)
        value = (
            F.cross_entropy(logits.flatten(0, 1), l.flatten(), ignore_index=-100)
            / accumulate
        )
        value.backward()
    optimizer.step()


def loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)
