"""Fixes that scale terms of a loss that no sample reaches: penalties and priors."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft, has_loss
from ddpcheck.diagnose.fixed.kinds import scales
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, ScaleTerms


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds the factor of these terms; at the first attempt alone."""
    if not isinstance(fix, ScaleTerms) or wanted.attempt:
        return False
    scale_terms(draft, wanted, fix)
    return True


_TERMS = '''\
class Terms(TorchFunctionMode):
    """Scales the gradient of numbers that no sample reaches, where others are added.

    {why}
    """

    def begin(self, model):  # with the tensors that the model holds
        held = [t for m in model.modules() for t in tree_leaves(vars(m))]
        self.free = {{id(t): t for t in held if torch.is_tensor(t)}}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        given = [t for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)]
        free = [t for t in given if id(t) in self.free]
        adds = func.__name__ in ADDS and all(t.numel() == 1 for t in given)
        if adds and 0 < len(free) < len(given):
            args = tree_map_only(torch.Tensor, self.scaled, args)
        made = func(*args, **(kwargs or {{}}))
        for t in (t for t in tree_leaves(made) if torch.is_tensor(t)):
            self.free.pop(id(t), None)
            is_constant = t.numel() == 1 or func.__name__ in CONSTANTS
            if len(free) == len(given) and (given or is_constant):
                self.free[id(t)] = t
        return made

    def scaled(self, value):
        if id(value) not in self.free:
            return value
        return value * {factor} + value.detach() * (1 - {factor})


ADDS = "add", "add_", "__iadd__", "sub", "sub_", "__isub__", "__rsub__", "stack", "cat"
CONSTANTS = "zeros", "ones", "full", "eye", "arange", "linspace"
terms = Terms()
'''
_WATCHED = '''\
def watched(model):
    """Looks for such terms in the model's forward."""
    forward = model.forward

    def run(*args, **kwargs):
        terms.begin(model)
        with terms:
            return forward(*args, **kwargs)

    model.forward = run
'''
_IN_STEP = '''\
@contextlib.contextmanager
def watched(model):
    """Looks for such terms in a step."""
    terms.begin(model)
    with terms:
        yield
'''
_IN_LOSS = """\
with terms:
    value = {loss}(output, target)
"""


def scale_terms(draft: Draft, wanted: Wanted, fix: ScaleTerms) -> None:
    """Scales the gradients of terms without samples, in forward and in the loss."""
    factor, _ = scales.factor_of(fix, wanted.world_size)
    why = "Every rank has them in full; the others are parts of a sum over ranks."
    draft.imports |= {
        "from torch.overrides import TorchFunctionMode",
        "from torch.utils._pytree import tree_leaves, tree_map_only",
    }
    if wanted.facts.has_train_step:
        draft.imports.add("import contextlib")
        draft.parts["watched"] = _IN_STEP
        draft.around.append("watched(model)")
    else:
        draft.parts["watched"] = _WATCHED
        draft.before_wrap += "watched(model)\n"
        if not draft.loss and has_loss(wanted.facts.source):
            draft.loss = _IN_LOSS
    draft.parts["Terms"] = _TERMS.format(why=why, factor=scales.number_of(factor))
