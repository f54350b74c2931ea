"""Draws of numpy and Python's random that are no draws; see constant_draws for torch's.

Augmentations are drawn with them: a factor from a beta distribution, samples to mix
with, a corner to cut. Through the modules' own functions and through generators made
while this is in force, or held by the model or the user's modules; not through names
that a target has imported from the modules.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import nn

from ddpcheck.run.observe import external_state

# What a distribution gives, of its parameters by position: its middle, or its first.
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
    """Lets every random number of numpy and Python's random be a constant."""
    kept = list(external_state.generators_held(model))
    changes: dict[tuple[Any, str], Any] = {
        (np.random, name): function
        for name, function in _numpy_functions().items()
        if hasattr(np.random, name)
    }
    changes[np.random, "default_rng"] = _default_rng
    changes[np.random, "RandomState"] = _State
    changes |= {(random, name): value for name, value in _PYTHONS.items()}
    # Not its methods: names of temporary files are drawn with them, and have to be new.
    changes[random, "Random"] = _Random
    before = {key: getattr(*key) for key in changes}
    try:
        for (owner, name), value in changes.items():
            setattr(owner, name, value)
        for names, name, generator in kept:
            names[name] = _CONSTANT[external_state.generator_kind(generator)]()
        yield
    finally:
        for names, name, generator in kept:
            names[name] = generator
        for (owner, name), value in before.items():
            setattr(owner, name, value)


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
    """Returns a distribution that gives its middle, in the shape that is asked for."""
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
# What stands in for a generator of each kind.
_CONSTANT: dict[type, Callable[[], Any]] = {
    np.random.Generator: _default_rng,
    np.random.RandomState: _State,
    random.Random: _Random,
}
