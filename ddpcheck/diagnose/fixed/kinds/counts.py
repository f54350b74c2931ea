"""Fixes that weigh a loss by the rank's share of a count."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import CountLoss, Intervention
from ddpcheck.run.spec import SAMPLES


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds a weight."""
    if wanted.facts.has_train_step or not isinstance(fix, CountLoss):
        return False
    return weigh_by_count(draft, fix.countable)


_WEIGHT = """\
# The rank divides by its own count n, the single process by N, that of all ranks.
# DDP averages over W ranks: with W * n / N every rank's mean has its share of N.
n = {count}
total = n.clone()
dist.all_reduce(total)
value = value * dist.get_world_size() * n / total
"""


def weigh_by_count(draft: Draft, countable: str) -> bool:
    """Weighs the loss by the rank's share of a count; False for one it cannot count."""
    count = _count(countable)
    if count is None:
        return False
    draft.after_loss += _WEIGHT.format(count=count)
    return True


def _count(countable: str) -> str | None:
    if countable == SAMPLES:
        return "torch.tensor(float(len(target)), device=value.device)"
    found = re.fullmatch(r"target(\[:, 1:\])? (.+)", countable)
    if not found:
        return None
    leaf, kind = f"target{found[1] or ''}", found[2]
    if kind == "sum":
        return f"{leaf}.sum()"
    if kind == "not NaN":
        return f"(~{leaf}.isnan()).sum()"
    return f"({leaf} {kind}).sum()"
