"""A tagger whose loss is a mean over the tokens that are not padding. Broken."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Tagger(nn.Module):
    """Tags every token of a sentence with one of 5 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns scores, (sentence, token, class)."""
        scores: Tensor = self.head(torch.tanh(self.mix(self.embed(tokens))))
        return scores


def model() -> nn.Module:
    """Returns the same model each time."""
    torch.manual_seed(0)
    return Tagger()


def batch() -> tuple[Tensor, Tensor]:
    """Returns 8 sentences of 2 to 16 tokens, the long ones first; padding is -1."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (8, 16), generator=generator)
    tags = torch.randint(0, 5, (8, 16), generator=generator)
    lengths = torch.arange(16, 0, -2)
    return tokens, tags.masked_fill(torch.arange(16) >= lengths[:, None], -1)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean over the tokens of this rank."""
    is_token = target >= 0
    losses = functional.cross_entropy(
        output.flatten(0, 1), target.flatten(), ignore_index=-1, reduction="sum"
    )
    # Every rank divides by its own number of tokens.
    return losses / is_token.sum()
