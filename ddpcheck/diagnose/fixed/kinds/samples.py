"""Contexts that have to know how many samples a rank has: in a step, or in forward."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted

_ROWS = '''\
def rows(batch):
    """Returns the number of samples of a batch."""
    return len(next(t for t in tree_leaves(batch) if torch.is_tensor(t) and t.dim()))
'''
_WITHIN = '''\
def within(mode, forward):
    """Runs forward within the mode, which is told how many samples there are."""

    def run(*args, **kwargs):
        with mode({model}rows((args, kwargs))):
            return forward(*args, **kwargs)

    return run
'''


def run_within(draft: Draft, wanted: Wanted, mode: str, *, needs_model: bool) -> None:
    """Runs the ranks' steps within a mode, a class whose code is a part."""
    add_rows(draft)
    if wanted.facts.has_train_step:
        given = "model, rows(batch)" if needs_model else "rows(batch)"
        draft.around.append(f"{mode}({given})")
        return
    draft.parts["within"] = _WITHIN.format(model="forward.__self__, " * needs_model)
    draft.before_wrap += f"model.forward = within({mode}, model.forward)\n"


def add_rows(draft: Draft) -> None:
    """Adds the function that counts samples."""
    draft.imports.add("from torch.utils._pytree import tree_leaves")
    draft.parts["rows"] = _ROWS
