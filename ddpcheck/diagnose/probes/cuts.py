"""Cuts: the module outputs that a probe replaces by the reference's.

A cut is a module output that is replaced by a leaf tensor with the reference's values.
The gradient that arrives there in backward is d loss / d output alone: nothing before
the cut has a part in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
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
from ddpcheck.run.process import graphs
from ddpcheck.run.process.replacing import replaced

Place = tuple[int, str]  # (micro-batch, key)
# Autograd nodes of operations that change the shape alone, or nothing.
_SHAPES = ("Clone", "Alias", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze")
_MAX_NODES = 5000  # that are followed between two cuts: one module's own operations


@dataclass(slots=True)
class Leaf:
    """A cut on a rank. `rows` returns the rank's part of a tensor of all samples."""

    key: str
    module: str
    micro: int
    tensor: Tensor
    rows: Callable[[Tensor], Tensor]


def leaf_of(value: Tensor) -> Tensor:
    """Returns a leaf with these values: a parameter, as some losses ask for one."""
    return nn.Parameter(value)


class Cuts:
    """The cuts of the reference, by key.

    `size`, `shard_rows`: number of samples in the batch and in the first shard.
    """

    def __init__(self, size: int, shard_rows: int) -> None:
        self.windows = Windows(sizes=(size,))
        self.shard_rows = shard_rows
        self.dims: dict[str, tuple[int, ...]] = {}  # output shapes on the first shard
        self.shard_outputs: dict[str, Tensor] = {}  # of the model, on the first shard
        self.is_given_samples = True  # the model gets one row per sample of the shard
        self.values: dict[Place, Tensor] = {}
        self.whole: set[str] = set()  # keys of model outputs without samples
        self.data: set[str] = set()  # keys of outputs that need no gradient
        self.flow = Flow()

    @property
    def has_micros(self) -> bool:
        """Whether the step has several micro-batches."""
        return self.windows.count > 1

    def of_the_model_alone(self) -> None:
        """Forgets the values, and all outputs but the model's own."""
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
        """Returns the value for the leaf, None if the output is not cut.

        `perturb`: (key, value) -> the changed value; None in the first pass.
        """
        _, key = place
        if not (place in self.values if perturb else self._can_cut(*place, output)):
            if not name and self.dims.get(key) == tuple(output.shape):
                self.whole.add(key)  # the shape of the batch's equals the shard's
            return None
        if perturb:
            # The value of the first pass: a changed output must not change the outputs
            # of the modules behind it, or this would count as coupling.
            return perturb(key, self.values[place].detach())
        # A mask needs no gradient. Without gradient mode this is not known.
        if torch.is_grad_enabled() and not output.requires_grad:
            self.data.add(key)
        value = self.values[place] = output.detach().clone()
        return value

    def dim(self, key: str, value: Tensor) -> int:
        """Returns the dimension of the samples."""
        return micro.shard_dim(value, self.dims[key], self.shard_rows)

    def place(self, key: str, value: Tensor) -> tuple[int, int]:
        """Returns the dimension of the samples, and the number of blocks of all."""
        mine, whole = self.shard_outputs.get(key), self.values.get((0, key))
        if mine is None or whole is None or self.has_micros:
            return self.dim(key, value), 1
        rows = (0, self.shard_rows, self.windows.sizes[0])
        return self.dim(key, value), num_blocks(mine, whole, rows)

    def own(self) -> set[str]:
        """Returns the keys of the model's own outputs that have samples."""
        return {key for _, key in self.values if key in self.shard_outputs}

    def laid(self) -> tuple[Output, ...]:
        """Returns the model's own outputs that do not have one row per sample.

        A step may stack its inputs; the blocks of samples are then not the model's.
        """
        found = []
        for (_, key), value in self.values.items():
            if key in self.shard_outputs:
                dim, blocks = self.place(key, value)
                blocks = blocks if self.is_given_samples else 1
                if (dim, blocks) != (0, 1):
                    path = key.rpartition("/")[2]
                    found.append(Output(path=path, blocks=blocks, dim=dim))
        return tuple(dict.fromkeys(found))

    def _can_cut(self, number: int, key: str, tensor: Tensor) -> bool:
        mine = self.dims.get(key)
        if mine is None or not tensor.dim() or not tensor.is_floating_point():
            return False
        shape = tuple(tensor.shape)
        return micro.has_shard(self.windows, number, shape, mine, self.shard_rows)


@dataclass(slots=True)
class Flow:
    """Which cut outputs are computed from which others, by autograd's graph."""

    keys: dict[int, str] = field(default_factory=dict)  # by the id of the leaf
    leaves: list[Tensor] = field(default_factory=list)  # held, since ids are reused
    sources: dict[str, set[str]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)  # an output returned once more
    trained: set[str] = field(default_factory=set)  # computed from a parameter

    def leaf(self, key: str, tensor: Tensor) -> None:
        """Adds a leaf that the forward continues with."""
        self.keys[id(tensor)] = key
        self.leaves.append(tensor)

    def note(self, key: str, output: Tensor) -> None:
        """Adds the variables that an output, before it is cut, was computed from."""
        found, is_complete = _variables(output.grad_fn)
        variables = {id(v) for v in found}
        self.sources[key] = {self.keys[v] for v in variables if v in self.keys} - {key}
        is_parameter = output.requires_grad and output.grad_fn is None
        if is_parameter or not is_complete or any(map(self._is_trained, variables)):
            self.trained.add(key)
        passed_on = self.keys.get(id(_passed_on(output.grad_fn)))
        if passed_on is not None:
            self.same[key] = passed_on

    def _is_trained(self, variable: int) -> bool:
        """Returns whether the tensor with this id is computed from a parameter."""
        return variable not in self.keys or self.keys[variable] in self.trained

    def frontier(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Returns the modules whose outputs the loss is computed from.

        If the loss uses outputs of the model and of modules inside, the model's outputs
        are replaced by those that they are computed from: gathering both would gather
        the same samples twice.

        Args:
            keys: of the cuts at which the loss has a gradient.
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
        """Returns the keys of outputs from which another output is computed.

        The scores of a router are: the outputs of the experts depend on them. The
        output of a head is not, though the model returns it once more.
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
    """Returns the leaf that an output is, up to its shape; None if it is none."""
    while node is not None and type(node).__name__.startswith(_SHAPES):
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def _variables(node: Any) -> tuple[list[Tensor], bool]:
    """Returns the variables behind a node, and whether these are all."""
    behind = list(islice(graphs.nodes([node]), _MAX_NODES))
    variables = (getattr(each, "variable", None) for each in behind)
    return [v for v in variables if v is not None], len(behind) < _MAX_NODES


class _Replaced(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, output: Tensor, value: Tensor) -> Tensor:
        del output
        return value.clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        return grad, None


class Attached:
    """Cuts of one step that stay in the graph, for steps with torch.autograd.grad.

    A gradient penalty, or loss weights computed from gradients, needs the graph from an
    output back into the model. An attached cut has the reference's value and passes
    gradients on. Its leaf gets the gradients of `backward`, not of `autograd.grad`. The
    derivative with respect to a cut output is taken with respect to the module's output
    itself, from which other outputs may have been computed before it was cut.

    Enter `noting` around the step.
    """

    def __init__(self) -> None:
        self._in_backward = False
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}  # id -> (cut, output)

    def through(self, output: Tensor, leaf: Tensor) -> Tensor:
        """Returns the leaf's values in the graph of an output.

        An output that no operation computed is returned as it is: it is an input that
        the model passes on, and user code may differentiate with respect to it. The
        `grad` of the leaf will be the gradient of backward.
        """
        if output.grad_fn is None:
            return output
        cut: Tensor = _Replaced.apply(output, leaf.detach())  # type: ignore[no-untyped-call]

        def note(grad: Tensor) -> None:
            if self._in_backward:
                mine = grad.detach()
                leaf.grad = mine.clone() if leaf.grad is None else leaf.grad + mine

        cut.register_hook(note)
        self._cut[id(cut)] = cut, output
        return cut

    def _uncut(self, tensor: Tensor) -> Tensor:
        while id(tensor) in self._cut:
            tensor = self._cut[id(tensor)][1]
        return tensor

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Distinguishes the step's backward passes from other gradients."""

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

        try:
            with replaced(torch.autograd, grad=of_uncut), backwards.outermost(run):
                yield
        finally:
            self._cut.clear()
