"""The addends of a loss: the graph nodes at which they begin, and their gradients.

The graph is followed from the loss through sums of numbers and factors without
gradient. Both are linear, so the gradient of the loss is the sum of the addends'
gradients. The gradient of one addend is computed by zeroing what arrives at the others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from ddpcheck.run.process.replacing import hooked

Constant: TypeAlias = tuple[str, Tensor | float]  # an operation's name, and its operand
MOST = 8  # losses with more addends are not split
_MOST_OPERATIONS = 16  # names that distinguish addends

_SUMS = {"AddBackward0", "SubBackward0", "RsubBackward1", "StackBackward0"}
# Linear in their first operand, where no other has a gradient.
_LINEAR = {f"{name}Backward0" for name in ("Mul", "Div", "Neg", "ToCopy", "Clone")}
# Linear in stacked numbers; of anything else they compute one addend.
_OF_A_STACK = {"SumBackward0", "MeanBackward0"}


def nodes(loss: Tensor) -> list[Any]:
    """Returns the nodes of the addends, in the order of the sum.

    [] for a single addend, one that is added twice, or more than `MOST`.
    """
    found: list[Any] = []
    waiting = [loss.grad_fn]
    while waiting and len(found) <= MOST:
        node = waiting.pop()
        behind = _behind(node)
        if behind:
            waiting += reversed(behind)
        elif node is not None:
            found.append(node)
    is_usable = 1 < len(found) <= MOST and len(set(found)) == len(found)
    return found if is_usable else []


def kinds(loss: Tensor) -> list[str]:
    """Returns the operations that compute each addend, as names.

    Addends of a loop over classes have the same names.
    """
    return [" ".join(_operations(node)) for node in nodes(loss)]


def _operations(node: Any) -> Iterator[str]:
    """Yields the names of the first operations behind a node, with repetitions."""
    waiting = [node]
    for _ in range(_MOST_OPERATIONS):
        if not waiting:
            return
        first = waiting.pop(0)
        yield first.name()
        waiting += [other for other, _ in first.next_functions if other is not None]


def constants(loss: Tensor) -> Iterator[Constant]:
    """Yields the constant factors of a loss, of its addends or of each sample's loss.

    For `divisors`, which reads their values: that is an operation, so it must run
    outside of modes that observe operations.
    """
    waiting: list[Any] = [loss.grad_fn]
    met: set[Any] = {None}
    while waiting:
        node = waiting.pop()
        if node in met:
            continue
        met.add(node)
        operand = _operand(node)
        if _is_constant(operand):
            yield node.name(), operand
        behind = _behind(node)
        if not behind and node.name() in _OF_A_STACK:
            inside = node.next_functions[0][0]  # the loss of each sample
            behind = [inside] if inside and inside.name() in _LINEAR else []
        waiting += behind


def _operand(node: Any) -> Any:
    try:
        return getattr(node, "_saved_other", None)
    except RuntimeError:  # written in place since then: backward raises too
        return None


def _is_constant(operand: Any) -> TypeGuard[Tensor | float]:
    """Returns whether an operand is a single number without gradient."""
    if isinstance(operand, Tensor):
        is_one_number = not operand.dim() and not operand.is_complex()
        return is_one_number and not operand.requires_grad
    return isinstance(operand, int | float)  # a Python number


def divisors(found: Iterable[Constant]) -> Iterator[float]:
    """Yields the divisors among the constants, also 1/n as the divisor n."""
    for name, operand in found:
        value = float(operand)
        if name in ("DivBackward0", "DivBackward1"):
            yield value
        elif name == "MulBackward0" and value and math.isfinite(1 / value):
            whole = round(1 / value)
            yield whole if math.isclose(1 / value, whole, rel_tol=1e-6) else 1 / value


def keep(every: Sequence[Any], kept: Collection[int]) -> list[Any]:
    """Zeroes the gradients at all other addends; returns the hooks."""
    return [
        node.register_prehook(zeros)
        for number, node in enumerate(every)
        if number not in kept
    ]


def gradients(loss: Tensor, at: Sequence[Tensor]) -> Iterator[list[Tensor | None]]:
    """Yields the gradients of each addend at these tensors; keeps the graph."""
    every = nodes(loss)
    for number in range(len(every)):
        with hooked(*keep(every, {number})):
            found = torch.autograd.grad(loss, at, retain_graph=True, allow_unused=True)
        yield list(found)


def _behind(node: Any) -> list[Any]:
    """Returns the operands of a sum or of a multiple; [] for other nodes."""
    ways = [other for other, _ in node.next_functions] if node is not None else []
    behind = [other for other in ways if other is not None]
    if node is None or not behind:
        return []
    if node.name() in _SUMS:
        return behind
    is_first = len(behind) == 1 and ways[0] is not None
    if is_first and node.name() in _LINEAR:
        return behind
    is_stack = is_first and behind[0].name() == "StackBackward0"
    return behind if is_stack and node.name() in _OF_A_STACK else []


def zeros(arrived: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Returns zeros instead of the gradients that arrive at a node."""
    return tuple(None if g is None else torch.zeros_like(g) for g in arrived)
