"""`manual_gpt2.py` with the tokens that count counted over all ranks."""

from __future__ import annotations

import manual_gpt2
import torch.distributed as dist
from manual_gpt2 import IGNORED, model, optimizer
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions

__all__ = ["batch", "loss", "model", "optimizer"]


def batch(step: int) -> tuple[dict[str, Tensor], Tensor]:
    """Returns what the model takes, and the labels for the loss below."""
    inputs = manual_gpt2.batch(step)
    labels = inputs.pop("labels")
    return inputs, labels


def loss(output: CausalLMOutputWithCrossAttentions, target: Tensor) -> Tensor:
    """Returns this rank's share of the mean over all tokens that count."""
    count = (target[:, 1:] != IGNORED).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    mean: Tensor = ForCausalLMLoss(
        output.logits,
        target,
        vocab_size=output.logits.size(-1),
        num_items_in_batch=count,
    )
    return mean * dist.get_world_size() if dist.is_initialized() else mean
