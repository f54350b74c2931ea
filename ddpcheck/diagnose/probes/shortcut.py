"""Passes without the model's own forward, where the loss sees what it returns alone.

Every pass of a probe goes on with the model's first outputs, changed or not. Where no
gradient begins inside the model, and a loss of changed outputs is the same whether the
modules before them ran or not, a pass has the mathematics of the loss to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck import tree
from ddpcheck.diagnose.probes.teacher import Hooks

Grads = dict[tuple[int, str], Tensor | None]  # by (micro-batch, key)
# Other outputs decide other things in a nudge and in a copy (see coupling.py).
_TRIALS = 2
_MISSING = object()


class Shortcut:
    """The model's first outputs, and whether its forward may be left out for them."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._returned: dict[tuple[int, int], Any] = {}  # by (micro-batch, call)
        self._trials_left = _TRIALS
        self.is_open = True  # as far as is known

    @property
    def is_proven(self) -> bool:
        """Whether passes have shown that the forward may be left out."""
        return self.is_open and not self._trials_left

    def note(self, hooks: Hooks, name: str, call: int, output: Any) -> None:
        """Keeps what a call returned, if it is the model's own."""
        if not name:
            self._returned[hooks.micro, call] = tree.replace(output, _detached)

    def look_at(self, grads: Grads) -> None:
        """Closes where the loss has gradients inside the model, or none at all."""
        begin = {
            key.rpartition("#")[0] for (_, key), g in grads.items() if g is not None
        }
        is_script = isinstance(self._model, torch.jit.ScriptModule)
        self.is_open = begin == {""} and not is_script

    def run(self, whole: Callable[[], Grads], short: Callable[[], Grads]) -> Grads:
        """Returns the gradients of a pass, by `short` where that is known to do.

        Args:
            whole: the pass with the model's forward.
            short: the same pass without.
        """
        if self.is_proven:
            return short()
        found = whole()
        if self.is_open:
            self._trials_left -= 1
            with contextlib.suppress(Exception):
                self.is_open = _is_same(found, short())
                return found
            self.is_open = False
        return found

    @contextlib.contextmanager
    def taken(self, hooks: Hooks, *, is_taken: bool) -> Iterator[None]:
        """Lets the model return at once what it returned in the first pass, or not."""
        if not is_taken:
            yield
            return

        def forward(*_: Any, **__: Any) -> Any:
            return self._returned[hooks.micro, int(hooks.open[-1].rpartition("#")[2])]

        own = vars(self._model)
        before = own.get("forward", _MISSING)
        own["forward"] = forward
        try:
            yield
        finally:
            if before is _MISSING:
                del own["forward"]
            else:
                own["forward"] = before


def _detached(_: str, tensor: Tensor) -> Tensor:
    return tensor.detach()


def _is_same(first: Grads, second: Grads) -> bool:
    """Returns whether two passes have the same gradients where the model ends."""
    begin = [place for place, grad in first.items() if grad is not None]
    return all(
        (other := second.get(place)) is not None and torch.equal(first[place], other)  # type: ignore[arg-type]
        for place in begin
    )
