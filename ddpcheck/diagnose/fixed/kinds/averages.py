"""Fixes that average gradients over ranks: after a backward, or before a step."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted, at_each_ddp
from ddpcheck.run.intervention import AverageGradients, Intervention, Switch


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds the average; another way to get it at the second attempt."""
    has_step, is_first = wanted.facts.has_train_step, not wanted.attempt
    if fix is Switch.ALWAYS_SYNC and is_first:
        reduce_every_backward(draft, wanted)
    elif fix is Switch.AVERAGED_AUTOGRAD_GRAD and has_step and is_first:
        average_slopes(draft)
    elif fix is Switch.AVERAGED_AT_UPDATE and has_step and is_first:
        average_after_backward(draft, wanted)
    elif fix in _AVERAGES or isinstance(fix, AverageGradients):
        average_at_step(draft, wanted)
    else:
        return False
    return True


# Whatever leaves gradients local, or reduces them too early.
_AVERAGES = (
    Switch.ALWAYS_SYNC,
    Switch.AVERAGED_AT_UPDATE,
    Switch.AVERAGED_AUTOGRAD_GRAD,
    Switch.FILLED_GRADIENTS,
)
_AVERAGE = '''\
def average(parameters):
    """Averages the gradients that any rank has over all ranks."""
    for p in parameters:
        has = torch.tensor(float(p.grad is not None), device=p.device)
        dist.all_reduce(has)
        if has:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
'''
_OFF = "# As within no_sync(): gradients are averaged {when} instead.\n"
_NO_SYNC = "ddp.require_backward_grad_sync = False\n"
_AFTER_BACKWARD = '''\
def averaging(model, optimizer):
    """Averages the gradients of all parameters over ranks after each backward."""
    backward = torch.autograd.backward

    def run(*args, **kwargs):
        backward(*args, **kwargs)
        of_optimizer = (p for g in optimizer.param_groups for p in g["params"])
        for p in dict.fromkeys([*model.parameters(), *of_optimizer]):
            has = torch.tensor(float(p.grad is not None), device=p.device)
            dist.all_reduce(has)
            if has:  # on any rank
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

    return mock.patch.object(torch.autograd, "backward", run)
'''
_AT_STEPS = '''\
@contextlib.contextmanager
def averaging():
    """Averages gradients over ranks before each step of any optimizer."""

    def before(optimizer, *_):
        average(p for group in optimizer.param_groups for p in group["params"])

    hook = register_optimizer_step_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()
'''
_AT_STEP = '''\
def averaging(optimizer, *_):
    """Averages gradients over ranks before a step."""
    if dist.is_initialized():
        average(p for group in optimizer.param_groups for p in group["params"])
'''


def average_after_backward(draft: Draft, wanted: Wanted) -> None:
    """Averages all gradients after each backward; before a clip, as DDP does."""
    if "averaging" in draft.parts:
        return
    draft.imports.add("from unittest import mock")
    draft.parts["averaging"] = _AFTER_BACKWARD
    draft.around.append("averaging(model, optimizer)")
    _switch_off(draft, wanted, "after backward")


def average_at_step(draft: Draft, wanted: Wanted) -> None:
    """Averages gradients over ranks once, right before an optimizer's step."""
    if "averaging" in draft.parts:
        return
    if wanted.facts.has_train_step:
        draft.imports |= {
            "import contextlib",
            "from torch.optim.optimizer import register_optimizer_step_pre_hook",
        }
        draft.parts["averaging"] = _AT_STEPS
        draft.around.append("averaging()")
    else:
        draft.parts["averaging"] = _AT_STEP
        draft.optimizer += "made.register_step_pre_hook(averaging)\n"
    draft.parts["average"] = _AVERAGE
    _switch_off(draft, wanted, "before a step")


def _switch_off(draft: Draft, wanted: Wanted, when: str) -> None:
    draft.after_wrap += _OFF.format(when=when) + at_each_ddp(wanted.facts, _NO_SYNC)
    if "static_graph" in wanted.facts.source:
        draft.options = draft.options or {}  # a static graph is reduced even so


def reduce_every_backward(draft: Draft, wanted: Wanted) -> None:
    """Makes no_sync() of DDP do nothing."""
    draft.imports.add("import contextlib")
    code = "ddp.no_sync = contextlib.nullcontext  # reduces every backward\n"
    draft.after_wrap += at_each_ddp(wanted.facts, code)


_SLOPES = '''\
def averaged_slopes(model):
    """Averages what torch.autograd.grad returns of parameters: DDP sees none of it."""
    grad = torch.autograd.grad

    def run(outputs, inputs, *args, **kwargs):
        inputs = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        found = grad(outputs, inputs, *args, **kwargs)
        own = {id(p) for p in model.parameters()}
        if kwargs.get("create_graph") or any(id(p) not in own for p in inputs):
            return found
        for slope in (g for g in found if g is not None):
            dist.all_reduce(slope)
            slope /= dist.get_world_size()
        return found

    return mock.patch.object(torch.autograd, "grad", run)
'''


def average_slopes(draft: Draft) -> None:
    """Averages the results of torch.autograd.grad."""
    draft.imports.add("from unittest import mock")
    draft.parts["averaged_slopes"] = _SLOPES
    draft.around.append("averaged_slopes(model)")
