"""Backward passes of a training step, run in another way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.run.process import graphs
from ddpcheck.run.process.replacing import replaced

_MAX_NODES = 20_000  # of autograd's graph: a large one has parameters early on


def outermost(run: Callable[..., None]) -> contextlib.AbstractContextManager[None]:
    """Calls `run` instead of each backward that is not within another one.

    Args:
        run: called with torch.autograd.backward, then with its arguments.
    """
    depth = 0
    backward = torch.autograd.backward

    def replacement(*args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if depth:
            backward(*args, **kwargs)
            return
        depth += 1
        try:
            run(backward, *args, **kwargs)
        finally:
            depth -= 1

    return replaced(torch.autograd, backward=replacement)


def multiplied(backward: Callable[..., None], factor: float) -> Callable[..., None]:
    """Returns a backward that starts from `factor` times its own start.

    Args:
        backward: torch.autograd.backward.
        factor: of all gradients.
    """

    # The names are those of torch: its callers use them.
    def run(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        is_loss = isinstance(tensors, Tensor) and grad_tensors is None
        if is_loss and tensors.requires_grad:
            # At the first gradient that it is given, torch imports a package of symbols
            # for most of a second.
            hook = tensors.register_hook(lambda grad: grad * factor)
            try:
                backward(tensors, None, *args, **kwargs)
            finally:
                hook.remove()
        else:
            backward(tensors, _times(tensors, grad_tensors, factor), *args, **kwargs)

    return run


def _times(tensors: Any, grads: Any, factor: float) -> list[Tensor | None]:
    outputs = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    given = (
        [grads] if isinstance(grads, Tensor) else list(grads or [None] * len(outputs))
    )
    return [_start(o, g, factor) for o, g in zip(outputs, given, strict=True)]


def _start(output: Tensor, grad: Tensor | None, factor: float) -> Tensor | None:
    if grad is not None:
        return grad * factor
    # Without a gradient several elements are an error, as they are without a factor.
    return torch.full_like(output, factor) if output.numel() == 1 else None


def trains(tensors: Any) -> bool:
    """Returns whether a backward from here may reach parameters.

    It does not if all leaves of the graph are known and none is a parameter: a step has
    detached the tensor from the model to use its gradient itself.
    """
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    behind = graphs.nodes(t.grad_fn for t in roots if isinstance(t, Tensor))
    has_leaves = False
    for node in islice(behind, _MAX_NODES):
        leaf = getattr(node, "variable", None)
        is_recomputed = type(node).__name__.startswith("CheckpointFunction")
        if isinstance(leaf, nn.Parameter) or is_recomputed:
            return True
        has_leaves |= leaf is not None
    return next(behind, None) is not None or not has_leaves
