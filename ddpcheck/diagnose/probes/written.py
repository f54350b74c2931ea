"""Which buffers a model's forward writes, also those of parts that nothing calls.

A regulariser with an `update` method runs no hooks, yet its buffers are written while
the model's forward runs, not by the training step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from ddpcheck.diagnose.probes.modules import versions_of_buffers
from ddpcheck.run.names import shortener


@contextlib.contextmanager
def writing(wrapped: nn.Module) -> Iterator[set[str]]:
    """Fills the yielded set with the modules whose own buffers forwards change."""
    short = shortener(wrapped)
    whole = [m for path, m in wrapped.named_modules() if not short(path)]
    model, found, before = whole[-1], set[str](), {}

    def enter(*_: Any) -> None:
        before.update(_buffers(model))

    def leave(*_: Any) -> None:
        now = _buffers(model)
        found.update(name for name in now if before.get(name) != now[name])

    handles = model.register_forward_pre_hook(enter), model.register_forward_hook(leave)
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _buffers(model: nn.Module) -> dict[str, list[tuple[int, float]]]:
    short = shortener(model)
    return {
        short(path): told
        for path, module in model.named_modules()
        if (told := versions_of_buffers(module))
    }
