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

from torch import nn
from torch.nn.utils import clip_grad

from ddpcheck.run import private

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
        for name, parameter in model.named_parameters()
        if private.tensor_hooks(parameter) or id(parameter) in registered
    ]
