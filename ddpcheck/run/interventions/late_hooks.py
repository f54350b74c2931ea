"""Switch.HOOKS_AFTER_BACKWARD: what sees local gradients sees reduced ones.

A post-accumulate hook runs as soon as a parameter has its own gradient, DDP reduces the
bucket later. Here the hooks of user code wait until backward is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ddpcheck.run.interventions import backwards

Hook = Callable[[Tensor], Any]

# (hook, parameter) in their order while a backward runs, None while none does.
_waiting: list[tuple[Hook, Tensor]] | None = None


@contextlib.contextmanager
def registered_late() -> Iterator[None]:
    """Makes post-accumulate hooks that are registered now wait in every backward."""
    register = Tensor.register_post_accumulate_grad_hook

    def registering(self: Tensor, hook: Hook) -> Any:
        return register(self, _later(hook))  # type: ignore[no-untyped-call]

    Tensor.register_post_accumulate_grad_hook = registering  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.register_post_accumulate_grad_hook = register  # type: ignore[method-assign]


@contextlib.contextmanager
def after_backward() -> Iterator[None]:
    """Lets them run at the end of each backward; those registered meanwhile, too."""

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
