"""Restores global state of a rank process after each job.

Warm ranks run many jobs; state that user code of one job leaves must not affect the
next. What can be restored is; otherwise the rank is replaced (leftovers.py).
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ddpcheck.ranks.server import leftovers
from ddpcheck.run.process import compiling


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restores process-wide settings at exit; reseeds the generators."""
    variables = leftovers.environment_variables()
    folder = os.getcwd()  # noqa: PTH109 (a third of the time, in every job)
    arguments = list(sys.argv)
    dtype = torch.get_default_dtype()
    threads = torch.get_num_threads()
    grad = torch.is_grad_enabled()
    deterministic = _deterministic()
    compiler = compiling.settings()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            leftovers.restore_environment(variables)
            if _is_elsewhere(folder):
                os.chdir(folder)
            sys.argv[:] = arguments
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            torch.set_grad_enabled(grad)
            if _deterministic() != deterministic:  # setting it imports the compiler
                torch.use_deterministic_algorithms(
                    deterministic[0], warn_only=deterministic[1]
                )
            compiling.put(compiler)
            # Every job seeds before it draws. Saving and restoring three states takes
            # ten times as long.
            seed_everything(0)


def _deterministic() -> tuple[bool, bool]:
    """Returns the settings of deterministic algorithms: on, warn only."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _is_elsewhere(folder: str) -> bool:
    try:
        return os.getcwd() != folder  # noqa: PTH109
    except FileNotFoundError:  # the job removed its working folder
        return True


@contextlib.contextmanager
def seeded_apart(seed: int) -> Iterator[None]:
    """Seeds within the context, then restores the states of the generators.

    If torch is seeded otherwise within the context, that seed stays in force.
    """
    own, pythons = torch.get_rng_state(), random.getstate()
    numpys = np.random.get_state()  # noqa: NPY002
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    seed_everything(seed)
    mine = torch.initial_seed()
    yield
    if torch.initial_seed() != mine:
        return
    torch.set_rng_state(own)
    np.random.set_state(numpys)  # noqa: NPY002
    random.setstate(pythons)
    if gpus:
        torch.cuda.set_rng_state_all(gpus)


def seed_everything(seed: int) -> None:
    """Seeds torch, numpy and Python."""
    seed_torch(seed)
    np.random.seed(seed % (1 << 32))  # noqa: NPY002
    random.seed(seed)


def seed_torch(seed: int) -> None:
    """Seeds torch on every available device."""
    ignore_absent_devices()
    torch.manual_seed(seed)


@functools.cache
def ignore_absent_devices() -> None:
    """Makes torch.manual_seed skip devices that are absent, for this process.

    It seeds every kind of device. An uninitialised one formats a stack and stores it
    with the seed (torch/cuda/__init__.py, `_lazy_call`): a millisecond per call, in
    memory that only grows. Without such a device, `manual_seed_all` is documented to
    ignore the call.
    """
    for name in ("cuda", "xpu", "mtia"):
        device: Any = getattr(torch, name, None)
        if hasattr(device, "manual_seed_all") and not device.is_available():
            device.manual_seed_all = _ignore


def _ignore(seed: int) -> None:
    int(seed)  # raises for what is no seed, as torch does
