"""Fixes of how DDP is built."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted, at_each_ddp
from ddpcheck.run.intervention import Intervention, Substitute, Switch

# Of DDP built again; {}: with its defaults, on the model as it is then.
_OPTIONS: dict[Switch, dict[str, str]] = {
    Switch.FIND_UNUSED: {"find_unused_parameters": "True"},
    Switch.REWRAP: {},
    Switch.STATIC_GRAPH_OFF: {},
    Switch.STATIC_GRAPH_ON: {"static_graph": "True"},
    Switch.BUFFER_BROADCAST_OFF: {"broadcast_buffers": "False"},
    Switch.BUFFER_BROADCAST_ON: {"broadcast_buffers": "True"},
    Switch.BUCKET_VIEW_OFF: {},
    Switch.NO_COMM_HOOKS: {},
}


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what builds DDP again, or what its methods do."""
    if isinstance(fix, Switch) and fix in _OPTIONS:
        draft.options = (draft.options or {}) | _OPTIONS[fix]
    elif isinstance(fix, Substitute) and fix.boundary == "start":
        keep_start(draft)
    elif fix is Switch.REWRAP_TRAINABLE:
        wrap_trainable(draft)
        if wanted.attempt:  # frozen ones get no gradient
            draft.options = {"find_unused_parameters": "True"}
    elif fix in _JOINED:
        divide_when_joined(draft, wanted, divides_by_all=_JOINED[fix])
    elif fix is Switch.BATCH_WITHOUT_GROUP:
        return make_one_batch(draft, wanted)
    else:
        return False
    return True


_JOINED: dict[Intervention, bool] = {
    Switch.JOIN_DIVIDES_BY_ALL: True,
    Switch.JOIN_DIVIDES_BY_LEFT: False,
}


def keep_start(draft: Draft) -> None:
    """Wraps the model with the weights and buffers that model() made."""
    draft.imports.add("import copy")
    draft.before_wrap += "start = copy.deepcopy(model.state_dict())\n"
    draft.before_ddp += (
        "# On every rank those of model(), as the single process begins with.\n"
        "model.load_state_dict(start)\n"
    )
    draft.options = draft.options or {}


def wrap_trainable(draft: Draft) -> None:
    """Builds DDP while all parameters require gradients: it skips others for good."""
    draft.before_ddp += (
        "trained = {p: p.requires_grad for p in model.parameters()}\n"
        "model.requires_grad_(True)  # DDP leaves others out for good\n"
    )
    draft.after_wrap += (
        "for parameter, is_trained in trained.items():\n"
        "    parameter.requires_grad_(is_trained)\n"
    )
    draft.options = draft.options or {}


_JOINING = '''\
def joining(ddp):
    """join() divides by {ranks}, whatever it is given."""
    hook, name = ddp.join_hook, "divide_by_initial_world_size"
    ddp.join_hook = lambda **given: hook(**given | {{name: {by_all}}})
'''


def divide_when_joined(draft: Draft, wanted: Wanted, *, divides_by_all: bool) -> None:
    """Changes by how many ranks join() divides gradients."""
    ranks = "all ranks" if divides_by_all else "the ranks that have data left"
    draft.parts["joining"] = _JOINING.format(ranks=ranks, by_all=divides_by_all)
    draft.after_wrap += at_each_ddp(wanted.facts, "joining(ddp)\n")


_ONE_BATCH = '''\
def batch({step}):
    """Makes the same global batch in every process: it sees no process group."""
    world, dist.group.WORLD = dist.group.WORLD, None
    try:
        return original.batch({step})
    finally:
        dist.group.WORLD = world
'''


def make_one_batch(draft: Draft, wanted: Wanted) -> bool:
    """Hides the process group from batch()."""
    found = re.search(r"^def batch\((\w*)\)", wanted.facts.source, re.MULTILINE)
    if found is None:
        return False
    draft.parts["batch"] = _ONE_BATCH.format(step=found[1])
    return True
