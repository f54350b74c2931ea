"""Fixes that give a loss or a module the samples of all ranks."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds.family import Wanted, asks_group
from ddpcheck.run.intervention import GlobalLoss, GlobalModule, Intervention, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what gathers."""
    facts = wanted.facts
    if isinstance(fix, GlobalModule):
        gather_for_module(draft, facts, fix)
        return True
    if facts.has_train_step:
        return False
    hides = Switch.LOSS_WITHOUT_RANKS in wanted.fixes
    if isinstance(fix, GlobalLoss):
        is_usual = fix.modules in ((), ("",)) and not fix.outputs
        if not is_usual or (hides and not asks_group(facts)):
            return False
        gather(draft, is_alone=hides)
        return True
    return fix is Switch.LOSS_WITHOUT_RANKS and any(
        isinstance(other, GlobalLoss) for other in wanted.fixes
    )


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


_OF_ALL_RANKS = '''\
def of_all_ranks(module):
    """Gives the module the rows of all ranks; it returns those of this rank."""
    forward = module.forward

    def whole(*args, **kwargs):
        if not (module.training and dist.is_initialized()):
            return forward(*args, **kwargs)
        counts = []
        args, kwargs = gathered(args, counts), gathered(kwargs, counts)
{compute}

        def own(tensor):
            is_split = tensor.dim() and len(tensor) == sum(counts)
            return tensor.split(counts)[dist.get_rank()] if is_split else tensor

        return each(own, made)

    module.forward = whole
'''
_MADE = "        made = forward(*args, **kwargs)"
_MADE_ALONE = """\
        # It has all rows, so its own collectives must not run: it sees no group.
        with mock.patch.object(dist, "is_initialized", return_value=False):
            made = forward(*args, **kwargs)"""


def gather_for_module(draft: Draft, facts: Facts, fix: GlobalModule) -> None:
    """Gives a module the rows of all ranks, with gradient."""
    draft.imports.add("import dataclasses")
    name, compute = fix.name, _MADE
    if fix.hides and asks_group(facts):
        draft.imports.add("from unittest import mock")
        compute = _MADE_ALONE
    draft.parts["of_all_ranks"] = _OF_ALL_RANKS.format(compute=compute)
    draft.parts |= {"Gather": GATHER, "each": EACH, "gathered": GATHERED}
    module = f"model.get_submodule({name!r})" if name else "model"
    draft.before_wrap += f"of_all_ranks({module})\n"
