"""Fixes of the graph that DDP sees: checkpoints, and outputs that hide tensors."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what shows DDP the graph."""
    if fix is Switch.NONREENTRANT_CHECKPOINT:
        checkpoint_without_reentry(draft)
    elif fix is Switch.PLAIN_OUTPUT:
        if not register_dataclasses(draft, wanted.facts) or wanted.attempt:
            show_tensors(draft)
    else:
        return False
    return True


_APPLY = '''\
def apply(function, preserve, *args):
    """Checkpoints as with use_reentrant=False: no backward runs in the backward."""
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)
'''
_APPLIED = """\
# All calls with use_reentrant=True, in the file and in libraries, end up here.
CheckpointFunction.apply = staticmethod(apply)
"""


def checkpoint_without_reentry(draft: Draft) -> None:
    """Checkpoints without a backward inside the backward: DDP does not see it."""
    draft.imports |= {
        "from torch.utils.checkpoint import CheckpointFunction",
        "from torch.utils.checkpoint import checkpoint",
    }
    draft.parts["apply"] = _APPLY
    draft.at_end["apply"] = _APPLIED


_REGISTERED = """\
# DDP and torch's trees find no tensor in a dataclass that is not registered.
for kind in list(vars(original).values()):
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        with contextlib.suppress(ValueError):  # it is registered
            torch.export.register_dataclass(kind)
"""


def register_dataclasses(draft: Draft, facts: Facts) -> bool:
    """Registers the dataclasses of the file; returns whether it may have some."""
    if "dataclass" not in facts.source:
        return False
    draft.imports |= {"import contextlib", "import dataclasses", "import torch.export"}
    draft.at_end["registered"] = _REGISTERED
    return True


_SHOWN = '''\
def tensors(value):
    """Returns the tensors with gradient in objects of any class."""
    if torch.is_tensor(value):
        return [value] if value.requires_grad else []
    parts = tree_leaves(getattr(value, "__dict__", {}))
    return [t for part in parts for t in tensors(part)]


def shown(ddp):
    """DDP gets the tensors of the output in a tuple, and its caller the output."""
    inside, outside, made = ddp.module.forward, ddp.forward, []

    def flat(*args, **kwargs):
        made[:] = [inside(*args, **kwargs)]
        return tuple(tensors(made[0]))

    def forward(*args, **kwargs):
        outside(*args, **kwargs)
        return made.pop()

    ddp.module.forward, ddp.forward = flat, forward
'''


def show_tensors(draft: Draft) -> None:
    """Shows DDP the tensors in an object."""
    draft.imports.add("from torch.utils._pytree import tree_leaves")
    draft.parts["shown"] = _SHOWN
    draft.after_wrap += "shown(wrapped)\n"
