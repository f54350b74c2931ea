"""The batch of the single process, made of those of the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from ddpcheck.errors.problem import UsageError
from ddpcheck.run.script.batches import Batches, joined
from ddpcheck.run.script.recording import step_file


def _batches(folder: Path, *lengths: int) -> Batches:
    for rank, length in enumerate(lengths):
        drawn = {"0.0.0": (None, {"x": torch.full((2, length), float(rank))})}
        torch.save(drawn, step_file(folder, rank, 0))
    return Batches(folder, len(lengths))


def test_batches_of_ranks_are_joined_in_the_order_of_ranks(tmp_path: Path) -> None:
    batch = _batches(tmp_path, 3, 3).at(0)
    assert batch["0.0"]["x"][:, 0].tolist() == [0, 0, 1, 1]


@dataclass
class Batch:
    x: torch.Tensor


def test_dataclasses_of_ranks_are_joined_field_by_field() -> None:
    batch = joined([Batch(torch.zeros(2)), Batch(torch.ones(1))])
    assert batch.x.tolist() == [0, 0, 1]


def test_batches_of_other_lengths_without_collate_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        _batches(tmp_path, 3, 4).at(0)
    assert caught.value.problem.message == (
        "the ranks' batches cannot be joined to the batch of the single process"
    )
