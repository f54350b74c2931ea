"""Fixes of random numbers: those of the global batch on every rank, each its rows."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds import decisions, samples, whole_steps
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import DrawGlobalBatch, Intervention, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what draws for all samples, from generators that are in the same state.

    At the second attempt these are seeded alike, and a step has the samples of all.
    """
    if not isinstance(fix, DrawGlobalBatch) and fix is not Switch.CONSTANT_DRAWS:
        return False
    shapes = fix.shapes if isinstance(fix, DrawGlobalBatch) else ()
    is_of_rank = bool(_BY_RANK.search(wanted.facts.source))
    if not wanted.attempt:
        draw_for_all(draft, wanted, shapes)
    elif wanted.facts.has_train_step:
        whole_steps.give_all_rows(draft, wanted)
    if is_of_rank:
        decisions.act_as_one_rank(draft, wanted)
    elif wanted.attempt:
        draft.optimizer += "torch.manual_seed(0)  # the same numbers on all ranks\n"
    return True


_BY_RANK = re.compile(r"(seed|Generator|rng|Random).*\brank\b")
_DRAWS = '''\
class DrawsForAll(TorchDispatchMode):
    """Draws random numbers for the samples of all ranks, and keeps this rank's."""

    def __init__(self, rows):
        super().__init__()
        self.rank, self.counts = dist.get_rank(), [0] * dist.get_world_size()
        dist.all_gather_object(self.counts, rows)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {{}}))
        whole = [self.of_all(value) for value in args]
        if all(a is b for a, b in zip(args, whole)):  # not of samples
            return func(*args, **(kwargs or {{}}))
        own = tree_map_only(torch.Tensor, self.own, func(*whole, **(kwargs or {{}})))
        return args[0].copy_(own) if func._schema.is_mutable else own

    def whole(self, shape):
        """Returns the shape for the samples of all ranks, None if it has no samples."""
        if not shape or not shape[0] or shape[0] % self.counts[self.rank]:
            return None
        whole = shape[0] // self.counts[self.rank] * sum(self.counts), *shape[1:]
        return {known}

    def of_all(self, value):
        """Returns the rows of all ranks; of a shape, that of all rows."""
        if isinstance(value, (list, tuple)):
            return self.whole(value) or value
        whole = self.whole(value.shape) if torch.is_tensor(value) else None
        if whole is None:
            return value
        times = whole[0] // sum(self.counts)
        parts = [value.new_empty(n * times, *value.shape[1:]) for n in self.counts]
        dist.all_gather(parts, value.contiguous())
        order = sorted(range(value.dim()), key=lambda dim: -value.stride(dim))
        kind = {{"dtype": value.dtype, "device": value.device}}
        # Draws follow the order in memory, as of attention that transposes.
        return torch.empty_permuted(whole, order, **kind).copy_(torch.cat(parts))

    def own(self, value):
        total = sum(self.counts)
        times = len(value) // total
        return value.split([n * times for n in self.counts])[self.rank].clone()
'''


def draw_for_all(
    draft: Draft, wanted: Wanted, shapes: tuple[tuple[int, ...], ...] = ()
) -> None:
    """Draws the random numbers of the global batch, in the step or in forward.

    `shapes`: of the draws of the single process; a rank draws others as they are.
    """
    draft.imports |= {
        "from torch.utils._python_dispatch import TorchDispatchMode",
        "from torch.utils._pytree import tree_map_only",
    }
    known = (
        f"whole if whole in {listed_shapes(shapes)} else None" if shapes else "whole"
    )
    draft.parts["DrawsForAll"] = _DRAWS.format(known=known)
    samples.run_within(draft, wanted, "DrawsForAll", needs_model=False)


def listed_shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    """Returns the shapes as code."""
    return "{" + ", ".join(map(repr, shapes)) + "}"
