"""Substitutes "addends": some addends of a loss are those of the single process.

The single-process run records the gradient of each addend at the model's outputs. On a
rank some addends send no gradient through their graphs; the outputs get the recorded
gradient instead, W times the rank's rows of it. Other addends of the loss stay as they
are on the rank.

An addend may be computed within the model, from what a module returns: a router's
balance. Then the tensors where it begins are known, as "MODULE#CALL/PATH", and these
get its gradient in addition to that of the others.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.model.names import shortener
from ddpcheck.run.observe import addends
from ddpcheck.run.process.replacing import hooked

_QUANTITY = "addend"  # of the trace; with the numbers of the backward and the addend

Shard = tuple[int, int, int]  # first sample, samples, samples of all ranks


Numbers = Mapping[int, frozenset[str]]  # of addends, and where each begins within


@contextlib.contextmanager
def recorded(
    model: nn.Module, writer: Writer, step: Callable[[], int], numbers: Numbers
) -> Iterator[None]:
    """Writes the gradients of all addends at the outputs of the model."""

    def note(number: int, loss: Tensor, outputs: dict[str, Tensor]) -> None:
        own = {key: t for key, t in outputs.items() if not _is_inside(key)}
        for addend, found in enumerate(addends.gradients(loss, list(own.values()))):
            if not numbers.get(addend):
                named = zip(own, found, strict=True)
                writer.add(_quantity(number, addend), step(), named)
        for addend, places in numbers.items():
            if places:
                here = {key: t for key, t in outputs.items() if key in places}
                named = zip(here, _apart(loss, here, addend), strict=True)
                writer.add(_quantity(number, addend), step(), named)

    with _before_backwards([model], model, step, numbers, note):
        yield


@contextlib.contextmanager
def substituted(
    models: Iterable[nn.Module],
    bare: nn.Module,
    reader: Reader,
    step: Callable[[], int],
    numbers: Numbers,
    shard: Shard,
    world_size: int,
) -> Iterator[None]:
    """Adds the recorded gradients of these addends to the rank's outputs.

    Args:
        models: the model and its wrapper.
        bare: the model.
        reader: of the single-process trace.
        step: returns the number of the current step.
        numbers: of the addends.
        shard: of this rank.
        world_size: number of ranks.
    """

    def replace(number: int, loss: Tensor, outputs: dict[str, Tensor]) -> None:
        every = addends.nodes(loss)
        addends.keep(every, set(range(len(every))) - set(numbers))
        for name, output in outputs.items():
            for addend in numbers:
                whole = reader.find(_quantity(number, addend), step(), name)
                own = None if whole is None else _own(whole, output, shard, world_size)
                if own is not None:
                    output.register_hook(_adding(own))

    with _before_backwards(models, bare, step, numbers, replace):
        yield


def _quantity(backward: int, addend: int) -> str:
    return f"{_QUANTITY}{backward}.{addend}"


def _is_inside(key: str) -> bool:
    """Returns whether a tensor is the output of a module within the model."""
    return not key.startswith("#")


def _apart(
    loss: Tensor, tensors: dict[str, Tensor], number: int
) -> list[Tensor | None]:
    """Returns an addend's gradient at each tensor, without paths through another.

    Each is a copy, so its gradient is known before it is passed on.
    """
    nodes = (tensor.grad_fn for tensor in tensors.values())
    hooks = [node.register_prehook(addends.zeros) for node in nodes if node is not None]
    with hooked(*hooks):
        found = addends.gradients(loss, list(tensors.values()))
        return next(itertools.islice(found, number, None))


@contextlib.contextmanager
def _before_backwards(
    models: Iterable[nn.Module],
    bare: nn.Module,
    step: Callable[[], int],
    numbers: Numbers,
    call: Callable[[int, Tensor, dict[str, Tensor]], None],
) -> Iterator[None]:
    """Calls back before each backward from a number, with its number within the step.

    Also passes the tensors that outermost calls of the models returned in that step,
    and the outputs of modules within at which some addend begins.
    """
    inside = frozenset(filter(_is_inside, frozenset().union(*numbers.values())))
    outputs = _Outputs(step, inside)
    hooks = [hook for model in dict.fromkeys(models) for hook in outputs.attach(model)]
    owners = {key.rpartition("#")[0] for key in inside}
    short = shortener(bare)
    for path, module in bare.named_modules() if owners else ():
        if short(path) in owners:
            hooks += outputs.attach_inside(short(path), module)

    def run(backward: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(tensors, Tensor) and tensors.numel() == 1:
            number, found = outputs.before_backward()
            call(number, tensors, found)
        backward(tensors, *args, **kwargs)

    with hooked(*hooks), backwards.outermost(run):
        yield


class _Outputs:
    """The outputs of the outermost calls of some modules within a step, by key.

    Also the outputs of modules within them for which `inside` is true.
    """

    def __init__(self, step: Callable[[], int], inside: frozenset[str]) -> None:
        self._step, self._depth, self._inside = step, 0, inside
        self._begin()

    def attach(self, module: nn.Module) -> list[Any]:
        """Returns the hooks, which are to be removed."""
        return [
            nn.Module.register_forward_pre_hook(module, self._enter),
            nn.Module.register_forward_hook(module, self._leave, always_call=True),
        ]

    def attach_inside(self, name: str, module: nn.Module) -> list[Any]:
        """Returns the hook on a module within the model."""

        def leave(_: nn.Module, __: Any, output: Any) -> Any:
            return self._taken(name, output, self._inside)

        return [module.register_forward_hook(leave)]

    def before_backward(self) -> tuple[int, dict[str, Tensor]]:
        """Returns how many were before it in this step, and the outputs."""
        self._begin_step()
        self._backwards += 1
        return self._backwards - 1, dict(self._found)

    def _begin(self) -> None:
        self._of = self._step()
        self._backwards = 0
        self._calls: Counter[str] = Counter()
        self._found: dict[str, Tensor] = {}

    def _begin_step(self) -> None:
        if self._of != self._step():
            self._begin()

    def _enter(self, *_: Any) -> None:
        self._depth += 1

    def _leave(self, _: nn.Module, __: Any, output: Any) -> Any:
        self._depth -= 1
        if self._depth or output is None:
            return None
        return self._taken("", output, None)

    def _taken(self, name: str, output: Any, wanted: frozenset[str] | None) -> Any:
        """Returns the output with copies of its tensors; `wanted`: of these alone."""
        self._begin_step()
        call = self._calls[name]
        self._calls[name] += 1

        def take(path: str, tensor: Tensor) -> Tensor:
            key = f"{name}#{call}/{path or 'output'}"
            if not tensor.requires_grad or (wanted is not None and key not in wanted):
                return tensor
            # One output may be computed from another: each counts as used by the loss.
            own = self._found[key] = tensor.clone()
            return own

        return tree.replace(output, take)


def _own(whole: Tensor, output: Tensor, shard: Shard, world_size: int) -> Tensor | None:
    """Returns a rank's part of a gradient, as DDP is going to average it.

    Of an output without samples all of it. None where no dimension holds the samples.
    """
    if whole.shape == output.shape:
        return whole
    start, size, total = shard
    for dim, (mine, every) in enumerate(zip(output.shape, whole.shape, strict=False)):
        each = every // total
        if mine != every and (mine, every) == (size * each, total * each):
            return whole.narrow(dim, start * each, size * each) * world_size
    return None


def _adding(own: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda grad: grad + own.to(grad)
