# expect: rng/same-stream-all-ranks
"""Masked autoencoding of event sequences; a fixed number of positions per row is masked in forward."""

import torch
import torch.nn.functional as F
from torch import nn


class MaskedEncoder(nn.Module):
    def __init__(self, vocabulary=20, width=12, length=8, masked=3):
        super().__init__()
        self.embed = nn.Embedding(vocabulary + 1, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.2)
        layer = nn.TransformerEncoderLayer(
            width, 2, 24, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.masked, self.mask_id = masked, vocabulary
        self.register_buffer("seed", torch.tensor(99))

    def choose(self, rows, length):
        generator = torch.Generator().manual_seed(int(self.seed))
        self.seed += 1
        return torch.rand(rows, length, generator=generator).argsort(1)[
            :, : self.masked
        ]

    def forward(self, tokens):
        where = self.choose(*tokens.shape)
        hidden = self.encoder(
            self.embed(tokens.scatter(1, where, self.mask_id)) + self.position
        )
        logits = self.head(
            hidden.gather(1, where.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        )
        return logits, tokens.gather(1, where)


def model():
    torch.manual_seed(0)
    return MaskedEncoder()


def batch(step):
    g = torch.Generator().manual_seed(step + 600)
    tokens = torch.randint(0, 20, (16, 8), generator=g)
    return tokens, tokens


def loss(output, target):
    logits, truth = output
    return F.cross_entropy(logits.flatten(0, 1), truth.flatten())
