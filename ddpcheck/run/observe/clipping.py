"""Clipping too early: what is seen of it.

torch.nn.utils.clip_grad_norm_ ends in a function of its own module that scales the
gradients (`_clip_grads_with_norm_`, torch 2.6 and later). Taking hold of that one
reaches `from torch.nn.utils import clip_grad_norm_` too. Where a torch has no such
function nothing is seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad

from ddpcheck.run import private
from ddpcheck.run.model import contents

SCALES = "_clip_grads_with_norm_"


@contextlib.contextmanager
def noticed(on_clip: Callable[[], None]) -> Iterator[None]:
    """Calls `on_clip` whenever gradients are clipped by norm."""
    scale = getattr(clip_grad, SCALES, None)
    if scale is None:
        yield
        return

    def noting(*args: Any, **kwargs: Any) -> Any:
        on_clip()
        return scale(*args, **kwargs)

    setattr(clip_grad, SCALES, noting)
    try:
        yield
    finally:
        setattr(clip_grad, SCALES, scale)


def hooked_parameters(model: nn.Module, registered: set[int]) -> list[str]:
    """Returns the parameters with tensor hooks, which see the local gradient.

    `registered` are the ids of tensors that hooks were put on, and perhaps taken off.
    """
    return [
        name
        for name, parameter in contents.named_parameters(model)
        if id(parameter) in registered or not is_ours(parameter)
    ]


def is_ours(parameter: nn.Parameter) -> bool:
    """Returns whether its tensor hooks, if any, are an intervention's."""
    hooks = (private.tensor_hooks(parameter) or {}).values()
    modules = [str(getattr(hook, "__module__", "")) for hook in hooks]
    return all(module.startswith("ddpcheck.run.") for module in modules)


def hooks_on_the_way(model: nn.Module, registered: int) -> bool:
    """Returns whether gradients may be changed before they reach parameters.

    By a hook on another tensor (`registered` of them), by one on a module, or by an
    autograd function of user code's own.
    """
    modules = any(map(private.backward_hooks, contents.modules(model)))
    return bool(registered) or modules or bool(own_functions())


def own_functions() -> list[type[torch.autograd.Function]]:
    """Returns the autograd functions of user code that are defined."""
    known = torch.autograd.Function.__subclasses__()
    return [f for f in known if not f.__module__.startswith(("torch.", "ddpcheck."))]
