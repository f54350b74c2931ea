"""Fixes of which samples a rank gets: of the batch, or of its own loaders."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, Substitute, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what shards; False for a loader of a file without train_step."""
    if fix is Switch.STRIDED_SHARDS:
        return deal_batch(draft, wanted)
    if not wanted.facts.has_train_step:
        return False
    if fix is Switch.LOADER_STRIDES or fix is Switch.LOADER_PARTS:
        shard_loaders(draft, in_parts=fix is Switch.LOADER_PARTS)
    elif isinstance(fix, Substitute) and fix.boundary == "orders":
        share_orders(draft, wanted)
    else:
        return False
    return True


_DEALT = '''\
def dealt(samples):
    """Orders the samples so that part r of W is every W-th sample from r on."""
    if not dist.is_initialized():  # the single process
        return samples
    world = dist.get_world_size()

    def order(tensor):
        parts = [tensor[r::world] for r in range(world)] if tensor.dim() else []
        return torch.cat(parts) if parts else tensor

    return tree_map_only(torch.Tensor, order, samples)
'''
_BATCH = """\
def batch({step}):
    return dealt(original.batch{call})
"""


def deal_batch(draft: Draft, wanted: Wanted) -> bool:
    """Deals the batch out in turn: ranks get contiguous parts of another order."""
    source = wanted.facts.source
    function = re.search(r"^def batch\((\w*)\)", source, re.MULTILINE)
    if function is None and not re.search(r"^batch\b.*=", source, re.MULTILINE):
        return False
    step = function[1] if function else ""
    call = f"({step})" if function else ""
    draft.imports.add("from torch.utils._pytree import tree_map_only")
    draft.parts["batch"] = _BATCH.format(step=step, call=call)
    draft.parts["dealt"] = _DEALT
    return True


_STRIDED = '''\
def sharded():
    """A rank gets every W-th sample of a loader: as with a DistributedSampler."""
    plain = BatchSampler.__iter__

    def batches(self):
        every, first, world = self.sampler, dist.get_rank(), dist.get_world_size()
        self.sampler = itertools.islice(every, first, None, world)
        try:
            yield from plain(self)
        finally:
            self.sampler = every

    return mock.patch.object(BatchSampler, "__iter__", batches)
'''
_IN_PARTS = '''\
def sharded():
    """A rank gets its part of each batch of a loader."""
    plain = DataLoader.__iter__

    def own(tensor):
        parts = tensor.tensor_split(dist.get_world_size()) if tensor.dim() else []
        return parts[dist.get_rank()] if parts else tensor

    def batches(self):
        for batch in plain(self):
            yield tree_map_only(torch.Tensor, own, batch)

    return mock.patch.object(DataLoader, "__iter__", batches)
'''


def shard_loaders(draft: Draft, *, in_parts: bool) -> None:
    """Shards the data of the target's own loaders."""
    draft.imports.add("from unittest import mock")
    if in_parts:
        draft.imports.add("from torch.utils._pytree import tree_map_only")
        draft.imports.add("from torch.utils.data import DataLoader")
    else:
        draft.imports.add("import itertools")
        draft.imports.add("from torch.utils.data import BatchSampler")
    draft.parts["sharded"] = _IN_PARTS if in_parts else _STRIDED
    draft.around.append("sharded()")


_ORDERS = '''\
@contextlib.contextmanager
def one_order():
    """All ranks shuffle as rank 0 does: by its orders and by its seeds."""

    def of_first(made):
        held = [made]
        dist.broadcast_object_list(held)
        return held[0]

    def order(*args, **kwargs):
        return of_first(randperm(*args, **kwargs))

    def rng(seed=None):
        return default_rng(of_first(seed))

    randperm, default_rng = torch.randperm, numpy.random.default_rng
    with (
        mock.patch.object(torch, "randperm", order),
        mock.patch.object(numpy.random, "default_rng", rng),
    ):
        yield
'''
_TORCH_ORDERS = '''\
def one_order():
    """All ranks shuffle in the order of rank 0."""
    randperm = torch.randperm

    def order(*args, **kwargs):
        made = randperm(*args, **kwargs)
        dist.broadcast(made, 0)
        return made

    return mock.patch.object(torch, "randperm", order)
'''


def share_orders(draft: Draft, wanted: Wanted) -> None:
    """Gives all ranks the orders in which rank 0 shuffles data."""
    has_numpy = "default_rng(" in wanted.facts.source
    draft.imports.add("from unittest import mock")
    if has_numpy:
        draft.imports |= {"import contextlib", "import numpy"}
    draft.parts["one_order"] = _ORDERS if has_numpy else _TORCH_ORDERS
    draft.around.append("one_order()")
