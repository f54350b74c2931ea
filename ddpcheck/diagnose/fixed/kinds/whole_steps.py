"""Fixes that give a train_step the samples of all ranks; the model computes its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpcheck.diagnose.fixed.draft import Draft, Facts, has_loss
from ddpcheck.diagnose.fixed.kinds import gathers
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import (
    CountMicroBatches,
    GlobalLoss,
    Intervention,
    Substitute,
    Switch,
    found,
)

_OF_ALL_SAMPLES = Switch.STATISTICS_OF_ALL_RANKS, Switch.EMPTY_BATCHES


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds the step, or the loss that the model computes itself."""
    if isinstance(fix, GlobalLoss) and not wanted.facts.has_train_step:
        give_all_to_model(draft, wanted, fix.modules)
        return True
    is_substitute = isinstance(fix, Substitute) and fix.boundary == "batches"
    # With all samples, all ranks cut them into the same batches.
    is_known = is_substitute or fix in _OF_ALL_SAMPLES
    is_counted = isinstance(fix, GlobalLoss | CountMicroBatches)
    if not wanted.facts.has_train_step or not (
        is_known or is_counted or gathers.is_of_layout(fix)
    ):
        return False
    give_all_rows(draft, wanted)
    return True


def is_given_all(wanted: Wanted) -> bool:
    """Returns whether the model is given all rows, which some modules split again."""
    fix = found(wanted.fixes, GlobalLoss)
    has_step = wanted.facts.has_train_step
    return fix is not None and not has_step and fix.modules not in ((), ("",))


_IN_PARTS = '''\
def in_parts(module):
    """The module computes the rank's part of all rows, and returns all rows."""
    # All ranks compute the same loss of them. all_gather's backward sums the W equal
    # gradients of a row and DDP divides by W: the gradient of the single process.
    forward = module.forward

    def run(*args, **kwargs):
        given = args, kwargs
        rows = next(t for t in tree_leaves(given) if torch.is_tensor(t) and t.dim())
        counts = [len(part) for part in rows.tensor_split(dist.get_world_size())]

        def own(tensor):
{own}
        args, kwargs = tree_map_only(torch.Tensor, own, given)
{call}
'''
_TAKES_SLOPES = re.compile(r"\.requires_grad\b|requires_grad_\(|\.grad\b")
_OWN = """\
            is_split = tensor.dim() and len(tensor) == sum(counts)
            return tensor.split(counts)[dist.get_rank()] if is_split else tensor
"""
_OWN_WITH_SLOPE = """\
            if not tensor.dim() or len(tensor) != sum(counts):
                return tensor
            if tensor.requires_grad:  # its gradient is that of all rows
                tensor = tensor.view_as(tensor)
                tensor.register_hook(lambda g: all_reduce(g) / dist.get_world_size())
            return tensor.split(counts)[dist.get_rank()]
"""
_CALL = "        return gathered(forward(*args, **kwargs), counts)\n"
_CALL_IN_GROUP = """\
        with mock.patch.object(dist, "is_initialized", return_value=True):
            made = forward(*args, **kwargs)  # its own collectives run
        return gathered(made, counts)
"""
_FOR_A_STEP = '    return mock.patch.object(module, "forward", run)\n'
_FOR_GOOD = "    module.forward = run\n"
_ALL_TO_MODEL = """\
forward = wrapped.forward

def whole(*args, **kwargs):
    return forward(*gathered(args, []), **gathered(kwargs, []))

wrapped.forward = whole
"""


def give_all_rows(draft: Draft, wanted: Wanted) -> None:
    """Gives the step the batch of all ranks, and splits it again for the model."""
    if "in_parts" in draft.parts:
        return
    global_loss = found(wanted.fixes, GlobalLoss)
    modules = (global_loss.modules if global_loss else ()) or ("",)
    draft.imports.add("from unittest import mock")
    _add_in_parts(draft, wanted, _FOR_A_STEP)
    draft.before_step += "batch = gathered(batch, [])\n"
    inside = 'getattr(model, "module", model)'
    draft.around += [
        f"in_parts({inside}.get_submodule({name!r}))" if name else "in_parts(model)"
        for name in modules
    ]
    draft.around += _hidden(wanted.facts)


def give_all_to_model(draft: Draft, wanted: Wanted, modules: Sequence[str]) -> None:
    """Gives the model the inputs of all ranks, and splits them for these modules."""
    _add_in_parts(draft, wanted, _FOR_GOOD)
    for name in modules:
        draft.before_wrap += f"in_parts(model.get_submodule({name!r}))\n"
    draft.after_wrap += _ALL_TO_MODEL
    if has_loss(wanted.facts.source):
        draft.before_loss += "target = gathered(target, [])\n"
        gathers.compute_alone(draft, wanted)


def _add_in_parts(draft: Draft, wanted: Wanted, end: str) -> None:
    own = _OWN
    if _TAKES_SLOPES.search(wanted.facts.source):
        own = _OWN_WITH_SLOPE
        draft.imports.add("from torch.distributed.nn.functional import all_reduce")
    draft.imports.add("from torch.utils._pytree import tree_leaves")
    is_hidden = wanted.facts.asks_group and wanted.facts.has_train_step
    call = _CALL_IN_GROUP if is_hidden else _CALL
    draft.parts["in_parts"] = _IN_PARTS.format(own=own, call=call) + end
    gathers.add_gathered(draft, wanted)


_HIDDEN = 'mock.patch.object({}, "is_initialized", return_value=False)'
_ASKS_BY_NAME = re.compile(
    r"^from\s+torch\.distributed\s+import\s.*\bis_initialized\b", re.MULTILINE
)


def _hidden(facts: Facts) -> list[str]:
    """Returns the contexts in which the step sees no group, as it has all rows.

    DDP and the functions here still do.
    """
    if not facts.asks_group:
        return []
    by_name = _ASKS_BY_NAME.search(facts.source)
    return [_HIDDEN.format("dist"), *[_HIDDEN.format("original")][: bool(by_name)]]
