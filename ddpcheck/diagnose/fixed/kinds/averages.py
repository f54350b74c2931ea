"""Fixes that average gradients over ranks before the optimizer's step."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import AverageGradients, Intervention, Switch

# Whatever leaves gradients local, or reduces them too early: see average_at_step.
_AVERAGES = (
    Switch.ALWAYS_SYNC,
    Switch.AVERAGED_AT_UPDATE,
    Switch.AVERAGED_AUTOGRAD_GRAD,
    Switch.FILLED_GRADIENTS,
)


def add(fix: Intervention, _: Wanted, draft: Draft) -> bool:
    """Adds the average."""
    if fix not in _AVERAGES and not isinstance(fix, AverageGradients):
        return False
    average_at_step(draft)
    return True


_AVERAGED = '''\
def averaging(optimizer, step):
    """Averages gradients over ranks before each step: DDP reduces none of them."""

    def run(*args, **kwargs):
        groups = optimizer.param_groups if dist.is_initialized() else []
        for p in (p for group in groups for p in group["params"]):
            has = torch.tensor(float(p.grad is not None), device=p.device)
            dist.all_reduce(has)  # on any rank
            if has:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        return step(*args, **kwargs)

    return run
'''


def average_at_step(draft: Draft) -> None:
    """Averages gradients over ranks once, right before the optimizer's step."""
    if "averaging" in draft.parts:
        return
    draft.options = draft.options or {}
    draft.parts["averaging"] = _AVERAGED
    draft.optimizer += "made.step = averaging(made, made.step)\n"
    draft.after_wrap += (
        "# As within no_sync(): gradients are averaged before the step instead.\n"
        "wrapped.require_backward_grad_sync = False\n"
    )
