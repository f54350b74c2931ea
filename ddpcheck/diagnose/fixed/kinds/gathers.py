"""Fixes that give a loss or a module the samples of all ranks."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.diagnose.fixed.kinds.graphs import register_dataclasses
from ddpcheck.run.intervention import (
    GlobalLoss,
    GlobalModule,
    Intervention,
    OffsetLabels,
    Output,
    Switch,
    found,
)

_OF_LAYOUT = {
    Switch.BLOCK_ORDER,
    Switch.COLLECTIVES_ATTACHED,
    Switch.COLLECTIVES_WITH_GRADIENT,
    Switch.LOSS_WITHOUT_RANKS,
}


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what gathers."""
    if isinstance(fix, GlobalModule):
        gather_for_module(draft, wanted, fix)
        return True
    if wanted.facts.has_train_step:
        return False
    if isinstance(fix, GlobalLoss):
        if fix.modules not in ((), ("",)):
            return False
        gather(draft, wanted)
        return True
    if is_of_layout(fix):
        gather(draft, wanted)
        return True
    return False


def is_of_layout(fix: Intervention) -> bool:
    """Returns whether it mends what a loss does with the rows that it gathers.

    A loss that is given all rows gathers none.
    """
    return fix in _OF_LAYOUT or isinstance(fix, OffsetLabels)


_GATHERED = '''\
def gathered(value, counts):
    """Gathers what has {a_row} per sample, with gradient; `counts`: of each rank."""

    def rows(tensor):
        if tensor.dim() and not counts:  # the first tensor shows how many there are
            counts.extend([0] * dist.get_world_size())
            dist.all_gather_object(counts, len(tensor))
{own}        # All ranks gather tensors of one shape.
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        {whole}

    {mapped}
'''
_MAPPED = "return tree_map_only(torch.Tensor, rows, value)"
_MAPPED_LISTS = """\
    def is_list(value):  # with an item per sample
        return counts and type(value) is list and len(value) == counts[dist.get_rank()]

    def change(value):
        if is_list(value):
            return items_of_all(value)
        return rows(value) if isinstance(value, torch.Tensor) else value

    return tree_map(change, value, is_leaf=is_list)"""
_ITEMS = '''\
def items_of_all(items):
    """Returns the items of all ranks; those of this rank carry gradient."""

    def live(tensor):
        if tensor.requires_grad:  # as if W ranks had sent equal gradients
            tensor = tensor.view_as(tensor)
            tensor.register_hook(lambda g: g * dist.get_world_size())
        return tensor

    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, tree_map_only(torch.Tensor, torch.detach, items))
    every[dist.get_rank()] = tree_map_only(torch.Tensor, live, items)
    return [item for part in every for item in part]
'''
_OWN = """\
        if not tensor.dim() or len(tensor) != counts[dist.get_rank()]:
            return tensor
"""
_WHOLE = "return torch.cat([part[:n] for part, n in zip(all_gather(padded), counts)])"
_OWN_BLOCKS = """\
        own = counts[dist.get_rank()]
        if not tensor.dim() or len(tensor) % own:
            return tensor
        tensor = tensor.unflatten(0, (-1, own)).transpose(0, 1)  # a block per view
"""
_WHOLE_BLOCKS = """\
        parts = [part[:n] for part, n in zip(all_gather(padded), counts)]
        return torch.cat(parts).transpose(0, 1).flatten(0, 1)"""


_OWN_DIM = """\
        own = counts[dist.get_rank()]
        dims = [d for d in ({dim}, 0) if tensor.shape[d : d + 1] == (own,)]
        if not dims:
            return tensor
        tensor = tensor.movedim(dims[0], 0)
"""
_WHOLE_DIM = """\
        parts = [part[:n] for part, n in zip(all_gather(padded), counts)]
        return torch.cat(parts).movedim(0, dims[0])"""


def add_gathered(draft: Draft, wanted: Wanted) -> None:
    """Adds the function that gathers."""
    draft.imports.add("from torch.distributed.nn.functional import all_gather")
    draft.imports.add("from torch.utils._pytree import tree_map_only")
    a_row, own, whole = "a row", _OWN, _WHOLE
    outputs = _outputs(wanted)
    dim = max((output.dim for output in outputs), default=0)
    if Switch.BLOCK_ORDER in wanted.fixes or any(o.blocks > 1 for o in outputs):
        a_row, own, whole = "rows", _OWN_BLOCKS, _WHOLE_BLOCKS
    elif dim:  # of the samples
        own, whole = _OWN_DIM.format(dim=dim), _WHOLE_DIM
    draft.parts["gathered"] = _GATHERED.format(
        a_row=a_row,
        own=own,
        whole=whole.strip(),
        mapped=_MAPPED_LISTS.strip() if _has_lists(wanted) else _MAPPED,
    )
    if _has_lists(wanted):
        draft.imports.add("from torch.utils._pytree import tree_map")
        draft.parts["items_of_all"] = _ITEMS
    register_dataclasses(draft, wanted.facts)


def _outputs(wanted: Wanted) -> tuple[Output, ...]:
    fix = found(wanted.fixes, GlobalLoss)
    return fix.outputs if fix else ()


_ALL_ROWS = """\
{pair}
# Every rank computes the same loss of all rows. all_gather's backward sums the W equal
# gradients of a row and DDP divides by W: the gradient of the single process.
"""


def _has_lists(wanted: Wanted) -> bool:
    """Returns whether to look for lists with an item per sample."""
    may_have = bool(wanted.attempt) and found(wanted.fixes, GlobalLoss) is not None
    return may_have or any(output.is_list for output in _outputs(wanted))


_PAIR = "target, output = gathered((target, output), [])"
_RAGGED = "target, output = gathered(target, []), gathered(output, [])"
_LISTS = """\
counts = [0] * dist.get_world_size()
dist.all_gather_object(counts, len(target))
target, output = gathered(target, counts), gathered(output, counts)"""
_HIDDEN = """\
# It has all rows, so its own collectives must not run: it sees no process group.
with mock.patch.object(dist, "is_initialized", return_value=False):
    value = {loss}(output, target)
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


def gather(draft: Draft, wanted: Wanted) -> None:
    """Gives the loss the outputs and targets of all ranks, with gradient."""
    if "gathered(output" in draft.before_loss:
        return
    add_gathered(draft, wanted)
    # Outputs may have other numbers of rows than targets.
    is_ragged = any(o.blocks == 1 and not o.dim for o in _outputs(wanted))
    pair = _RAGGED if is_ragged else _PAIR
    # The first tensor of the targets may be that of one sample.
    draft.before_loss += _ALL_ROWS.format(pair=_LISTS if _has_lists(wanted) else pair)
    compute_alone(draft, wanted)


def compute_alone(draft: Draft, wanted: Wanted) -> None:
    """Computes the loss as the single process does: without a process group."""
    if not wanted.facts.asks_group:
        return
    draft.loss = _ALONE
    if _asks_plainly(wanted):
        draft.loss = _HIDDEN
        draft.imports.add("from unittest import mock")


_PLAIN = re.compile(r"^import torch\.distributed as dist$", re.MULTILINE)
_BY_NAME = re.compile(r"^from\s+torch\.distributed\s+import\s", re.MULTILINE)


def _asks_plainly(wanted: Wanted) -> bool:
    """Returns whether the file asks `dist` for a group; another of its files may not.

    The second attempt hides the group from all of them.
    """
    source = wanted.facts.source
    asks = _PLAIN.search(source) and "dist.is_initialized()" in source
    return bool(asks) and not wanted.attempt and not _BY_NAME.search(source)


_OF_ALL_RANKS = '''\
def of_all_ranks(module):
    """Gives the module the rows of all ranks; it returns those of this rank."""
    forward = module.forward
{hooked}
    def whole(*args, **kwargs):
        if not (module.training and dist.is_initialized()):
            return forward(*args, **kwargs)
        counts = []
        args, kwargs = gathered((args, kwargs), counts)
{compute}

        def own(tensor):
            is_split = tensor.dim() and len(tensor) == sum(counts)
            return tensor.split(counts)[dist.get_rank()] if is_split else tensor

        return tree_map_only(torch.Tensor, own, made)

    module.forward = whole
'''
_HOOKED = """
    names = "_forward_pre_hooks", "_forward_hooks"
    hooks = {name: getattr(module, name) for name in names}
    plain = {"forward": forward, **hooks}

    def forward(*args, **kwargs):  # the module's hooks get the rows of all ranks, too
        with mock.patch.multiple(module, **plain):
            return module(*args, **kwargs)

    for name in hooks:
        setattr(module, name, collections.OrderedDict())
"""
_MADE = "        made = forward(*args, **kwargs)"
_MADE_HIDDEN = """\
        # It has all rows, so its own collectives must not run: it sees no group.
        with mock.patch.object(dist, "is_initialized", return_value=False):
            made = forward(*args, **kwargs)"""
_MADE_ALONE = """\
        # It has all rows, so its own collectives must not run: it sees no group.
        world, dist.group.WORLD = dist.group.WORLD, None
        try:
            made = forward(*args, **kwargs)
        finally:
            dist.group.WORLD = world"""


def gather_for_module(draft: Draft, wanted: Wanted, fix: GlobalModule) -> None:
    """Gives a module the rows of all ranks, with gradient."""
    name, compute = fix.name, _MADE
    if fix.hides and wanted.facts.asks_group:
        compute = _MADE_HIDDEN if _asks_plainly(wanted) else _MADE_ALONE
        draft.imports.add("from unittest import mock")
    hooked = ""
    if "forward_hook(" in wanted.facts.source or "pre_hook(" in wanted.facts.source:
        hooked = _HOOKED
        draft.imports |= {"import collections", "from unittest import mock"}
    draft.parts["of_all_ranks"] = _OF_ALL_RANKS.format(compute=compute, hooked=hooked)
    add_gathered(draft, wanted)
    module = f"model.get_submodule({name!r})" if name else "model"
    draft.before_wrap += f"of_all_ranks({module})\n"
