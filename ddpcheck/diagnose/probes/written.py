"""What a model's forward writes, also in parts that do not do so when called.

A regulariser with an `update` method runs no hooks, yet its buffers are written while
the model's forward runs, not by the training step. A model may normalise the rows of an
embedding before it calls it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ddpcheck.diagnose.probes.modules import versions, versions_of_buffers
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener


@dataclass(frozen=True, slots=True)
class Written:
    """The modules whose own buffers, or own parameters, forwards change.

    Of parameters the sums that are left: ranks that write the same have the same.
    `by_backward`: those whose parameters are others when a backward begins, be it the
    step that has written them.
    """

    model: nn.Module
    begun: dict[str, list[float]]  # sums of parameters when the step began
    buffers: set[str] = field(default_factory=set)
    parameters: dict[str, tuple[float, ...]] = field(default_factory=dict)
    by_backward: set[str] = field(default_factory=set)

    def before_backward(self) -> None:
        """Looks at the parameters."""
        now = _parameters(self.model)
        self.by_backward.update(n for n in now if self.begun.get(n) != now[n])


@contextlib.contextmanager
def writing(wrapped: nn.Module) -> Iterator[Written]:
    """Fills what it yields."""
    short = shortener(wrapped)
    whole = [m for path, m in contents.named_modules(wrapped) if not short(path)]
    model, before, weights = whole[-1], {}, {}
    found = Written(model, _parameters(model))

    def enter(*_: Any) -> None:
        before.update(_buffers(model))
        weights.update(_parameters(model))

    def leave(*_: Any) -> None:
        now = _buffers(model)
        found.buffers.update(name for name in now if before.get(name) != now[name])
        told = _parameters(model)
        found.parameters.update(
            (name, tuple(sums))
            for name, sums in told.items()
            if weights.get(name) != sums
        )

    handles = (
        nn.Module.register_forward_pre_hook(model, enter),
        nn.Module.register_forward_hook(model, leave),
    )
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _buffers(model: nn.Module) -> dict[str, list[tuple[int, float]]]:
    short = shortener(model)
    return {
        short(path): told
        for path, module in contents.named_modules(model)
        if (told := versions_of_buffers(module))
    }


def _parameters(model: nn.Module) -> dict[str, list[float]]:
    short = shortener(model)
    return {
        short(path): versions(module)[1]
        for path, module in contents.named_modules(model)
    }
