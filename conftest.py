"""Leak checks around every test, the profile of hypothesis, and compiled modules.

What ddpcheck leaves behind in a user's process is a fault of its own, so no test may
end with other variables, processes, threads, folders, or global torch state than it
began with. Fixtures of wider scope start before and end after the check.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest


def _keep_compiled_modules() -> None:
    """Undoes PYTHONDONTWRITEBYTECODE: the tests start a hundred Pythons.

    Each would compile ddpcheck again, and pytest would rewrite the tests again. A fork
    server takes the flag over from this Python: it finds all of ddpcheck compiled.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        sys.dont_write_bytecode = False
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        compileall.compile_dir(Path(__file__).parent / "ddpcheck", quiet=2)


_keep_compiled_modules()
# What is imported and collected stays: `pytest_collection_finish` takes it away from
# the collector, which would go through it again and again.
gc.disable()


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (what the pool uses)
# Set by pytest while a test runs, and by torch when it first imports its compiler.
_OWN_VARIABLES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"}


def _variables() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES}


def _children() -> set[int]:
    """Returns the direct children but for multiprocessing's tracker, which stays."""
    return {c.pid for c in map(_process, _child_ids()) if c and not _is_expected(c)}


def _child_ids() -> Iterator[int]:
    """Yields the ids of direct children, from the kernel's own list where it has one.

    Asking every process for its parent takes milliseconds, twice a test.
    """
    lists = list(Path("/proc/self/task").glob("*/children"))
    if not lists:
        yield from (c.pid for c in psutil.Process().children())
        return
    for each in lists:
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            yield from map(int, each.read_text(encoding="ascii").split())


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _is_expected(child: psutil.Process) -> bool:
    try:
        is_dead = child.status() == psutil.STATUS_ZOMBIE
        return is_dead or "resource_tracker" in " ".join(child.cmdline())
    except psutil.NoSuchProcess:
        return True


def _threads() -> set[str]:
    return {f"{t.name} ({t.ident})" for t in threading.enumerate()}


def _folders() -> set[str]:
    """Returns the folders of pools that this process started."""
    return {p.name for p in _SHARED_MEMORY.glob(f"ddpcheck-{os.getpid()}-*")}


def _torch_state() -> dict[str, Any]:
    """Returns torch's global settings, nothing where torch was not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_rng_state"):
        return {}
    distributed = torch.distributed
    return {
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "random state": hash(torch.get_rng_state().numpy().tobytes()),
        "process group": distributed.is_available() and distributed.is_initialized(),
        "anomaly mode": torch.is_anomaly_enabled(),
    }


def _random_state() -> dict[str, Any]:
    return {"random state of Python": hash(random.getstate())}


def _hooks() -> dict[str, Any]:
    return {"sys.excepthook": sys.excepthook, "threading's": threading.excepthook}


_WATCHED: dict[str, Callable[[], Any]] = {
    "hooks for exceptions": _hooks,
    "environment variables": _variables,
    "child processes": _children,
    "threads": _threads,
    "folders in /dev/shm": _folders,
    "torch": _torch_state,
    "random": _random_state,
}


def snapshot() -> dict[str, Any]:
    """Returns all that a test must leave as it was."""
    return {name: watch() for name, watch in _WATCHED.items()}


def leaks(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns one line per thing that is not as it was."""
    return [
        line
        for name, value in before.items()
        for line in _differences(name, value, after[name])
    ]


def _differences(name: str, before: Any, after: Any) -> list[str]:
    if isinstance(before, set):
        return [f"{name}: {item} left behind" for item in sorted(after - before)]
    # torch itself may have been imported by the test: then nothing was there before.
    keys = [k for k in before if before[k] != after.get(k)]
    if name == "environment variables":
        keys += [k for k in after if k not in before]
    return [f"{name}: {k} changed" for k in keys]


def pytest_configure() -> None:
    """Sets the profile of hypothesis, which pytest rewrites: compiled once."""
    import hypothesis  # noqa: PLC0415

    hypothesis.settings.register_profile(
        "ddpcheck", deadline=None, derandomize=True, database=None, max_examples=60
    )
    hypothesis.settings.load_profile("ddpcheck")


def pytest_collection_finish() -> None:
    """Lets the collector look at what comes from now on."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips tests that need more GPUs than there are; the reason has the number."""
    marker = item.get_closest_marker("cuda")
    if marker is None:
        return
    from ddpcheck.ranks import devices  # noqa: PLC0415 (imports torch)

    (needed,) = marker.args
    found = devices.count()
    if found < needed:
        pytest.skip(f"needs GPUs: {needed}, torch finds {found}")


@pytest.fixture(autouse=True)
def _leaves_no_trace() -> Iterator[None]:
    before = snapshot()
    yield
    found = leaks(before, snapshot())
    assert not found, "the test left traces:\n" + "\n".join(found)


@pytest.fixture
def seeded() -> Iterator[None]:
    """Seeds torch for a test that draws, and puts its state back."""
    import torch  # noqa: PLC0415 (most tests need none)

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
