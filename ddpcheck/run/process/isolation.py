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
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ddpcheck.ranks import leftovers
from ddpcheck.run.process import compiling


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Restores process-wide settings on leaving; random numbers start anew."""
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
            if _deterministic() != deterministic:  # it imports torch's compiler
                torch.use_deterministic_algorithms(
                    deterministic[0], warn_only=deterministic[1]
                )
            compiling.put(compiler)
            # Every job seeds before it draws. Keeping three states and putting them
            # back takes ten times as long.
            seed_everything(0)


def _deterministic() -> tuple[bool, bool]:
    """Returns whether algorithms must be deterministic, and whether that only warns."""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _is_elsewhere(folder: str) -> bool:
    try:
        return os.getcwd() != folder  # noqa: PTH109
    except FileNotFoundError:  # it went into a folder and removed it
        return True


@contextlib.contextmanager
def seeded_apart(seed: int) -> Iterator[None]:
    """Seeds for what runs inside; later draws are what they would be without it.

    Where torch is given another seed inside, that one holds for what comes after.
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
    """Seeds torch on every device that there is."""
    ignore_absent_devices()
    torch.manual_seed(seed)


@functools.cache
def ignore_absent_devices() -> None:
    """Lets seeds of devices that are not there go nowhere, for good.

    `torch.manual_seed` has each kind of device seeded. One that was never initialised
    formats a stack and keeps it with the seed, in case it is (torch/cuda/__init__.py,
    `_lazy_call`): a millisecond a call, in memory that only grows. Where there is no
    such device, `manual_seed_all` is documented to ignore the call.
    """
    for name in ("cuda", "xpu", "mtia"):
        device: Any = getattr(torch, name, None)
        if hasattr(device, "manual_seed_all") and not device.is_available():
            device.manual_seed_all = _ignore


def _ignore(seed: int) -> None:
    int(seed)  # which refuses what is no seed, as torch does
