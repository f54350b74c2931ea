"""A GPT-2 language model on paragraphs of Python's manual, padded to one length.

The text is `pydoc_data.topics`, which comes with Python; a token is a byte. The model
is Hugging Face's `GPT2LMHeadModel` from a config, with random weights, and computes
its own loss: padding has label -100, as in every fine-tuning script. Needs
transformers.
"""

from __future__ import annotations

import textwrap
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = 16
LENGTH = 64
PADDING = 0
IGNORED = -100


def _sentences() -> list[bytes]:
    """Returns the lines of one chapter, without what is not ASCII."""
    text = textwrap.dedent(topics["assignment"])
    lines = [line.strip().encode("ascii", "ignore") for line in text.splitlines()]
    return [line[:LENGTH] for line in lines if len(line) > 1]


_SENTENCES = _sentences()


def model() -> nn.Module:
    """Returns GPT-2 with 2 layers of 32 channels, for bytes; no dropout."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=128,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=PADDING,
        eos_token_id=PADDING,
    )
    return GPT2LMHeadModel(config)


def batch(step: int) -> dict[str, Tensor]:
    """Returns `input_ids`, `attention_mask` and `labels`, each (16, 64)."""
    lines = _SENTENCES[step * BATCH_SIZE : (step + 1) * BATCH_SIZE]
    ids = torch.full((len(lines), LENGTH), PADDING)
    for row, line in zip(ids, lines, strict=True):
        row[: len(line)] = torch.tensor(list(line))
    mask = ids != PADDING
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "labels": ids.masked_fill(~mask, IGNORED),
    }


def optimizer(params: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Returns AdamW."""
    return torch.optim.AdamW(params, lr=3e-4)
