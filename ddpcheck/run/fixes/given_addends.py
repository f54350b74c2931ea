"""The intervention target.addends: some of what a loss adds up as one process has it.

One process notes what each addend of a loss gives the model's outputs. On a rank
nothing goes back through the graphs of some addends, and the outputs get that instead,
W times the rank's rows of it. What else the loss adds up stays the rank's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ddpcheck import tree
from ddpcheck.run.fixes import backwards
from ddpcheck.run.watch import addends
from ddpcheck.trace import Reader, Writer

_QUANTITY = "addend"  # of the trace; with the numbers of the backward and the addend

Shard = tuple[int, int, int]  # first sample, samples, samples of all ranks


@contextlib.contextmanager
def noted(model: nn.Module, writer: Writer, step: Callable[[], int]) -> Iterator[None]:
    """Writes the gradients of all addends at the outputs of one process's model."""

    def note(number: int, loss: Tensor, outputs: dict[str, Tensor]) -> None:
        every = addends.gradients(loss, list(outputs.values()))
        for addend, found in enumerate(every):
            named = zip(outputs, found, strict=True)
            writer.add(_quantity(number, addend), step(), named)

    with _before_backwards([model], step, note):
        yield


@contextlib.contextmanager
def given(
    models: Iterable[nn.Module],
    reader: Reader,
    step: Callable[[], int],
    numbers: Collection[int],
    shard: Shard,
    world_size: int,
) -> Iterator[None]:
    """Gives a rank's outputs what one process's addends gave them.

    Args:
        models: the model, and what wraps it.
        reader: of one process's trace.
        step: gives the number of the current step.
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

    with _before_backwards(models, step, replace):
        yield


def _quantity(backward: int, addend: int) -> str:
    return f"{_QUANTITY}{backward}.{addend}"


@contextlib.contextmanager
def _before_backwards(
    models: Iterable[nn.Module],
    step: Callable[[], int],
    call: Callable[[int, Tensor, dict[str, Tensor]], None],
) -> Iterator[None]:
    """Calls back before each backward from a number, with its number within the step.

    And with the tensors that outermost calls of the models returned in that step.
    """
    outputs = _Outputs(step)
    hooks = [hook for model in dict.fromkeys(models) for hook in outputs.attach(model)]

    def run(backward: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(tensors, Tensor) and tensors.numel() == 1:
            number, found = outputs.before_backward()
            call(number, tensors, found)
        backward(tensors, *args, **kwargs)

    try:
        with backwards.outermost(run):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Outputs:
    """What the outermost calls of some modules return within a step, by name."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step, self._depth = step, 0
        self._begin()

    def attach(self, module: nn.Module) -> list[Any]:
        """Returns the hooks, which are to be removed."""
        return [
            nn.Module.register_forward_pre_hook(module, self._enter),
            nn.Module.register_forward_hook(module, self._leave, always_call=True),
        ]

    def before_backward(self) -> tuple[int, dict[str, Tensor]]:
        """Returns how many were before it in this step, and the outputs."""
        if self._of != self._step():
            self._begin()
        self._backwards += 1
        return self._backwards - 1, dict(self._found)

    def _begin(self) -> None:
        self._of = self._step()
        self._calls = self._backwards = 0
        self._found: dict[str, Tensor] = {}

    def _enter(self, *_: Any) -> None:
        self._depth += 1

    def _leave(self, _: nn.Module, __: Any, output: Any) -> Any:
        self._depth -= 1
        if self._depth or output is None:
            return None
        if self._of != self._step():
            self._begin()

        def take(path: str, tensor: Tensor) -> Tensor:
            if not tensor.requires_grad:
                return tensor
            # One output may be computed from another: of each what the loss takes.
            own = self._found[f"{self._calls}/{path}"] = tensor.clone()
            return own

        replaced = tree.replace(output, take)
        self._calls += 1
        return replaced


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
