"""Global state of a rank process, put back after each job.

Warm ranks do many jobs; what one job's user code left behind must not reach the next.
What can be put back is; what cannot be seen to be clean makes the rank retire.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddpcheck.run import private


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restores process-wide settings on leaving; random numbers start anew."""
    environment = dict(os.environ)
    folder = Path.cwd()
    arguments = list(sys.argv)
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()
    grad = torch.is_grad_enabled()
    deterministic = _deterministic()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            if os.environ != environment:
                os.environ.clear()
                os.environ.update(environment)
            if _is_elsewhere(folder):
                os.chdir(folder)
            sys.argv[:] = arguments
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            torch.set_grad_enabled(grad)
            if _deterministic() != deterministic:  # it imports torch's compiler
                torch.use_deterministic_algorithms(
                    deterministic[0], warn_only=deterministic[1]
                )
            # Every job seeds before it draws. Keeping three states and putting them
            # back takes ten times as long.
            seed_everything(0)


def _deterministic() -> tuple[bool, bool]:
    """Returns whether algorithms must be deterministic, and whether that only warns."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _is_elsewhere(folder: Path) -> bool:
    try:
        return Path.cwd() != folder
    except FileNotFoundError:  # it went into a folder and removed it
        return True


def seed_everything(seed: int) -> None:
    """Seeds torch, numpy and Python."""
    seed_torch(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002
    random.seed(seed)


_CACHING = type(functools.cache(int))


def seed_torch(seed: int) -> None:
    """Seeds torch on every device that there is.

    Without a GPU `torch.manual_seed` would do nothing more, but formats three stacks
    and keeps them for ever, once per backend that was never initialised: 3 ms a call
    (torch/cuda/__init__.py, `_lazy_call`).
    """
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def fingerprint(module: types.ModuleType | None) -> int:
    """Returns a number that changes when the module's own state does.

    A counter, a cache or an EMA kept in a global of the user's file would reach the
    next job of a warm rank. Values are looked into as far as plain data goes.
    """
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
            return (id(value), _state(_kept_by(value), depth - 1))
        return _inner_state(value, depth)
    except Exception:  # noqa: BLE001 (a meta tensor, a list that has no length)
        return id(value)


def _state_of_tensor(value: Tensor) -> Any:
    plain = value.detach()
    known = plain.numel() and not plain.is_complex()
    total = float(plain.double().sum()) if known else 0.0
    return (id(value), private.version(value), total)


def _kept_by(function: types.FunctionType) -> list[Any]:
    """Returns where a function keeps values between calls."""
    kept = [function.__dict__, function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not assigned yet
            kept.append(cell.cell_contents)
    return kept


def _inner_state(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return [(repr(k), _state(v, depth - 1)) for k, v in list(value.items())[:200]]
    if isinstance(value, list | tuple | set | frozenset):
        return [_state(v, depth - 1) for v in list(value)[:200]]
    held = (id(value), _cached_by(value))
    inner = getattr(value, "__dict__", None)
    if isinstance(inner, dict):
        return (held, _state(inner, depth - 1))
    return held


def _cached_by(value: Any) -> int:
    """Returns how many results a function of functools.cache holds, 0 for others."""
    return value.cache_info().currsize if isinstance(value, _CACHING) else 0
