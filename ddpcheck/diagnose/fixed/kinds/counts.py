"""Fixes that weigh a loss by the rank's share of a count."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import CountLoss, Intervention
from ddpcheck.run.spec import SAMPLES


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds a weight."""
    if not isinstance(fix, CountLoss):
        return False
    if wanted.facts.has_train_step:
        return weigh_backward(draft, wanted, fix.countable)
    return weigh_by_count(draft, wanted, fix.countable)


_WHY = """\
# The rank divides by its own count n, the single process by N, that of all ranks.
# DDP averages over W ranks: with W * n / N every rank's mean has its share of N.
"""
_SHARE = """\
total = n.clone()
dist.all_reduce(total)
"""
_WEIGHT = "value = value * dist.get_world_size() * n / total\n"
_WEIGHTED = '''\
def weighted(n):
    """Weighs every loss by the rank's share of a count, before its backward."""
    # The rank divides by its own count n, the single process by N, that of all ranks.
    # DDP averages over W ranks: with W * n / N every rank's mean has its share of N.
    total = n.clone()
    dist.all_reduce(total)
    backward = torch.Tensor.backward

    def run(loss, *args, **kwargs):
        backward(loss * dist.get_world_size() * n / total, *args, **kwargs)

    return mock.patch.object(torch.Tensor, "backward", run)
'''
_NOTED = """\
wrapped.register_forward_pre_hook(
    lambda _, args, kwargs: given.update(args=args, kwargs=kwargs), with_kwargs=True
)
"""
_ROWS = "torch.tensor(float(len({})))"


def weigh_by_count(draft: Draft, wanted: Wanted, countable: str) -> bool:
    """Weighs the loss by the rank's share of a count; False for one it cannot count."""
    count = "torch.tensor(float(len(target)), device=value.device)"
    if countable != SAMPLES:
        count = _count(countable, by_name=bool(wanted.attempt))
    if "given[" in count:
        draft.parts["given"] = "given = {}  # what the model was called with\n"
        draft.after_wrap += _NOTED
    draft.after_loss += f"{_WHY}n = {count}\n{_SHARE}{_WEIGHT}"
    return bool(count)


def weigh_backward(draft: Draft, wanted: Wanted, countable: str) -> bool:
    """Weighs every loss of a train_step by the rank's share of a count."""
    count = "torch.tensor(len(tree_leaves(batch)[0]))"
    if countable == SAMPLES:
        draft.imports.add("from torch.utils._pytree import tree_leaves")
    else:
        count = _count(countable, by_name=bool(wanted.attempt))
    draft.imports.add("from unittest import mock")
    draft.parts["weighted"] = _WEIGHTED
    draft.around.append(f"weighted({count})")
    return bool(count)


_FORM = re.compile(r"(?P<path>.+?)(?P<shift>\[:, 1:\])? (?P<kind>sum|not NaN|[!=]= .+)")


def _count(countable: str, *, by_name: bool) -> str:
    """Returns the code that counts, "" for a count of another form.

    `by_name`: names are attributes, not keys.
    """
    found = _FORM.fullmatch(countable)
    if found is None:
        return ""
    first, *steps = found["path"].split(".")
    if first == "input":
        # A tuple is the model's arguments, a dict its keyword arguments.
        is_named = bool(steps) and not steps[0].isdigit()
        first = "given['kwargs']" if is_named and not by_name else "given['args']"
        if not steps or (is_named and by_name):
            steps = ["0", *steps]
    leaf = first + "".join(_step(step, by_name=by_name) for step in steps)
    leaf, kind = leaf + (found["shift"] or ""), found["kind"]
    if kind == "sum":
        return f"{leaf}.sum()"
    if kind == "not NaN":
        return f"(~{leaf}.isnan()).sum()"
    return f"({leaf} {kind}).sum()"


def _step(step: str, *, by_name: bool) -> str:
    if step.isdigit():
        return f"[{step}]"
    return f".{step}" if by_name else f"[{step!r}]"
