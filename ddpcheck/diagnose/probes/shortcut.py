"""Passes without the modules behind which no gradient of the loss begins.

Every pass of a probe goes on with each module's first outputs, changed or not. Where no
gradient begins inside a module, and two passes on changed outputs are the same whether
it ran or not, passes have the mathematics of the loss to do, and no other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes.teacher import Hooks, key_of

Grads = dict[tuple[int, str], Tensor | None]  # by (micro-batch, key)
# Other outputs decide other things in a nudge and in a copy (see coupling.py).
_TRIALS = 2
_MISSING = object()


class Shortcut:
    """What modules returned first, and those whose forward may be left out for it."""

    def __init__(self) -> None:
        self._returned: dict[tuple[int, str], Any] = {}  # by (micro-batch, call)
        self._left_out: list[nn.Module] = []
        self._trials_left = _TRIALS
        self._is_first = True  # no pass has ended

    @property
    def is_proven(self) -> bool:
        """Whether passes have shown that these may be left out."""
        return bool(self._left_out) and not self._trials_left

    def note(
        self,
        place: tuple[int, str, int],
        output: Any,
        values: dict[tuple[int, str], Tensor],
    ) -> None:
        """Keeps what a call of the first pass returned.

        Args:
            place: (micro-batch, module, call).
            output: of the call.
            values: what is kept of outputs anyhow, by (micro-batch, key).
        """
        if not self._is_first:
            return
        number, name, call = place

        def kept(path: str, tensor: Tensor) -> Tensor:
            key = key_of(name, call, path or "output")
            return values.get((number, key), tensor).detach()

        self._returned[number, f"{name}#{call}"] = tree.replace(output, kept)

    def look_at(self, modules: dict[str, nn.Module], grads: Grads) -> None:
        """Chooses the modules inside which the loss has no gradient.

        Args:
            modules: that have hooks, by name.
            grads: of the first pass.
        """
        self._is_first = False
        keys = [key for (_, key), grad in grads.items() if grad is not None]
        begin = {key.rpartition("#")[0] for key in keys}
        self._left_out = [
            module
            for name, module in modules.items()
            if begin and not any(_is_inside(other, name) for other in begin)
        ]

    def run(self, whole: Callable[[], Grads], short: Callable[[], Grads]) -> Grads:
        """Returns the gradients of a pass, by `short` where that is known to do.

        Args:
            whole: the pass with all modules.
            short: the same pass without those that may be left out.
        """
        if self.is_proven:
            with contextlib.suppress(Exception):  # a batch of another size
                return short()
            return whole()
        found = whole()
        if self._left_out:
            self._trials_left -= 1
            if not _does(short, found):
                self._left_out = []
        return found

    @contextlib.contextmanager
    def taken(self, hooks: Hooks, *, is_taken: bool) -> Iterator[None]:
        """Lets these modules return at once what they returned first, or not."""

        def forward(*_: Any, **__: Any) -> Any:
            return self._returned[hooks.micro, hooks.open[-1]]

        owners = [vars(module) for module in self._left_out] if is_taken else []
        before = [own.get("forward", _MISSING) for own in owners]
        for own in owners:
            own["forward"] = forward
        try:
            yield
        finally:
            for own, value in zip(owners, before, strict=True):
                del own["forward"]
                own.update({} if value is _MISSING else {"forward": value})


def _is_inside(name: str, module: str) -> bool:
    """Returns whether a module is a part of another one."""
    return name != module and (not module or name.startswith(f"{module}."))


def _does(short: Callable[[], Grads], found: Grads) -> bool:
    try:
        return _is_same(found, short())
    except Exception:  # noqa: BLE001 (user code on outputs of an earlier pass)
        return False


def _is_same(first: Grads, second: Grads) -> bool:
    """Returns whether two passes have the same gradients, where the first has any."""
    begin = [place for place, grad in first.items() if grad is not None]
    return all(
        (other := second.get(place)) is not None and torch.equal(first[place], other)  # type: ignore[arg-type]
        for place in begin
    )
