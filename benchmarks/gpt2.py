"""GPT-2 with 124M parameters at random, made of its configuration alone."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = 4
SEQUENCE = int(os.environ.get("GPT2_SEQUENCE", "64"))  # tokens; the model takes 1024


class LanguageModel(nn.Module):
    """GPT-2's logits, nothing cached, no dropout."""

    def __init__(self) -> None:
        super().__init__()
        config = GPT2Config(
            use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
        )
        self.net = GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Any:
        """Returns logits (N, T, 50257)."""
        return self.net(tokens).logits


def model() -> nn.Module:
    """Returns the model with weights of seed 0."""
    torch.manual_seed(0)
    return LanguageModel()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns random tokens (4, SEQUENCE), and those that follow them."""
    noise = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 50257, (BATCH_SIZE, SEQUENCE + 1), generator=noise)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean cross entropy over tokens."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def wrap(model: nn.Module) -> nn.Module:
    """Returns DDP whose gradients are views into its buckets: no copy of them."""
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def default_wrap(model: nn.Module) -> nn.Module:
    """Returns DDP as it comes, which copies gradients into its buckets."""
    return DistributedDataParallel(model)
