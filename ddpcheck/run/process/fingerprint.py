"""Fingerprints of the state that a target's modules keep between jobs.

A counter, a cache, a generator or an EMA in a global of the user's file would leak into
the next job of a warm rank, so a rank whose fingerprint has changed is replaced. Plain
data and the generators of common libraries are covered.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import operator
import pathlib
import random
import types
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddpcheck.run import private

_MANY = 200
_FEW_BYTES = 1 << 16  # of an array that is hashed whole


def of_module(module: types.ModuleType | None) -> int:
    """Returns a hash of the module's own state."""
    if module is None:
        return 0
    state = []
    for name, value in sorted(vars(module).items()):
        if name.startswith("__") or isinstance(value, types.ModuleType):
            continue
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                state.append((name, _state_of_class(value)))
        else:
            state.append((name, _state(value, depth=4)))
    return hash(repr(state))


def _state_of_class(kind: type) -> Any:
    return [
        (name, _state(value, depth=2))
        for name, value in sorted(vars(kind).items())
        if not name.startswith("__") and not callable(value)
    ]


def _state(value: Any, depth: int) -> Any:
    if isinstance(value, bool | int | float | str | bytes | type(None)):
        return value
    if depth == 0 or isinstance(value, type):
        return id(value)
    try:
        if isinstance(value, Tensor):
            return _state_of_tensor(value)
        if isinstance(value, types.FunctionType):
            values = _state_of_function(value) if depth > 1 else []
            return (id(value), [_state(v, depth - 2) for v in values])
        return _inner_state(value, depth)
    except Exception:  # noqa: BLE001 (a meta tensor, a list that has no length)
        return id(value)


def _state_of_tensor(value: Tensor) -> Any:
    plain = value.detach()
    known = plain.numel() and not plain.is_complex()
    total = float(plain.double().sum()) if known else 0.0
    return (id(value), private.version(value), total)


def _state_of_function(function: types.FunctionType) -> list[Any]:
    """Returns the objects in which a function keeps values between calls."""
    values = [function.__dict__, function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            values.append(cell.cell_contents)
    return values


def _inner_state(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        ends = _ends(list(value.items()))
        return (len(value), [(repr(k), _state(v, depth - 1)) for k, v in ends])
    if isinstance(value, list | tuple | set | frozenset | collections.deque):
        return (len(value), [_state(v, depth - 1) for v in _ends(list(value))])
    if isinstance(value, tuple(_SHOWN)):
        return [
            shown(value) for kind, shown in _SHOWN.items() if isinstance(value, kind)
        ]
    held = (id(value), own_state(value))
    inner = getattr(value, "__dict__", None) or _slots(value)
    if isinstance(inner, dict) and depth > 1:
        return (held, _inner_state(inner, depth - 1))
    return held


def _ends(values: list[Any]) -> list[Any]:
    """Returns the values; of a long list the first and last, as most lists grow."""
    return values if len(values) <= 2 * _MANY else values[:_MANY] + values[-_MANY:]


def own_state(value: Any) -> Any:
    """Returns the inner state of an object; None if it has none or hides it."""
    for kind, state in _STATES.items():
        if isinstance(value, kind):
            return state(value)
    return operator.length_hint(value, -1) if hasattr(value, "__next__") else None


def _of_array(value: Any) -> Any:
    few = value.nbytes <= _FEW_BYTES
    return zlib.crc32(value.tobytes()) if few else float(value.sum())


_STATES: dict[type, Callable[[Any], Any]] = {
    np.ndarray: _of_array,
    np.random.Generator: lambda v: repr(v.bit_generator.state),
    np.random.RandomState: lambda v: repr(v.get_state(legacy=False)),
    random.Random: lambda v: hash(v.getstate()),
    torch.Generator: lambda v: zlib.crc32(v.get_state().numpy().tobytes()),
    itertools.count: repr,
    types.GeneratorType: lambda v: v.gi_frame and v.gi_frame.f_lasti,
    type(functools.cache(int)): lambda v: v.cache_info().currsize,
}


# Objects that only cache results: compared by what they show.
_SHOWN: dict[type, Callable[[Any], Any]] = {
    pathlib.PurePath: str,
    logging.Logger: lambda v: (v.name, v.level, len(v.handlers), len(v.filters)),
}


def _slots(value: Any) -> dict[str, Any]:
    names = [n for c in type(value).__mro__ for n in c.__dict__.get("__slots__", ())]
    return {n: getattr(value, n) for n in names if hasattr(value, n)}
