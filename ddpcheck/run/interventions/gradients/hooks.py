"""Hooks that change or read gradients during backward: removed, or run later.

HOOKS_AFTER_BACKWARD: a post-accumulate hook runs as soon as a parameter has its local
gradient; DDP reduces the bucket later. The user's hooks run when backward has ended, so
they get the reduced gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.run import private
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.model import contents
from ddpcheck.run.observe.patches import hooks_are_ours, own_functions
from ddpcheck.run.process import callers
from ddpcheck.run.process.replacing import all_replaced, replaced


@contextlib.contextmanager
def without_tensor_hooks(model: nn.Module) -> Iterator[None]:
    """Removes the tensor hooks of all parameters, and restores them at exit.

    Hooks of another intervention stay. Hooks that a training step registers inside
    never run.
    """
    parameters = {id(p) for p in contents.parameters(model)}
    saved = [
        (p, private.tensor_hooks(p))
        for p in contents.parameters(model)
        if not hooks_are_ours(p)
    ]
    for parameter, _ in saved:
        private.put_tensor_hooks(parameter, None)
    try:
        with _ignored(lambda tensor: id(tensor) in parameters):
            yield
    finally:
        for parameter, hooks in saved:
            private.put_tensor_hooks(parameter, hooks)


@contextlib.contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Keeps user code from changing gradients before they reach the parameters.

    This covers tensor hooks, backward hooks of modules, and autograd functions that
    return their input: their backward then returns its input too.
    """
    live = [private.backward_hooks(module) for module in contents.modules(model)]
    saved = [(hooks, dict(hooks)) for hooks in live if hooks]
    for hooks, _ in saved:
        hooks.clear()
    own = {(f, "apply"): _passing_on(f.apply) for f in own_functions()}
    try:
        with (
            all_replaced(own),
            without_tensor_hooks(model),
            _ignored(lambda _: _is_of_user()),
        ):
            yield
    finally:
        for hooks, found in saved:
            hooks.update(found)


def _passing_on(apply: Callable[..., Any]) -> Callable[..., Any]:
    def applied(*args: Any, **kwargs: Any) -> Any:
        result = apply(*args, **kwargs)
        given = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
        if len(given) != 1 or not isinstance(result, Tensor):
            return result
        is_same = result.shape == given[0].shape and torch.equal(result, given[0])
        return given[0].view_as(given[0]) if is_same else result

    return applied


def _is_of_user() -> bool:
    """Returns whether the one who registers a hook is neither torch nor ddpcheck."""
    frame = callers.frame(1)
    while callers.module_of(frame).startswith("ddpcheck."):
        frame = frame.f_back if frame else None
    return not callers.module_of(frame).startswith("torch.")


def _ignored(
    ignores: Callable[[Tensor], bool],
) -> contextlib.AbstractContextManager[None]:
    """Makes tensor hooks that are registered on some tensors never run."""
    register = Tensor.register_hook

    def ignoring(self: Tensor, hook: Any) -> Any:
        handle = register(self, hook)  # type: ignore[no-untyped-call]
        if ignores(self):
            handle.remove()
        return handle

    return replaced(Tensor, register_hook=ignoring)


Hook = Callable[[Tensor], Any]

# (hook, parameter) in their order while a backward runs, None while none does.
_waiting: list[tuple[Hook, Tensor]] | None = None


def registered_late() -> contextlib.AbstractContextManager[None]:
    """Makes post-accumulate hooks that are registered now wait in every backward."""
    register = Tensor.register_post_accumulate_grad_hook

    def registering(self: Tensor, hook: Hook) -> Any:
        return register(self, _later(hook))  # type: ignore[no-untyped-call]

    return replaced(Tensor, register_post_accumulate_grad_hook=registering)


@contextlib.contextmanager
def after_backward() -> Iterator[None]:
    """Runs them at the end of each backward, including those registered inside."""

    def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        global _waiting  # noqa: PLW0603 (hooks are registered before training begins)
        _waiting = []
        try:
            backward(*args, **kwargs)
        finally:
            late, _waiting = _waiting, None
        for hook, parameter in late:
            hook(parameter)

    with registered_late(), backwards.outermost(run):
        yield


def _later(hook: Hook) -> Hook:
    def waiting(parameter: Tensor) -> None:
        if _waiting is None:
            hook(parameter)
        else:
            _waiting.append((hook, parameter))

    return waiting
