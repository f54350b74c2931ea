"""Fixes of means that a model computes over its samples: over those of all ranks."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds import gathers, whole_steps
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import GlobalModule, Intervention, Substitute


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what computes means of all samples, as of the experts that a router chose.

    Its terms of the loss begin within the model, at `names`; others at its output.
    """
    if isinstance(fix, Substitute) and fix.boundary == "addends":
        if fix.names:
            share_means(draft)
        if wanted.facts.has_train_step:
            whole_steps.give_all_rows(draft, wanted)
        else:
            gathers.gather(draft, wanted)
        return True
    is_model = isinstance(fix, GlobalModule) and not fix.name
    if is_model and ".mean(" in wanted.facts.source and not wanted.attempt:
        share_means(draft)
        return True
    return False


_MEANS = '''\
class Means(TorchFunctionMode):
    """Means over the samples of this rank become means over those of all ranks."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made, dim = func(*args, **(kwargs or {})), (kwargs or {}).get("dim")
        if func.__name__ != "mean" or len(args[0]) % self.rows:
            return made
        dim = args[1] if len(args) > 1 else dim
        dims = [dim] if isinstance(dim, int) else dim or [0]
        if 0 not in [d % args[0].dim() for d in dims]:
            return made
        # A rank weighs as many samples as it has. all_reduce's backward sums the ranks'
        # gradients, which are equal, and DDP divides by their number.
        n = made.new_tensor(float(self.rows))
        total = n.clone()
        dist.all_reduce(total)
        return all_reduce(made * n / total)
'''
_SHARED = '''\
def share_means(module):
    """Computes the means over samples in a module's forward over all ranks."""
    forward = module.forward

    def run(*args, **kwargs):
        given = [t for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)]
        with Means() as means:
            means.rows = len(given[0])
            return forward(*args, **kwargs)

    module.forward = run
'''


def share_means(draft: Draft) -> None:
    """Computes means in the model's forward over the samples of all ranks."""
    if "Means" in draft.parts:
        return
    draft.imports |= {
        "from torch.distributed.nn.functional import all_reduce",
        "from torch.overrides import TorchFunctionMode",
        "from torch.utils._pytree import tree_leaves",
    }
    draft.parts |= {"share_means": _SHARED, "Means": _MEANS}
    draft.before_wrap += "share_means(model)\n"
