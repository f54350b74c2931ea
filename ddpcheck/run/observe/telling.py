"""What a rank tells of its progress, so that one that never ends has told it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ddpcheck.run.observe.observe import Observed
from ddpcheck.run.spec import BackwardCount, ForwardCount


def of_calls(
    seen: Observed, emit: Callable[[Any], None], step: Callable[[], int]
) -> None:
    """Tells of backwards as they begin, and of a step's forwards through DDP.

    Not of the first forward, which every step has: a message takes its time.

    Args:
        seen: what watches the run.
        emit: sends a message.
        step: gives the step that the rank is in.
    """
    forwards: Counter[int] = Counter()

    def forward() -> None:
        # What is compiled around DDP traces this as well, where counts by step become
        # symbols that some versions of torch cannot look up.
        if torch.compiler.is_compiling():
            return
        forwards[step()] += 1
        count, trains = forwards[step()], torch.is_grad_enabled()
        if count > 1:
            emit(ForwardCount(count=count, step=step(), trains=trains))

    seen.on_forward = forward
    seen.on_backward = lambda count: emit(BackwardCount(count=count, step=step()))
