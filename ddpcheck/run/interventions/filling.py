"""Switch.EMPTY_BATCHES: a rank without a batch left goes on with an empty one.

While any rank calls the model on one more batch, those that have come to their update
run their last batch again with a loss of 0: every rank has as many backwards, and the
gradients that it has gathered stay what they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.compare import tree


@contextlib.contextmanager
def filled() -> Iterator[None]:
    """Fills up what ranks have fewer than others, before every update."""
    plain: Any = DistributedDataParallel.forward
    last: list[tuple[Any, Any, Any]] = []

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            _anyone(goes_on=True)
            last[:] = [(self, args, kwargs)]
        return plain(self, *args, **kwargs)

    def before_update(*_: Any) -> None:
        while _anyone(goes_on=False):
            _run_empty(plain, last)

    hook = register_optimizer_step_pre_hook(before_update)
    DistributedDataParallel.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.forward = plain  # type: ignore[method-assign]
        hook.remove()


def _run_empty(forward: Callable[..., Any], last: list[tuple[Any, Any, Any]]) -> None:
    if not last:
        message = "a rank has no batch at all that it could run with a loss of 0"
        raise RuntimeError(message)
    model, args, kwargs = last[0]
    with torch.enable_grad():
        outputs = [
            t for t in tree.held(forward(model, *args, **kwargs)) if t.requires_grad
        ]
        sum((t.sum() * 0 for t in outputs), torch.zeros(())).backward()


def _anyone(*, goes_on: bool) -> bool:
    """Returns whether any rank calls the model again; all ranks ask together."""
    count = torch.tensor(float(goes_on))
    dist.all_reduce(count)
    return bool(count)
