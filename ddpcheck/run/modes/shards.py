"""The global batches as a rank has them, and its shard of each."""

from __future__ import annotations

from typing import Any

from ddpcheck.compare import tree
from ddpcheck.run.intervention import GlobalLoss, Switch, found, substituted
from ddpcheck.run.interventions.gather import alone
from ddpcheck.run.modes import rounding
from ddpcheck.run.modes.batches import batches_of
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.observe import samples
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import Target


def whole(target: Target, spec: RunSpec) -> list[Any]:
    """Returns the global batch of every step, as the target gives it on this rank."""
    if Switch.BATCH_WITHOUT_GROUP not in spec.fixes:
        return batches_of(target, spec)
    given: list[Any] = alone(batches_of, target, spec)
    return given


def of_rank(batches: list[Any], spec: RunSpec, rank: int) -> list[Any]:
    """Returns what this rank trains on in every step: all of it, in one process."""
    sees_all = found(spec.fixes, GlobalLoss) or (
        substituted(spec.fixes, "batches") is not None
    )
    if not mode_of(spec.mode).is_ranks or sees_all:
        return [rounding.jittered(batch, spec.jitter) for batch in batches]
    if Switch.SHARDED_LISTS in spec.fixes:
        batches = [_with_cut_lists(batch, rank, spec.world_size) for batch in batches]
    if Switch.STRIDED_SHARDS in spec.fixes:
        return [tree.strided_shard(batch, rank, spec.world_size) for batch in batches]
    return [tree.shard(batch, rank, spec.world_size) for batch in batches]


def _with_cut_lists(batch: Any, rank: int, world_size: int) -> Any:
    if tree.num_samples(batch) is not None:
        return batch
    size = next(len(t) for t in tree.held(batch) if t.dim())
    start, rows = tree.shard_range(size, rank, world_size)
    paths = samples.lists_of_numbers(batch, size)
    return tree.cut_lists(batch, paths, slice(start, start + rows))
