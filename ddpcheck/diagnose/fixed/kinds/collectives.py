"""Fixes of collectives through which no gradient passes."""

from __future__ import annotations

import re

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds collectives with gradient; False where the file calls them otherwise."""
    if fix is not Switch.COLLECTIVES_WITH_GRADIENT or wanted.attempt:
        return False
    source = wanted.facts.source
    used = [name for name in _CODE if f"dist.{name}(" in source]
    has_own = "autograd.Function" in source  # whose backward is at fault
    if not used or has_own or not _IMPORT.search(source):
        return False
    for name in used:
        draft.imports.add("from torch.distributed.nn import functional as dnn")
        draft.parts[f"differentiable_{name}"] = _CODE[name]
    given = ", ".join(f"{name}=differentiable_{name}" for name in used)
    draft.imports.add("import types")
    draft.at_end["collectives"] = _REPLACED.format(given=given)
    return True


_IMPORT = re.compile(r"^import torch\.distributed as dist$", re.MULTILINE)
_CODE = {
    "all_gather": '''\
def differentiable_all_gather(parts, tensor, *args, **kwargs):
    """Gathers as dist.all_gather; backward sums the gradients of all ranks."""
    parts[:] = dnn.all_gather(tensor)
''',
    "all_reduce": '''\
def differentiable_all_reduce(tensor, *args, **kwargs):
    """Sums as dist.all_reduce, and backward the gradients of all ranks."""
    tensor.copy_(dnn.all_reduce(tensor.clone(), *args, **kwargs))
''',
}
_REPLACED = """\
# What the file calls: its own `dist` is torch.distributed with these.
original.dist = types.SimpleNamespace(**{{**vars(dist), **dict({given})}})
"""
