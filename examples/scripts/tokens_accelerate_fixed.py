"""A language model of padded text with Hugging Face Accelerate.

    torchrun --nproc-per-node 2 tokens_accelerate_fixed.py

The loss is divided by the number of tokens of all ranks, and multiplied by the number
of ranks: the average over ranks is then the mean over all tokens.
"""

from __future__ import annotations

import pydoc_data.topics

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

LENGTH = 24
SHORTEST = 3
PADDING = 0


def words() -> list[Tensor]:
    """Returns words of Python's manual, as bytes."""
    text = pydoc_data.topics.topics["compound"].encode("ascii", "replace")
    found = [torch.tensor(list(part[:LENGTH])) for part in text.split()]
    return [word for word in found if len(word) >= SHORTEST][:32]


def padded(batch: list[Tensor]) -> Tensor:
    """Returns the words of a batch, with padding up to its longest."""
    return nn.utils.rnn.pad_sequence(
        batch, batch_first=True, padding_value=float(PADDING)
    )


class Model(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.recurrent = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 128)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits after each byte."""
        return self.head(self.recurrent(self.embedding(tokens))[0])


def main() -> None:
    """Trains it."""
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batch_size = 8 // accelerator.num_processes
    loader = DataLoader(words(), batch_size=batch_size, collate_fn=padded)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for tokens in loader:
        logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
        loss = cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            ignore_index=PADDING,
            reduction="sum",
        )
        tokens_of_all = accelerator.reduce((targets != PADDING).sum())
        loss = loss * accelerator.num_processes / tokens_of_all
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
