"""Fixes of how DDP is built."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
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


def add(fix: Intervention, _: Wanted, draft: Draft) -> bool:
    """Adds what builds DDP again."""
    if isinstance(fix, Switch) and fix in _OPTIONS:
        draft.options = (draft.options or {}) | _OPTIONS[fix]
    elif isinstance(fix, Substitute) and fix.boundary == "start":
        keep_start(draft)
    elif fix is Switch.REWRAP_TRAINABLE:
        wrap_trainable(draft)
    else:
        return False
    return True


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
