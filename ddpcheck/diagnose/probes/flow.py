"""Which cut quantities other cut quantities are computed from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ddpcheck.diagnose.probes.teacher import module_of

_SHAPES = ("Clone", "Alias", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze")
_MAX_NODES = 5000  # of autograd's graph between two cuts; a module's own code


@dataclass(slots=True)
class Flow:
    """Follows autograd's graph from outputs back to the leaves cut before them."""

    keys: dict[int, str] = field(default_factory=dict)  # by the leaf's id
    leaves: list[Tensor] = field(default_factory=list)  # kept: ids are reused
    sources: dict[str, set[str]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)  # the same values, passed on
    reached: dict[str, set[int]] = field(default_factory=dict)  # ids of leaves
    trained: set[str] = field(default_factory=set)  # computed from a parameter

    def leaf(self, key: str, tensor: Tensor) -> None:
        """Notes a leaf that the forward goes on from."""
        self.keys[id(tensor)] = key
        self.leaves.append(tensor)

    def note(self, key: str, output: Tensor) -> None:
        """Notes what an output, before it is cut, was computed from."""
        found, is_whole = _variables(output.grad_fn)
        variables = {id(v) for v in found}
        self.reached[key] = variables
        self.sources[key] = {self.keys[v] for v in variables if v in self.keys} - {key}
        is_parameter = output.requires_grad and output.grad_fn is None
        if is_parameter or not is_whole or any(map(self._is_trained, variables)):
            self.trained.add(key)
        passed_on = self.keys.get(id(_passed_on(output.grad_fn)))
        if passed_on is not None:
            self.same[key] = passed_on

    def _is_trained(self, variable: int) -> bool:
        """Returns whether a tensor, by its id, is a parameter or made of one."""
        return variable not in self.keys or self.keys[variable] in self.trained

    def frontier(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Returns the modules behind which the loss lies, by keys it has gradients at.

        The model's own outputs stand for the modules they come from where the loss
        also begins at some inside: both cannot be gathered.
        """
        used = list(keys)
        inner = [k for k in used if module_of(k)]
        if inner and len(inner) < len(used):
            used = [
                s
                for k in used
                for s in ([k] if module_of(k) else sorted(self.sources.get(k, ())))
            ]
        return tuple(dict.fromkeys(module_of(k) for k in used))

    def on_the_way(self) -> set[str]:
        """Returns the keys whose values another output is computed from.

        A router's scores are: the experts' outputs depend on them. The output of a
        head is not, though the model returns it once more under its own name.
        """
        feeds: dict[str, set[str]] = {}
        for key, sources in self.sources.items():
            for source in sources:
                feeds.setdefault(source, set()).add(key)
        return {key for key in self.sources if self._feeds_others(key, feeds)}

    def _feeds_others(self, key: str, feeds: dict[str, set[str]]) -> bool:
        names = [key]
        while names[-1] in self.same:
            names.append(self.same[names[-1]])
        return any(feeds.get(name, set()) - set(names) for name in names)


def _passed_on(node: Any) -> Tensor | None:
    """Returns the leaf that an output is, but for its shape; None where it is not."""
    while node is not None and type(node).__name__.startswith(_SHAPES):
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def _variables(node: Any) -> tuple[list[Tensor], bool]:
    """Returns the variables behind a node, and whether these are all."""
    found: list[Tensor] = []
    seen: set[Any] = set()
    open_nodes = [node]
    while open_nodes and len(seen) < _MAX_NODES:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        open_nodes += [following for following, _ in node.next_functions]
    return found, not open_nodes
