"""Draws that are no draws: every random number is a constant, the same everywhere.

What two runs still differ by has nothing to do with chance. Unlike noise that follows
the sample, this asks for no order or shape of draws: a step in micro-batches, or one
that permutes its samples, is alike in one process and on ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.run import private
from ddpcheck.run.interventions.constant_generators import constant_generators

_RANDOM = torch.Tag.nondeterministic_seeded


@contextlib.contextmanager
def constant_draws(model: nn.Module) -> Iterator[None]:
    """Lets every random number of torch, numpy and random be a constant."""
    with ConstantDraws(), constant_generators(model):
        yield


class ConstantDraws(private.DispatchMode):
    """Replaces what random operations draw; those that it does not know go on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation, and writes constants over what it drew."""
        del types
        result = func(*args, **(kwargs or {}))
        if _RANDOM not in func.tags:
            return result
        name = str(func.__name__).partition(".")[0]
        fill = _CONSTANTS.get(name.strip("_"))
        if fill is not None:
            fill(args, result)
        return result


def _with(value: float) -> Callable[[Any, Any], None]:
    def fill(_: Any, drawn: Tensor) -> None:
        drawn.fill_(value)

    return fill


def _mean_of_normal(args: Any, drawn: Tensor) -> None:
    means = [a for a in args if isinstance(a, Tensor) and a is not drawn]
    drawn.copy_(means[0]) if means else drawn.zero_()


def _kept(args: Any, drawn: tuple[Tensor, Tensor]) -> None:
    """Dropout that drops nothing: (output, mask)."""
    drawn[0].copy_(args[0])
    drawn[1].fill_(1)


def _in_order(_: Any, drawn: Tensor) -> None:
    drawn.copy_(torch.arange(drawn.numel()).view_as(drawn))


def _likeliest(args: Any, drawn: Tensor) -> None:
    drawn.copy_(args[0].topk(drawn.shape[-1], -1).indices)


def _mean_of_rates(args: Any, drawn: Tensor) -> None:
    drawn.copy_(args[0])


def _shares(args: Any, drawn: Tensor) -> None:
    drawn.copy_(args[0] / args[0].sum(-1, keepdim=True))


_CONSTANTS: dict[str, Callable[[Any, Any], None]] = {
    "rand": _with(0.5),
    "rand_like": _with(0.5),
    "uniform": _with(0.5),
    "randn": _with(0.0),
    "randn_like": _with(0.0),
    "normal": _mean_of_normal,
    "bernoulli": _with(1.0),
    "exponential": _with(1.0),
    "randint": _with(0),
    "randint_like": _with(0),
    "random": _with(0),
    "randperm": _in_order,
    "multinomial": _likeliest,
    "native_dropout": _kept,
    "poisson": _mean_of_rates,
    "standard_gamma": _mean_of_rates,
    "sample_dirichlet": _shares,
}
