"""The intervention gradients.filled: what has a gradient on some rank has one on all.

Parameters that a rank does not use get zeros there, as soon as its backward has ended:
code that averages gradients by hand, and leaves out those that are None, meets the same
parameters on every rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpcheck.run import backwards


def filled_gradients(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Fills gradients after every outermost backward.

    Args:
        model: whose trainable parameters are filled, in the order of their names.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]

    def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        backward(*args, **kwargs)
        if not trainable:
            return
        has_one = torch.tensor([float(p.grad is not None) for p in trainable])
        has_one = has_one.to(trainable[0].device)
        dist.all_reduce(has_one, dist.ReduceOp.MAX)
        for parameter, is_used in zip(trainable, has_one.tolist(), strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    return backwards.outermost(run)
