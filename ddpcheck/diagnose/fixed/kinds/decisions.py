"""Fixes of what a rank decides by itself: all ranks decide by the same numbers."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, Substitute, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what makes ranks decide alike."""
    if fix is Switch.MEAN_OF_NUMBERS or fix is Switch.SUM_OF_NUMBERS:
        share_numbers(draft, wanted, sums=fix is Switch.SUM_OF_NUMBERS)
    elif fix is Switch.FIRST_RANK or fix is Switch.SECOND_RANK:
        act_as_one_rank(draft, wanted, rank=int(fix is Switch.SECOND_RANK))
    elif isinstance(fix, Substitute) and fix.boundary == "schedule":
        share_schedule(draft, wanted)
    elif fix is Switch.GRADIENTS_AS_LEFT and not wanted.attempt:
        act_as_one(draft, wanted)
    elif fix is Switch.GRADIENTS_AS_LEFT:
        share_numbers(draft, wanted, sums=False)
    else:
        return False
    return True


_NUMBERS = '''\
READS = "item", "float", "int", "bool", "lt", "le", "gt", "ge", "eq", "ne"


class Shared(TorchFunctionMode{also}):
    """Every number that the code reads of a tensor is the mean over ranks.

    A condition holds if it holds on any rank.{of_counts}
    All ranks read equally often.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        reads = func.__name__.strip("_") in READS
        if reads and all(n.numel() == 1 for n in args if torch.is_tensor(n)):
            args = [shared(n) if torch.is_tensor(n) else n for n in args]
        made = func(*args, **(kwargs or {{}}))
        if func.__name__ == "backward":  # the loss is then that of all samples
            args[0].data.copy_(shared(args[0]))
        return made


def shared(number):
    total = number.detach().clone().double()  # reading changes nothing
    is_condition = number.dtype == torch.bool
    dist.all_reduce(total, dist.ReduceOp.MAX if is_condition else dist.ReduceOp.SUM)
    if not is_condition{unless_count}:
        total = total / dist.get_world_size()
    return total.to(number.dtype)
'''


def share_numbers(draft: Draft, wanted: Wanted, *, sums: bool) -> None:
    """Reduces each number over ranks when it is read; `sums`: counts are added."""
    draft.imports.add("from torch.overrides import TorchFunctionMode")
    also = ""
    if not wanted.facts.has_train_step:  # it is put around forward and step()
        also = ", contextlib.ContextDecorator"
        draft.imports.add("import contextlib")
    draft.parts["Shared"] = _NUMBERS.format(
        also=also,
        of_counts=" Counts are added." if sums else "",
        unless_count=" and number.is_floating_point()" if sums else "",
    )
    draft.around.append("Shared()")


_RANK = 'mock.patch.object({owner}, "{name}", lambda *_: {rank})'
_IMPORTED = re.compile(r"^from torch\.distributed import .*\bget_rank\b", re.MULTILINE)
# A function that returns the rank; one that compares it returns another value.
_OWN = re.compile(
    r"^def (\w+)\(\):\n\s+return (?!.*([=!]=|[<>]|not \w*\.?get_rank)).*\bget_rank\b",
    re.MULTILINE,
)


def act_as_one_rank(draft: Draft, wanted: Wanted, rank: int = 0) -> None:
    """Gives code that asks for its rank this answer: all do what that rank does."""
    draft.imports.add("from unittest import mock")
    source = wanted.facts.source
    own = _OWN.search(source)
    first = _RANK.format(owner="dist", name="get_rank", rank=rank)
    if own and source.count("get_rank") == 1:
        first = _RANK.format(owner="original", name=own[1], rank=rank)
    elif _IMPORTED.search(source):
        first = _RANK.format(owner="original", name="get_rank", rank=rank)
    for contexts in (draft.around, draft.building):
        if first not in contexts:
            contexts.append(first)


_ONE = 'mock.patch.object(dist, "get_world_size", lambda *_: 1)'


def share_schedule(draft: Draft, wanted: Wanted) -> None:
    """Gives all ranks the learning rate of the single process.

    First: it depends on numbers of the rank's own. Then: on the rank, or how many.
    """
    source = wanted.facts.source
    asks = re.search(r"get_rank|get_world_size|is_initialized", source)
    if bool(asks) == bool(wanted.attempt):
        share_numbers(draft, wanted, sums=False)
        return
    act_as_one(draft, wanted)


def act_as_one(draft: Draft, wanted: Wanted) -> None:
    """Lets each rank do what the single process does: as of the parts of a whole."""
    act_as_one_rank(draft, wanted)
    draft.around.append(_ONE)
    draft.building.append(_ONE)
