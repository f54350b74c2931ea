"""Interventions on how the target's own data loaders shard its data.

LOADER_STRIDES    a rank gets every W-th sample of a loader's sampler
LOADER_PARTS      a rank gets its part of every batch of a loader
LOADER_UNPADDED   samples that DistributedSampler repeats to fill shards do not count
EMPTY_BATCHES     a rank without a batch left continues with an empty one

EMPTY_BATCHES: while any rank calls the model on one more batch, ranks that have reached
their update run their last batch again with a loss of 0. So every rank has as many
backwards, and the gradients that it has accumulated stay the same.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from ddpcheck.compare import tree
from ddpcheck.run.observe import samples
from ddpcheck.run.process.replacing import replaced


def stride() -> contextlib.AbstractContextManager[None]:
    """Every W-th sample of a loader's sampler, starting at the rank."""

    def strided(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def batches(self: Any) -> Iterator[Any]:
            before = self.sampler
            rank, world_size = dist.get_rank(), dist.get_world_size()
            # Not drawn ahead: one more permutation would shift all later draws.
            self.sampler = itertools.islice(before, rank, None, world_size)
            try:
                yield from plain(self)
            finally:
                self.sampler = before

        return batches

    return _iterated(BatchSampler, strided)


def part() -> contextlib.AbstractContextManager[None]:
    """The rank's part of every batch of a loader, in equal contiguous parts."""

    def parts(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def batches(self: Any) -> Iterator[Any]:
            rank, world_size = dist.get_rank(), dist.get_world_size()
            for batch in plain(self):
                yield tree.shard(batch, rank, world_size)

        return batches

    return _iterated(DataLoader, parts)


@contextlib.contextmanager
def unpadded(model: nn.Module) -> Iterator[Callable[[], float]]:
    """No repeats in shards; yields a function that returns the next backward's factor.

    That is W * n_r / N, of the samples that count in the last batch. A batch of repeats
    alone is still run, as other ranks wait for it, and counts 0 samples.
    """
    shard = _Unpadded()
    with (
        samples.watch_samples(model, shard.called),
        _iterated(BatchSampler, shard.batches),
        _iterated(DistributedSampler, shard.indices),
        _iterated(DataLoader, _without_workers),
    ):
        yield shard.factor


def _without_workers(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes a loader give each batch as it is drawn; workers draw several ahead."""

    def batches(self: Any) -> Iterator[Any]:
        before, self.num_workers = self.num_workers, 0
        try:
            yield from plain(self)
        finally:
            self.num_workers = before

    return batches


class _Unpadded:
    """Counts the samples of the last batch, of a loader or of a call."""

    def __init__(self) -> None:
        self.rows = 0  # of the model's last call
        self.kept: int | None = None  # in a loader's last batch
        self.in_loader = False

    def called(self, numbers: samples.Numbers) -> None:
        """Notes a call of the model."""
        self.rows = len(numbers)

    def factor(self) -> float:
        """Returns W * n_r / N: a collective."""
        mine = float(self.rows if self.kept is None else self.kept)
        every = torch.tensor(mine)
        dist.all_reduce(every)
        return dist.get_world_size() * mine / float(every)

    def indices(self, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns how a sampler gives its shard: no repeats, but within a loader."""

        def own(sampler: Any) -> Iterator[int]:
            every = plain(sampler)
            yield from (
                every if self.in_loader else itertools.islice(every, _own(sampler))
            )

        return own

    def batches(self, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns how a loader batches a shard; one of repeats alone counts none."""

        def kept(batch_sampler: Any) -> Iterator[list[int]]:
            left = _own(batch_sampler.sampler)
            self.in_loader = True
            try:
                for batch in plain(batch_sampler):
                    self.kept = max(min(left, len(batch)), 0)
                    left -= len(batch)
                    yield batch[: self.kept] or batch
            finally:
                self.in_loader = False

        def batches(batch_sampler: Any) -> Iterator[list[int]]:
            is_padded = isinstance(batch_sampler.sampler, DistributedSampler)
            yield from (kept if is_padded else plain)(batch_sampler)

        return batches


def _own(sampler: Any) -> int:
    """Returns how many samples of a rank's shard are no repeats."""
    return len(range(sampler.rank, len(sampler.dataset), sampler.num_replicas))


def _iterated(
    owner: Any, change: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
) -> contextlib.AbstractContextManager[None]:
    """Replaces the iteration of the class by what `change` returns."""
    return replaced(owner, __iter__=change(owner.__iter__))


@contextlib.contextmanager
def filled() -> Iterator[None]:
    """Runs empty batches before an update on ranks that had fewer batches."""
    plain: Any = DistributedDataParallel.forward
    last: list[tuple[Any, Any, Any]] = []

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            _any_rank(continues=True)
            last[:] = [(self, args, kwargs)]
        return plain(self, *args, **kwargs)

    def before_update(*_: Any) -> None:
        while _any_rank(continues=False):
            _run_empty(plain, last)

    with (
        register_optimizer_step_pre_hook(before_update),
        replaced(DistributedDataParallel, forward=forward),
    ):
        yield


def _run_empty(forward: Callable[..., Any], last: list[tuple[Any, Any, Any]]) -> None:
    if not last:
        raise RuntimeError("a rank has no batch that it could run with a loss of 0")
    model, args, kwargs = last[0]
    with torch.enable_grad():
        outputs = [
            t for t in tree.held(forward(model, *args, **kwargs)) if t.requires_grad
        ]
        sum((t.sum() * 0 for t in outputs), torch.zeros(())).backward()


def _any_rank(*, continues: bool) -> bool:
    """Returns whether any rank calls the model again; all ranks ask together."""
    count = torch.tensor(float(continues))
    dist.all_reduce(count)
    return bool(count)
