"""The outputs at which the reference's model is cut, and the values behind the cuts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.diagnose.probes import micro
from ddpcheck.diagnose.probes.evidence import Windows
from ddpcheck.diagnose.probes.hooks import module_of
from ddpcheck.diagnose.probes.rows import num_blocks
from ddpcheck.run.intervention import Output
from ddpcheck.run.interventions.gradients import backwards

Place = tuple[int, str]  # (micro-batch, key)
_SHAPES = ("Clone", "Alias", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze")
_MAX_NODES = 5000  # of autograd's graph between two cuts; a module's own code


@dataclass(slots=True)
class Leaf:
    """A cut: the leaf, and which part of the reference's tensor it is."""

    key: str
    module: str
    micro: int
    tensor: Tensor
    rows: Callable[[Tensor], Tensor]


def leaf_of(value: Tensor) -> Tensor:
    """Returns a cut: a parameter, as it stands for those that are behind it."""
    return nn.Parameter(value)


def is_cut(tensor: Tensor) -> bool:
    """Returns whether an output tensor can be a leaf: floating point, with samples."""
    return tensor.dim() > 0 and tensor.is_floating_point()


def is_data(output: Tensor) -> bool:
    """Returns whether an output is made of no parameter, as a mask is.

    What is made without gradients may be given some, and go forward once more.
    """
    return torch.is_grad_enabled() and not output.requires_grad


class Cuts:
    """What is known of the outputs, by key.

    Args:
        size: number of samples in the batch.
        shard_rows: those of the first shard.
    """

    def __init__(self, size: int, shard_rows: int) -> None:
        self.windows = Windows(sizes=(size,))
        self.shard_rows = shard_rows
        self.dims: dict[str, tuple[int, ...]] = {}  # shapes on the first shard
        self.shard_outputs: dict[str, Tensor] = {}  # of the model, on the first shard
        self.is_given_samples = True  # the model, a row for each
        self.values: dict[Place, Tensor] = {}
        self.whole: set[str] = set()  # keys of model outputs without samples
        self.data: set[str] = set()  # of outputs that no gradient goes back from
        self.flow = Flow()

    @property
    def has_micros(self) -> bool:
        """Whether the step has several micro-batches."""
        return self.windows.count > 1

    def of_the_model_alone(self) -> None:
        """Forgets what was cut, and all modules but the model itself."""
        self.dims = {k: shape for k, shape in self.dims.items() if not module_of(k)}
        self.values.clear()
        self.flow = Flow()

    def value(
        self,
        name: str,
        place: Place,
        output: Tensor,
        perturb: Callable[[str, Tensor], Tensor] | None,
    ) -> Tensor | None:
        """Returns the value that continues from a cut, None if it is no cut.

        Args:
            name: of the module that returned the output.
            place: of the output.
            output: the module's own.
            perturb: (key, value) -> what goes on in a later pass; None in the first.
        """
        _, key = place
        if not (place in self.values if perturb else self._can_cut(*place, output)):
            if not name and self.dims.get(key) == tuple(output.shape):
                self.whole.add(key)  # as large for a shard
            return None
        if perturb:
            # On the values of the first pass: what a perturbed module feeds the next
            # one must not count as coupling.
            return perturb(key, self.values[place].detach())
        self.data |= {key} if is_data(output) else set()
        value = self.values[place] = output.detach().clone()
        return value

    def dim(self, key: str, value: Tensor) -> int:
        """Returns the dimension of the samples."""
        return micro.shard_dim(value, self.dims[key], self.shard_rows)

    def place(self, key: str, value: Tensor) -> tuple[int, int]:
        """Returns the dimension of the samples, and how many blocks of all it has."""
        mine, whole = self.shard_outputs.get(key), self.values.get((0, key))
        if mine is None or whole is None or self.has_micros:
            return self.dim(key, value), 1
        rows = (0, self.shard_rows, self.windows.sizes[0])
        return self.dim(key, value), num_blocks(mine, whole, rows)

    def own(self) -> set[str]:
        """Returns the keys of the model's own outputs that have samples."""
        return {key for _, key in self.values if key in self.shard_outputs}

    def laid(self) -> tuple[Output, ...]:
        """Returns the model's own whose samples lie otherwise than one per row."""
        own = ((k, v) for (_, k), v in self.values.items() if k in self.shard_outputs)
        places = {key: self.place(key, value) for key, value in own}
        return micro.laid(places, are_given_samples=self.is_given_samples)

    def _can_cut(self, number: int, key: str, tensor: Tensor) -> bool:
        mine = self.dims.get(key)
        if mine is None or not is_cut(tensor):
            return False
        shape = tuple(tensor.shape)
        return micro.has_shard(self.windows, number, shape, mine, self.shard_rows)


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


class _Seated(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, output: Tensor, value: Tensor) -> Tensor:
        del output
        return value.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad, None


class Attached:
    """Cuts of one step: enter `noting` around it."""

    def __init__(self) -> None:
        self._in_backward = False
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}  # by id: itself, the output

    def through(self, output: Tensor, leaf: Tensor) -> Tensor:
        """Returns the leaf's values in the graph of an output.

        What no operation computed is returned as it is: inputs that a model hands on
        are what its other outputs are differentiated by.

        Args:
            output: what a module computed.
            leaf: of the same shape; its `grad` will be what backward sends here.
        """
        if output.grad_fn is None:
            return output
        seated: Tensor = _Seated.apply(output, leaf.detach())  # type: ignore[no-untyped-call]

        def note(grad: Tensor) -> None:
            if self._in_backward:
                mine = grad.detach()
                leaf.grad = mine.clone() if leaf.grad is None else leaf.grad + mine

        seated.register_hook(note)
        self._cut[id(seated)] = seated, output
        return seated

    def _uncut(self, tensor: Tensor) -> Tensor:
        while id(tensor) in self._cut:
            tensor = self._cut[id(tensor)][1]
        return tensor

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Stands around a step, whose backward passes it tells from other gradients."""

        def run(backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            self._in_backward = True
            try:
                backward(*args, **kwargs)
            finally:
                self._in_backward = False

        grad = torch.autograd.grad

        def of_uncut(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = tree.replace(inputs, lambda _, tensor: self._uncut(tensor))
            return grad(outputs, inputs, *args, **kwargs)

        torch.autograd.grad = of_uncut
        try:
            with backwards.outermost(run):
                yield
        finally:
            torch.autograd.grad = grad
            self._cut.clear()
