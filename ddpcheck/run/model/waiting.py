"""Which parameters DDP would wait for in vain, where gradients are averaged by hand.

DDP's reducer is armed by its forward and waits for one gradient of every parameter,
until its forward is called again or the optimizer steps. A backward that leaves some
out leaves their bucket open, though another backward of the same step reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ddpcheck.run import private

Gradients = dict[str, tuple[Tensor, int]]  # and how often each was written


class _Wrapper(Protocol):
    require_backward_grad_sync: bool

    def parameters(self) -> Iterable[Tensor]: ...


def gradients(parameters: Mapping[str, Tensor]) -> Gradients:
    """Returns the gradients that there are."""
    grads = {name: p.grad for name, p in parameters.items()}
    return {n: (g, private.version(g)) for n, g in grads.items() if g is not None}


@dataclass(slots=True)
class Window:
    """Parameters that no backward has reached yet, while DDP waits for them."""

    unreached: dict[str, bool] = field(default_factory=dict)
    # Wrappers called since the last backward, and before it; whether outside no_sync.
    called: dict[int, bool] = field(default_factory=dict)
    waited: dict[int, bool] = field(default_factory=dict)
    # What wrappers have returned since their parameters were taken.
    outputs: dict[int, list[Tensor]] = field(default_factory=dict)

    def before_forward(
        self, wrapper: _Wrapper, parameters: Mapping[str, Tensor]
    ) -> dict[str, bool]:
        """Returns what the wrapper has waited for in vain, where it is called again.

        As `take` does. In no_sync DDP waits for nothing, and begins anew after it.
        """
        found: dict[str, bool] = {}
        if id(wrapper) in self.waited:
            own = {id(p) for p in wrapper.parameters()}
            mine = {n: p for n, p in parameters.items() if id(p) in own}
            found = self._taken(mine, self.outputs.pop(id(wrapper), []))
        has_waited = self.waited.pop(id(wrapper), False)
        self.called[id(wrapper)] = wrapper.require_backward_grad_sync
        return found if has_waited else {}

    def after_forward(self, wrapper: _Wrapper, output: Any) -> None:
        """Keeps what the output is computed from."""
        tensors = (t for t in private.leaves(output) if isinstance(t, Tensor))
        kept = self.outputs.setdefault(id(wrapper), [])
        kept += [t for t in tensors if t.requires_grad]

    def after_backward(
        self, before: Gradients, parameters: Mapping[str, Tensor]
    ) -> None:
        """Notes whose gradient it has written."""
        after = gradients(parameters)
        for name, p in parameters.items():
            is_left_out = p.requires_grad and not _is_written(before, after, name)
            self.unreached[name] = self.unreached.get(name, True) and is_left_out
        self.waited |= self.called
        self.called.clear()

    def take(self, parameters: Mapping[str, Tensor]) -> dict[str, bool]:
        """Returns those of these that were not reached; begins anew for them.

        True: an output depends on the parameter.
        """
        outputs = [t for kept in self.outputs.values() for t in kept]
        self.outputs.clear()
        return self._taken(parameters, outputs)

    def _taken(
        self, parameters: Mapping[str, Tensor], outputs: list[Tensor]
    ) -> dict[str, bool]:
        names = [n for n in parameters if self.unreached.pop(n, False)]
        behind = _leaves(outputs) if names else set()
        return {n: id(parameters[n]) in behind for n in names}


def _is_written(before: Gradients, after: Gradients, name: str) -> bool:
    if name not in after:
        return False
    if name not in before or not private.COUNTS_VERSIONS:
        return True
    (old, times), (new, now) = before[name], after[name]
    return new is not old or now > times


def _leaves(outputs: list[Tensor]) -> set[int]:
    """Returns the ids of the leaves that outputs are computed from."""
    found = {id(t) for t in outputs if t.grad_fn is None}
    open_nodes: list[Any] = [t.grad_fn for t in outputs]
    seen: set[Any] = set()
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found.add(id(getattr(node, "variable", None)))
        open_nodes += [following for following, _ in node.next_functions]
    return found
