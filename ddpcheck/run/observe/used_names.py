"""User functions: whether code is the user's, the names it uses, other optimizers.

A loss with weights of its own (class centres, task weights, a temperature) may be
trained by an optimizer in a global of the file, or in an attribute of the one given.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ddpcheck.errors import code_origin


def is_of_torch(made: types.FunctionType | type) -> bool:
    """Returns whether a function or class is torch's, or ddpcheck's."""
    name = made.__module__ or ""
    return name.partition(".")[0] in ("torch", "ddpcheck")


def is_of_library(made: types.FunctionType | type) -> bool:
    """Returns whether a function or class comes from an installed package."""
    found = sys.modules.get(made.__module__ or "")
    return bool(code_origin.inside_packages(getattr(found, "__file__", None) or ""))


def names_in(code: types.CodeType) -> set[str]:
    """Returns the names that a function's code and its nested functions use."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))


_STEP = "step"


def names_a_step(function: Any) -> bool:
    """Returns whether a function, or one of its file that it uses, names `step`.

    A train_step that only computes gradients never does; one that accumulates does.
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
    names = names_in(function.__code__)
    return _STEP in names or any(
        _names_one(other, seen)
        for other in _named_globals(function, names)
        if isinstance(other, FunctionType) and other.__globals__ is function.__globals__
    )


def _named_globals(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yields the globals of these names, and their methods of these names."""
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        yield from (getattr(type(value), method, None) for method in names)


def other_optimizers(
    train_step: Callable[..., Any] | None, given: Any
) -> dict[str, Any]:
    """Returns the other optimizers that a training step can reach, by name.

    Args:
        train_step: of the target; None reaches none.
        given: the optimizer that it is called with.
    """
    if train_step is None:
        return {}
    named = dict(getattr(train_step, "__globals__", {}))
    named |= {
        f"optimizer.{name}": v for name, v in getattr(given, "__dict__", {}).items()
    }
    return {
        name: value
        for name, value in named.items()
        if isinstance(value, Optimizer) and value is not given
    }


def trained_tensors(named: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of optimizers: "name[position]" -> tensor."""
    return {
        f"{name}[{position}]": tensor
        for name, optimizer in named.items()
        for position, tensor in enumerate(_tensors_of(optimizer))
    }


def _tensors_of(optimizer: Any) -> list[Tensor]:
    groups = getattr(optimizer, "param_groups", [])
    return [tensor for group in groups for tensor in group["params"]]
