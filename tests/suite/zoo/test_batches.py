"""The batches: seeded, and asymmetric in all that a loss could count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddpcheck.suite.zoo import batches, matrix
from ddpcheck.suite.zoo.batches import KINDS

PARALLEL = [size for size in matrix.WORLD_SIZES if size > 1]
CLASS_KINDS = [kind for kind in KINDS if kind != "regression"]


def _per_shard(values: Tensor, world_size: int) -> list[float]:
    return [shard.sum().item() for shard in values.tensor_split(world_size)]


@pytest.mark.parametrize("step", range(matrix.STEPS))
@pytest.mark.parametrize("world_size", PARALLEL)
@pytest.mark.parametrize("kind", KINDS)
def test_masked_shards_hold_different_counts_and_none_is_empty(
    kind: str, world_size: int, step: int
) -> None:
    _, targets = batches.batch(kind, step, masked=True)
    counts = _per_shard(targets != -100, world_size)
    assert min(counts) > 0
    assert max(counts) > 1.2 * min(counts)


@pytest.mark.parametrize("step", range(matrix.STEPS))
@pytest.mark.parametrize("world_size", PARALLEL)
@pytest.mark.parametrize("kind", CLASS_KINDS)
def test_shards_hold_different_class_weights_and_foreground(
    kind: str, world_size: int, step: int
) -> None:
    _, targets = batches.batch(kind, step, masked=False)
    weights = _per_shard((targets + 1) / 2, world_size)
    foreground = _per_shard(targets > 0, world_size)
    assert max(weights) > 1.2 * min(weights)
    assert max(foreground) > 1.2 * min(foreground)


@pytest.mark.parametrize("kind", CLASS_KINDS)
def test_every_class_occurs_and_no_unmasked_target_is_ignored(kind: str) -> None:
    _, targets = batches.batch(kind, 0, masked=False)
    classes = 7 if kind == "tokens" else 4
    assert sorted(set(targets.flatten().tolist())) == list(range(classes))


@pytest.mark.parametrize("kind", KINDS)
def test_batch_is_the_same_twice_and_another_at_the_next_step(kind: str) -> None:
    first, again = (batches.batch(kind, 0, masked=True) for _ in range(2))
    following = batches.batch(kind, 1, masked=True)
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, following))


@pytest.mark.parametrize("kind", KINDS)
def test_all_world_sizes_divide_the_batch(kind: str) -> None:
    inputs, targets = batches.batch(kind, 0, masked=False)
    assert len(inputs) == len(targets) == batches.BATCH_SIZE
    assert all(batches.BATCH_SIZE % size == 0 for size in matrix.WORLD_SIZES)
    assert batches.BATCH_SIZE // max(matrix.WORLD_SIZES) >= 3


@pytest.mark.usefixtures("float64_default")
def test_batch_under_float64_default_has_the_float32_values() -> None:
    wide = batches.batch("regression", 2, masked=True)
    torch.set_default_dtype(torch.float32)
    narrow = batches.batch("regression", 2, masked=True)
    assert [tensor.dtype for tensor in wide] == [torch.float64] * 2
    assert all(torch.equal(w, n.double()) for w, n in zip(wide, narrow, strict=True))
