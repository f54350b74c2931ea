"""The global batches as a rank has them, and its shard of each."""

from __future__ import annotations

from typing import Any

from ddpcheck.compare import tree
from ddpcheck.run import fix_names
from ddpcheck.run.interventions.gather import alone
from ddpcheck.run.modes import rounding
from ddpcheck.run.modes.batches import batches_of
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.observe import undivided
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import Target


def whole(target: Target, spec: RunSpec) -> list[Any]:
    """Returns the global batch of every step, as the target gives it on this rank."""
    if fix_names.argument(spec.fixes, "data.alone") is None:
        return batches_of(target, spec)
    found: list[Any] = alone(batches_of, target, spec)
    return found


def of_rank(batches: list[Any], spec: RunSpec, rank: int) -> list[Any]:
    """Returns what this rank trains on in every step: all of it, in one process."""
    sees_all = any(f.startswith(("loss.global", "data.whole")) for f in spec.fixes)
    if not mode_of(spec.mode).is_ranks or sees_all:
        return [rounding.jittered(batch, spec.jitter) for batch in batches]
    if fix_names.argument(spec.fixes, "data.lists") is not None:
        batches = [_with_cut_lists(batch, rank, spec.world_size) for batch in batches]
    if fix_names.argument(spec.fixes, "data.strided") is not None:
        return [tree.strided_shard(batch, rank, spec.world_size) for batch in batches]
    return [tree.shard(batch, rank, spec.world_size) for batch in batches]


def _with_cut_lists(batch: Any, rank: int, world_size: int) -> Any:
    if tree.num_samples(batch) is not None:
        return batch
    size = next(len(t) for t in tree.held(batch) if t.dim())
    start, rows = tree.shard_range(size, rank, world_size)
    paths = undivided.lists_of_numbers(batch, size)
    return tree.cut_lists(batch, paths, slice(start, start + rows))
