"""Random numbers as constants: every draw returns the same on all ranks.

What then still differs between two runs is not due to randomness. Unlike noise that is
computed per sample, this needs no order or shape of draws: it also covers steps in
micro-batches and steps that permute their samples.

numpy and Python's random are covered too, as augmentations draw with them: through the
functions of the modules, generators created while this is active, and generators that
the model or the user's modules hold. Names that a target has imported from these
modules are not.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpcheck.run.observe import external_state
from ddpcheck.run.process.modes import DispatchMode
from ddpcheck.run.process.replacing import all_replaced

# The constant of each distribution, from its parameters: its middle or first value.
_MIDDLES: dict[str, Callable[..., Any]] = {
    "random": lambda: 0.5,
    "random_sample": lambda: 0.5,
    "uniform": lambda low=0.0, high=1.0: (np.asarray(low) + high) / 2,
    "normal": lambda loc=0.0, scale=1.0: loc + 0 * np.asarray(scale),
    "standard_normal": lambda: 0.0,
    "beta": lambda a, b: a / (np.asarray(a) + b),
    "exponential": lambda scale=1.0: scale,
    "gamma": lambda shape, scale=1.0: shape * np.asarray(scale),
    "binomial": lambda n, p: np.rint(n * np.asarray(p)).astype(int),
    "poisson": lambda lam=1.0: np.rint(lam).astype(int),
    "integers": lambda low, high=None: 0 if high is None else low,
    "randint": lambda low, high=None: 0 if high is None else low,
}


@contextlib.contextmanager
def constant_generators(model: nn.Module) -> Iterator[None]:
    """Makes every random number of numpy and Python's random a constant."""
    held = list(external_state.generators_held(model))
    changes: dict[tuple[Any, str], Any] = {
        (np.random, name): function
        for name, function in _numpy_functions().items()
        if hasattr(np.random, name)
    }
    changes[np.random, "default_rng"] = _default_rng
    changes[np.random, "RandomState"] = _State
    changes |= {(random, name): value for name, value in _PYTHONS.items()}
    # Not its methods: names of temporary files use them and have to be new.
    changes[random, "Random"] = _Random
    with all_replaced(changes):
        try:
            for names, name, generator in held:
                names[name] = _CONSTANT[external_state.generator_kind(generator)]()
            yield
        finally:
            for names, name, generator in held:
                names[name] = generator


def _numpy_functions() -> dict[str, Callable[..., Any]]:
    found = {name: _filled(middle) for name, middle in _MIDDLES.items()}
    return found | {
        "rand": lambda *shape: np.full(shape, 0.5) if shape else 0.5,
        "randn": lambda *shape: np.zeros(shape) if shape else 0.0,
        "permutation": lambda x, *_, **__: np.arange(x) if _is_int(x) else np.array(x),
        "shuffle": lambda *_, **__: None,
        "choice": _first_of,
    }


def _filled(middle: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that returns the middle value in the requested shape."""
    known = middle.__code__.co_argcount

    def draw(*args: Any, size: Any = None, **kwargs: Any) -> Any:
        if len(args) > known and size is None:
            size = args[known]
        named = {k: v for k, v in kwargs.items() if k in middle.__code__.co_varnames}
        value = middle(*args[:known], **named)
        if size is not None:
            return np.full(size, value)
        return (
            value.item() if isinstance(value, np.ndarray) and not value.ndim else value
        )

    return draw


def _first_of(a: Any, size: Any = None, *_: Any, **__: Any) -> Any:
    things = np.arange(a) if _is_int(a) else np.asarray(a)
    return things[0] if size is None else np.resize(things, size)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer)


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(_: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method


def _constant(kind: type, functions: dict[str, Callable[..., Any]]) -> type:
    """Returns a class of generators that draw constants."""
    methods = {
        name: _as_method(function)
        for name, function in functions.items()
        if hasattr(kind, name)
    }
    return type(kind.__name__, (kind,), methods)


_Generator = _constant(np.random.Generator, _numpy_functions())
_State = _constant(np.random.RandomState, _numpy_functions())
_plain_rng = np.random.default_rng


def _default_rng(seed: Any = None) -> Any:
    return _Generator(_plain_rng(seed).bit_generator)


_PYTHONS: dict[str, Callable[..., Any]] = {
    "random": lambda: 0.5,
    "uniform": lambda a, b: (a + b) / 2,
    "randint": lambda a, _: a,
    "randrange": lambda start, stop=None, _=1: 0 if stop is None else start,
    "choice": lambda things: things[0],
    "choices": lambda things, *_, k=1, **__: [things[0]] * k,
    "sample": lambda things, k, **_: list(things)[:k],
    "shuffle": lambda *_: None,
    "gauss": lambda mu=0.0, _=1.0: mu,
    "normalvariate": lambda mu=0.0, _=1.0: mu,
    "betavariate": lambda alpha, beta: alpha / (alpha + beta),
    "expovariate": lambda lambd=1.0: 1 / lambd,
}
_Random = _constant(random.Random, _PYTHONS)
# The replacement of a generator of each kind.
_CONSTANT: dict[type, Callable[[], Any]] = {
    np.random.Generator: _default_rng,
    np.random.RandomState: _State,
    random.Random: _Random,
}


_RANDOM = torch.Tag.nondeterministic_seeded


@contextlib.contextmanager
def constant_draws(model: nn.Module) -> Iterator[None]:
    """Makes every random number of torch, numpy and random a constant."""
    with ConstantDraws(), constant_generators(model):
        yield


class ConstantDraws(DispatchMode):
    """Replaces the results of random operations that it knows."""

    def __init__(self) -> None:
        super().__init__()

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the operation and overwrites its random numbers by constants."""
        result = func(*args, **kwargs)
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


def _undropped(args: Any, drawn: tuple[Tensor, Tensor]) -> None:
    """Fills (output, mask) of a dropout that drops nothing."""
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
    "native_dropout": _undropped,
    "poisson": _mean_of_rates,
    "standard_gamma": _mean_of_rates,
    "sample_dirichlet": _shares,
}
