"""A transformer of padded text whose blocks are sharded by `fully_shard` (FSDP2).

    torchrun --nproc-per-node 2 tokens_fsdp.py

Each rank divides its loss by the number of its own tokens. Ranks have different
numbers, so the average over ranks is not the mean over all tokens.
"""

from __future__ import annotations

import pydoc_data.topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

LENGTH = 24
SHORTEST = 3
PADDING = 0
WIDTH = 16


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


class Block(nn.Module):
    """A layer with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the layer's output to its input."""
        return x + self.down(self.up(self.norm(x)).relu())


class Model(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits after each byte."""
        x = self.embedding(tokens).cumsum(1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(model: Model) -> Model:
    """Shards the blocks, then what is left of the model."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def main() -> None:
    """Trains it."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = sharded(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = words()
    sampler = DistributedSampler(data)
    batch_size = 8 // dist.get_world_size()
    loader = DataLoader(data, batch_size=batch_size, sampler=sampler, collate_fn=padded)
    for tokens in loader:
        logits, targets = model(tokens[:, :-1]), tokens[:, 1:]
        loss = cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=PADDING
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
