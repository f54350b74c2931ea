"""Fixes of hooks on gradients and of clips: they get what is averaged over ranks."""

from __future__ import annotations

from ddpcheck.diagnose.fixed.draft import Draft
from ddpcheck.diagnose.fixed.kinds import averages
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.run.intervention import Intervention, SkipAllReduces, Switch

_HOOKS = (
    Switch.HOOKS_AFTER_BACKWARD,
    Switch.PARAMETERS_UNHOOKED,
    Switch.ALL_UNHOOKED,
)


def add(fix: Intervention, wanted: Wanted, draft: Draft) -> bool:
    """Adds what makes code between backward and update see averages."""
    has_step = wanted.facts.has_train_step
    if fix in _HOOKS:
        hook_means(draft, wanted)
    elif fix is Switch.CLIPPED_AT_UPDATE and has_step and not wanted.attempt:
        averages.average_after_backward(draft, wanted)
    elif fix is Switch.CLIPPED_AT_UPDATE and has_step:
        clip_at_step(draft)
    elif fix is Switch.COMM_HOOKS_ON_MEANS and wanted.facts.has_wrap:
        communicate_means(draft)
    elif isinstance(fix, SkipAllReduces):
        reduce_once(draft, wanted)
    else:
        return False
    return True


_LATE = '''\
def on_averages():
    """DDP averages after these hooks, so they average what they get."""
    plain = torch.Tensor.register_post_accumulate_grad_hook

    def register(parameter, hook):
        def run(parameter):
            if dist.is_initialized():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            return hook(parameter)

        return plain(parameter, run)

    name = "register_post_accumulate_grad_hook"
    return mock.patch.object(torch.Tensor, name, register)
'''
_MEANS = '''\
def on_means():
    """Hooks that are registered here get the gradients of the single process."""
    plain = torch.Tensor.register_hook

    def register(tensor, hook):
        return plain(tensor, on_mean(hook, isinstance(tensor, torch.nn.Parameter)))

    return mock.patch.object(torch.Tensor, "register_hook", register)
'''
_ON_MEAN = '''\
def on_mean(hook, of_parameter=True):
    """DDP averages after the hook; a sample's gradient is W times as large here."""

    def run(gradient):
        if not dist.is_initialized():
            return hook(gradient)
        gradient = gradient / dist.get_world_size()
        if of_parameter:
            dist.all_reduce(gradient)
            return hook(gradient)
        changed = hook(gradient)
        return None if changed is None else changed * dist.get_world_size()

    return run
'''
_KNOWN = """\
for parameter in model.parameters():  # hooks that model() has registered
    hooks = parameter._backward_hooks or {}
    hooks.update({key: on_mean(hook) for key, hook in hooks.items()})
"""
_KNOWN_OF_MODULES = """\
for module in model.modules():
    hooks = module._backward_hooks
    hooks.update({key: on_shares(hook) for key, hook in hooks.items()})
"""
_ON_SHARES = '''\
def on_shares(hook):
    """A sample's gradient is W times as large here: DDP divides by W afterwards."""

    def run(module, *gradients):
        world = dist.get_world_size()
        own = [tuple(g if g is None else g / world for g in gs) for gs in gradients]
        made = hook(module, *own)
        return made and tuple(g if g is None else g * world for g in made)

    return run
'''


def hook_means(draft: Draft, wanted: Wanted) -> None:
    """Gives hooks the mean over ranks, or the gradients of the samples' own share."""
    source = wanted.facts.source
    if "backward_hook(" in source:
        draft.parts["on_shares"] = _ON_SHARES
        draft.before_wrap += _KNOWN_OF_MODULES
        return
    draft.imports.add("from unittest import mock")
    if "register_post_accumulate_grad_hook" in source:
        name, draft.parts["on_averages"] = "on_averages()", _LATE
    else:
        name = "on_means()"
        draft.parts |= {"on_means": _MEANS, "on_mean": _ON_MEAN}
        draft.before_wrap += _KNOWN
    draft.around.append(name)
    draft.building.append(name)


_CLIPPED = '''\
@contextlib.contextmanager
def clipped_at_step():
    """Clips when the optimizer steps: the gradients are averaged by then."""
    clip, noted = torch.nn.utils.clip_grad_norm_, {}

    def note(parameters, *args, **kwargs):
        noted["last"] = list(parameters), args, kwargs
        return torch.zeros(())

    def before(*_):
        if noted:
            parameters, args, kwargs = noted.pop("last")
            clip(parameters, *args, **kwargs)

    hook = register_optimizer_step_pre_hook(before)
    try:
        with mock.patch.object(torch.nn.utils, "clip_grad_norm_", note):
            yield
    finally:
        hook.remove()
'''


def clip_at_step(draft: Draft) -> None:
    """Clips by the norm right before the optimizer's step."""
    draft.imports |= {
        "import contextlib",
        "from unittest import mock",
        "from torch.optim.optimizer import register_optimizer_step_pre_hook",
    }
    draft.parts["clipped_at_step"] = _CLIPPED
    draft.around.append("clipped_at_step()")


_COMMUNICATED = '''\
def register(ddp, state, hook):
    """Registers a communication hook that gets the mean over ranks."""

    def run(state, bucket):
        dist.all_reduce(bucket.buffer())
        bucket.buffer().div_(dist.get_world_size())
        return hook(state, bucket)

    registered(ddp, state, run)


registered = DistributedDataParallel.register_comm_hook
'''
_REGISTERED = (
    'mock.patch.object(DistributedDataParallel, "register_comm_hook", register)'
)


def communicate_means(draft: Draft) -> None:
    """Gives a communication hook the mean of the gradients: it changes that."""
    draft.imports.add("from unittest import mock")
    draft.parts["register"] = _COMMUNICATED
    draft.building.append(_REGISTERED)


_ONCE = '''\
@contextlib.contextmanager
def reduced_once():
    """{why}"""
    all_reduce, backward, after = dist.all_reduce, torch.autograd.backward, []

    def run(*args, **kwargs):
        after.clear()
        backward(*args, **kwargs)
        after.append(True)

    def reduce(*args, **kwargs):
        return None if after else all_reduce(*args, **kwargs)

    with (
        mock.patch.object(torch.autograd, "backward", run),
        mock.patch.object(dist, "all_reduce", reduce),
    ):
        yield
'''
_NONE = 'mock.patch.object(dist, "all_reduce", lambda *_, **__: None)'


def reduce_once(draft: Draft, wanted: Wanted) -> None:
    """Leaves out what is reduced after backward: DDP has done it."""
    draft.imports.add("from unittest import mock")
    if not wanted.facts.has_train_step:
        draft.optimizer += (
            "if dist.is_initialized():  # DDP has averaged: nothing is reduced again\n"
            f"    made.step = {_NONE}(made.step)\n"
        )
        return
    draft.imports.add("import contextlib")
    why = "Leaves out each all_reduce after backward: DDP has averaged already."
    draft.parts["reduced_once"] = _ONCE.format(why=why)
    draft.around.append("reduced_once()")
