"""Whether a training step is written to let an optimizer step, as far as names tell."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ddpcheck.run.observe import sight

_NAME = "step"


def names_a_step(function: Any) -> bool:
    """Returns whether a function, or what it names of its file, calls a `.step`.

    One that only makes gradients never does; one that accumulates them does, at times.
    """
    return _names_one(function, set())


def _names_one(function: Any, seen: set[int]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "__call__", None)  # noqa: B004
    if not isinstance(function, FunctionType) or id(function) in seen:
        return False
    seen.add(id(function))
    names = sight.names_in(function.__code__)
    return _NAME in names or any(
        _names_one(other, seen)
        for other in _reached(function, names)
        if isinstance(other, FunctionType) and other.__globals__ is function.__globals__
    )


def _reached(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yields the globals of these names, and methods of these names that they have."""
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        yield from (getattr(type(value), method, None) for method in names)
