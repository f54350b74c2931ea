"""The kinds of fixes that a file can make, one function each.

Each adds to a draft what an intervention does in the ranks, in plain torch. The check
of the file decides whether it is the same, so a kind may assume what is usual.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.run.intervention import (
    CountLoss,
    GlobalLoss,
    Intervention,
    Scale,
    ScaleGradients,
    ScaleLoss,
    Switch,
)
from ddpcheck.run.spec import SAMPLES

_CLOSE = 0.01  # of powers
_MOST_POWER = 2


def drafts(
    proposals: Sequence[Proposal], facts: Facts, world_size: int
) -> Iterator[Draft]:
    """Yields the drafts of a file that fixes all these causes, the best first.

    None if a cause has an intervention that no kind of fix makes.
    """
    fixes = list(dict.fromkeys(fix for p in proposals for fix in p.fixes))
    by_hand = any(p.by_hand for p in proposals)
    if fixes and not by_hand and not any(p.noise for p in proposals):
        made = _all_of(fixes, facts, world_size)
        if made is not None:
            yield made
    are_of_loss = all(p.link == "loss" for p in proposals)
    is_gathered = any(isinstance(fix, GlobalLoss) for fix in fixes)
    if are_of_loss and not (by_hand or is_gathered or facts.has_train_step):
        draft = Draft()
        gather(draft, is_alone=_asks_group(facts))
        yield draft


def _all_of(
    fixes: Iterable[Intervention], facts: Facts, world_size: int
) -> Draft | None:
    draft = Draft()
    fixes = list(fixes)
    for fix in fixes:
        if not _add(fix, fixes, draft, facts, world_size):
            return None
    return None if draft.is_empty else draft


def _add(
    fix: Intervention,
    fixes: list[Intervention],
    draft: Draft,
    facts: Facts,
    world_size: int,
) -> bool:
    """Adds one intervention; returns whether a file can make it."""
    if isinstance(fix, ScaleLoss | ScaleGradients):
        scale(draft, facts, fix, world_size)
        return True
    if isinstance(fix, CountLoss) and not facts.has_train_step:
        return weigh_by_count(draft, fix.countable)
    if isinstance(fix, GlobalLoss) and not facts.has_train_step:
        hides = Switch.LOSS_WITHOUT_RANKS in fixes
        is_usual = fix.modules in ((), ("",)) and not fix.outputs
        if not is_usual or (hides and not _asks_group(facts)):
            return False
        gather(draft, is_alone=hides)
        return True
    return fix is Switch.LOSS_WITHOUT_RANKS and any(
        isinstance(other, GlobalLoss) for other in fixes
    )


def _asks_group(facts: Facts) -> bool:
    """Returns whether the file asks torch.distributed for a group by its full name.

    A function that was imported by name would not notice that the group is hidden.
    """
    by_name = re.search(r"from\s+torch\.distributed\S*\s+import", facts.source)
    return ".is_initialized()" in facts.source and not by_name


def scale(
    draft: Draft, facts: Facts, fix: ScaleLoss | ScaleGradients, world_size: int
) -> None:
    """Multiplies the loss by a factor, or the gradients where a step has its own."""
    factor, why = _factor(fix, world_size)
    if isinstance(fix, ScaleLoss) and not facts.has_train_step:
        draft.after_loss += f"# {why}\nvalue = value {factor}\n"
        return
    draft.imports.add(
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks "
        "import allreduce_hook"
    )
    names, state = fix.listed, "None"
    changed = f"    bucket.buffer().mul_({_number(factor)})\n"
    if names:
        changed, state = _OF_CHOSEN.format(factor=_number(factor)), "chosen"
        draft.before_wrap += (
            f"names = {_set(names)}\n"
            "chosen = {id(p) for n, p in model.named_parameters() if n in names}\n"
        )
    draft.parts["scaled"] = _SCALED.format(why=why, changed=changed)
    draft.after_wrap += _HOOKED.format(state=state)


_SCALED = """\
def scaled(chosen, bucket):
    # {why}
{changed}    return allreduce_hook(None, bucket)  # the mean over ranks, as of DDP
"""
_OF_CHOSEN = """\
    pairs = zip(bucket.parameters(), bucket.gradients())
    for gradient in (g for p, g in pairs if id(p) in chosen):
        gradient.mul_({factor})
"""
_HOOKED = """\
for module in wrapped.modules():
    if isinstance(module, DistributedDataParallel):
        module.register_comm_hook({state}, scaled)
"""


def _set(names: Sequence[str]) -> str:
    return "{" + ", ".join(map(repr, names)) + "}"


def _factor(fix: Scale, world_size: int) -> tuple[str, str]:
    """Returns a factor as "* W" or the like, and the comment that explains it."""
    world = "dist.get_world_size()"
    power = math.log(fix.factor) / math.log(world_size) if fix.factor > 0 else 0.0
    whole = round(power)
    if not whole or abs(power - whole) > _CLOSE or abs(whole) > _MOST_POWER:
        return f"* {fix.factor:.17g}", "The ranks' gradients lack this factor."
    sign = "*" if whole > 0 else "/"
    if abs(whole) == _MOST_POWER:
        world += "**2"
    why = "DDP divides the sum over ranks by W; here the sum itself is right."
    if whole < 0:
        why = "The gradients already have the factor W."
    return f"{sign} {world}", why


def _number(factor: str) -> str:
    return factor[2:] if factor.startswith("*") else f"1 {factor}"


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


GATHER = '''\
class Gather(torch.autograd.Function):
    """Concatenates the rows of all ranks; its backward sums their gradients."""

    @staticmethod
    def forward(ctx, rows, counts):
        ctx.counts = counts
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # of equal shapes
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        return torch.cat([part[:n] for part, n in zip(found, counts)])

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.split(ctx.counts)[dist.get_rank()], None
'''
EACH = '''\
def each(change, value):
    """Returns the value with every tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if dataclasses.is_dataclass(value):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **each(change, parts))
    if isinstance(value, dict):
        return {key: each(change, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [each(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
'''
GATHERED = '''\
def gathered(value, counts):
    """Gathers what has a row per sample; `counts` is the samples of each rank."""

    def rows(tensor):
        if tensor.dim() and not counts:  # the first tensor shows how many there are
            counts.extend([0] * dist.get_world_size())
            dist.all_gather_object(counts, len(tensor))
        own = tensor.dim() and len(tensor) == counts[dist.get_rank()]
        return Gather.apply(tensor, counts) if own else tensor

    return each(rows, value)
'''
_ALL_ROWS = """\
counts = []
target, output = gathered(target, counts), gathered(output, counts)
# Every rank computes the same loss of all rows. Gather's backward sums the W equal
# gradients of a row and DDP divides by W: the gradient of the single process.
"""
_ALONE = """\
# It has all rows, so its own collectives must not run: no group is in its sight.
with mock.patch.object(dist, "is_initialized", return_value=False):
    value = {loss}(output, target)
"""


def gather(draft: Draft, *, is_alone: bool) -> None:
    """Gives the loss the outputs and targets of all ranks, with gradient."""
    draft.imports.add("import dataclasses")
    draft.parts |= {"Gather": GATHER, "each": EACH, "gathered": GATHERED}
    draft.before_loss += _ALL_ROWS
    if is_alone:
        draft.imports.add("from unittest import mock")
        draft.loss = _ALONE
