"""Fixes that give a loss or a module the samples of all ranks."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.diagnose.fixed.kinds.graphs import register_dataclasses
from ddpcheck.run.intervention import GlobalLoss, GlobalModule, Intervention, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what gathers."""
    facts = wanted.facts
    if isinstance(fix, GlobalModule):
        gather_for_module(draft, facts, fix)
        return True
    if facts.has_train_step:
        return False
    if isinstance(fix, GlobalLoss):
        if fix.modules not in ((), ("",)):
            return False
        is_ragged = any(o.blocks == 1 and not o.dim for o in fix.outputs)
        gather(draft, facts, is_ragged=is_ragged)
        return True
    return fix is Switch.LOSS_WITHOUT_RANKS and any(
        isinstance(other, GlobalLoss) for other in wanted.fixes
    )


_GATHERED = '''\
def gathered(value, counts):
    """Gathers what has a row per sample, with gradient; `counts`: of each rank."""

    def rows(tensor):
        if tensor.dim() and not counts:  # the first tensor shows how many there are
            counts.extend([0] * dist.get_world_size())
            dist.all_gather_object(counts, len(tensor))
        if not tensor.dim() or len(tensor) != counts[dist.get_rank()]:
            return tensor
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])  # of equal shapes
        padded[: len(tensor)] = tensor
        return torch.cat([part[:n] for part, n in zip(all_gather(padded), counts)])

    return tree_map_only(torch.Tensor, rows, value)
'''


def add_gathered(draft: Draft, facts: Facts) -> None:
    """Adds the function that gathers."""
    draft.imports.add("from torch.distributed.nn.functional import all_gather")
    draft.imports.add("from torch.utils._pytree import tree_map_only")
    draft.parts["gathered"] = _GATHERED
    register_dataclasses(draft, facts)


_ALL_ROWS = """\
counts = []
target, output = gathered(target, counts), gathered(output, {counts})
# Every rank computes the same loss of all rows. all_gather's backward sums the W equal
# gradients of a row and DDP divides by W: the gradient of the single process.
"""
# is_initialized() reads the group that is the default one, under any imported name.
_ALONE = """\
# It has all rows, so its own collectives must not run: it sees no process group.
world, dist.group.WORLD = dist.group.WORLD, None
try:
    value = {loss}(output, target)
finally:
    dist.group.WORLD = world
"""


def gather(draft: Draft, facts: Facts, *, is_ragged: bool) -> None:
    """Gives the loss the outputs and targets of all ranks, with gradient.

    `is_ragged`: outputs have other numbers of rows than targets.
    """
    add_gathered(draft, facts)
    draft.before_loss += _ALL_ROWS.format(counts="[]" if is_ragged else "counts")
    if facts.asks_group:
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

        return tree_map_only(torch.Tensor, own, made)

    module.forward = whole
'''
_MADE = "        made = forward(*args, **kwargs)"
_MADE_ALONE = """\
        # It has all rows, so its own collectives must not run: it sees no group.
        world, dist.group.WORLD = dist.group.WORLD, None
        try:
            made = forward(*args, **kwargs)
        finally:
            dist.group.WORLD = world"""


def gather_for_module(draft: Draft, facts: Facts, fix: GlobalModule) -> None:
    """Gives a module the rows of all ranks, with gradient."""
    name, compute = fix.name, _MADE
    if fix.hides and facts.asks_group:
        compute = _MADE_ALONE
    draft.parts["of_all_ranks"] = _OF_ALL_RANKS.format(compute=compute)
    add_gathered(draft, facts)
    module = f"model.get_submodule({name!r})" if name else "model"
    draft.before_wrap += f"of_all_ranks({module})\n"
