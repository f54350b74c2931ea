"""Global state of a rank process, put back after each job.

Warm ranks do many jobs; what one job's user code left behind must not reach the next.
What can be put back is; what cannot be seen to be clean makes the rank retire.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from ddpcheck.run import compiling


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
    compiler = compiling.settings()
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
