"""Fixes that give a train_step the samples of all ranks; the model computes its own."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds import gathers
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import GlobalLoss, Intervention, Substitute, Switch

# Substitutes of what such a step computes of all samples, as the single process.
_BOUNDARIES = {"addends", "batches"}


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds the step."""
    if not wanted.facts.has_train_step:
        return False
    is_substitute = isinstance(fix, Substitute) and fix.boundary in _BOUNDARIES
    if isinstance(fix, GlobalLoss):
        give_all_rows(draft, wanted, fix.modules)
    elif is_substitute or fix is Switch.STATISTICS_OF_ALL_RANKS:
        give_all_rows(draft, wanted)
    else:
        return fix is Switch.LOSS_WITHOUT_RANKS and any(
            isinstance(other, GlobalLoss) for other in wanted.fixes
        )
    return True


_IN_PARTS = '''\
@contextlib.contextmanager
def in_parts(module):
    """The module computes the rank's part of its rows, and returns those of all ranks.

    All ranks compute the same loss of them. all_gather's backward sums the W equal
    gradients of a row and DDP divides by W: the gradient of the single process.
    """
    forward = module.forward

    def run(*args, **kwargs):
        given = args, kwargs
        tensors = [t for t in tree_leaves(given) if torch.is_tensor(t) and t.dim()]
        rows = torch.arange(len(tensors[0])).tensor_split(dist.get_world_size())
        counts = [len(part) for part in rows]

        def own(tensor):
            has_all = tensor.dim() and len(tensor) == sum(counts)
            return tensor.split(counts)[dist.get_rank()] if has_all else tensor

        args, kwargs = tree_map_only(torch.Tensor, own, given)
        return gathered(forward(*args, **kwargs), counts)

    with mock.patch.object(module, "forward", run):
        yield
'''


def give_all_rows(draft: Draft, wanted: Wanted, modules: tuple[str, ...] = ()) -> None:
    """Gives the step the batch of all ranks, and splits it again for these modules."""
    if "in_parts" in draft.parts:
        return
    draft.imports |= {
        "import contextlib",
        "from unittest import mock",
        "from torch.utils._pytree import tree_leaves",
    }
    draft.parts["in_parts"] = _IN_PARTS
    gathers.add_gathered(draft, wanted.facts)
    draft.before_step += "batch = gathered(batch, [])\n"
    inside = 'getattr(model, "module", model)'
    draft.around += [
        f"in_parts({inside}.get_submodule({name!r}))" if name else "in_parts(model)"
        for name in modules or ("",)
    ]
    draft.around += _hidden(wanted.facts)


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
