"""Global state that a job changed in its rank and did not restore.

A rank with such leftovers is replaced before its next job, which costs a fork. Only
state that Python can read is compared: not the state of a C library, for example.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Modules whose functions and classes user code patches. `torch` comes from sys.modules:
# a rank has imported it, this module does not.
_PATCHED = (
    "builtins",
    "math",
    "numpy",
    "numpy.random",
    "os",
    "random",
    "time",
    "torch",
    "torch.autograd",
    "torch.distributed",
    "torch.linalg",
    "torch.nn",
    "torch.nn.functional",
    "torch.nn.init",
    "torch.nn.parallel",
    "torch.nn.utils",
    "torch.optim",
    "torch.utils.data",
)
# The attributes of their classes are compared as well.
_OF_CLASSES = ("torch._tensor", "torch.nn.modules", "torch.nn.parallel", "torch.optim")
_SIGNALS = (
    *("SIGABRT", "SIGALRM", "SIGCHLD", "SIGINT", "SIGPIPE", "SIGTERM"),
    *("SIGUSR1", "SIGUSR2"),
)
_LIMITS = tuple(
    value for name, value in vars(resource).items() if name.startswith("RLIMIT_")
)
_COMPILE = os.path.join("torch", "_compile.py")  # noqa: PTH118 (of a name)
_GONE = object()
# Registered for all modules or optimizers of the process.
_HOOKS = ("torch.nn.modules.module", "torch.optim.optimizer")


class Before:
    """A rank's state before its first job."""

    def __init__(self) -> None:
        self._state = _state()
        self._watched = watched()

    def leftovers(self) -> list[str]:
        """Returns the names of what differs now: ["threads", "torch.nn.functional"]."""
        now = _state()
        found = [name for name, value in self._state.items() if now[name] != value]
        return found + self._watched.changed()


class Watched:
    """Modules and classes, and the values of their attributes."""

    def __init__(self, owners: list[Any]) -> None:
        self._owners = owners
        self._views = [vars(owner).values() for owner in owners]  # follow what changes
        self._before = [dict(vars(owner)) for owner in owners]
        self._accepted = [list(view) for view in self._views]

    def changed(self) -> list[str]:
        """Returns the names of those with an attribute that has another value.

        New attributes do not count: modules import submodules lazily. A rank compares
        5,000 values per job, nearly all of them unchanged, so they are compared as
        lists, in C.
        """
        now = list(map(list, self._views))
        if _is_same(now, self._accepted):
            return []
        pairs = zip(self._owners, self._before, strict=True)
        found = [_name(owner) for owner, before in pairs if _has_changed(owner, before)]
        if not found:
            self._accepted = now
        return found


@functools.cache
def watched() -> Watched:
    """Returns the watched values as they were at the first call.

    The fork server calls it after its imports, for all ranks.
    """
    return Watched(_owners())


def _owners() -> list[Any]:
    modules = [sys.modules[name] for name in _PATCHED if name in sys.modules]
    classes = {  # each once, in order
        value: None
        for module in modules
        for name, value in list(vars(module).items())
        if issubclass(type(value), type)  # isinstance would read the value's __class__
        and value.__module__.startswith(_OF_CLASSES)
        and not name.startswith("_")
    }
    return [*modules, *classes]


def _has_changed(owner: Any, before: dict[str, Any]) -> bool:
    now = vars(owner)
    return any(
        now.get(name, _GONE) is not old and not _is_by_torch(owner, name, old)
        for name, old in before.items()
    )


def _is_same(now: list[Any], before: list[Any]) -> bool:
    """Returns whether the values are the same.

    Lists compare identical objects without a call, and others by their `__eq__`, which
    may raise.
    """
    try:
        return bool(now == before)
    except Exception:  # noqa: BLE001 (an array)
        return False


def _is_by_torch(owner: Any, name: str, old: Any) -> bool:
    """Returns whether torch itself replaced `old`.

    The first optimizer of a class wraps `step` of the class. The import of
    torch._dynamo wraps torch.manual_seed and replaces its own lazy stand-in.
    """
    new = vars(owner).get(name)
    if isinstance(old, ModuleType):
        return new is sys.modules.get(old.__name__) and new is not None
    code = getattr(new, "__code__", None)
    by_torch = getattr(new, "hooked", False) is True or (
        code is not None and code.co_filename.endswith(_COMPILE)
    )
    return by_torch and getattr(new, "__wrapped__", None) is old


def _name(owner: Any) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(owner.__name__)


def _state() -> dict[str, Any]:
    return {
        "environment": environment_variables(),
        "working directory": _or_none(os.getcwd),
        "standard streams": [_stream(n) for n in (0, 1, 2)],
        "sys.stdout": (id(sys.stdout), sys.stdout is None or sys.stdout.closed),
        "sys.stderr": (id(sys.stderr), sys.stderr is None or sys.stderr.closed),
        "threads": {thread.ident for thread in threading.enumerate()},
        "child processes": _has_children(),
        "signal handlers": [_handler(name) for name in _SIGNALS],
        "timers": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "limits": [resource.getrlimit(number) for number in _LIMITS],
        "warning filters": list(warnings.filters),
        "interpreter": (gc.isenabled(), sys.getrecursionlimit(), sys.gettrace()),
        **_state_of_torch(),
    }


def _state_of_torch() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found: dict[str, Any] = {
        "torch's defaults": [
            _or_none(read)
            for read in (
                torch.get_default_dtype,
                # A device as the default takes part in every call of torch.
                lambda: str(torch.get_default_device()),
                torch.get_num_threads,
                torch.get_float32_matmul_precision,
            )
        ],
        "torch's modes": [
            _or_none(read)
            for read in (
                torch.is_grad_enabled,
                torch.is_inference_mode_enabled,
                torch.is_anomaly_enabled,
                torch.are_deterministic_algorithms_enabled,
                lambda: torch.is_autocast_enabled("cpu"),
                lambda: torch.backends.mkldnn.enabled,
            )
        ],
        "global hooks": [_hooks(name) for name in _HOOKS],
    }
    if torch.cuda.is_initialized():
        cudnn = torch.backends.cudnn
        found["torch's modes on GPUs"] = [
            _or_none(read)
            for read in (
                lambda: torch.is_autocast_enabled("cuda"),
                lambda: (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
                lambda: cudnn.allow_tf32,
                lambda: torch.backends.cuda.matmul.allow_tf32,
            )
        ]
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available():
        found["process group"] = dist.is_initialized() and id(dist.group.WORLD)
    return found


def _hooks(module: str) -> int:
    """Returns how many global hooks are registered.

    Their dictionaries are private: if torch renames them, this returns 0.
    """
    names = vars(sys.modules[module]) if module in sys.modules else {}
    return sum(
        len(value)
        for name, value in names.items()
        if name.startswith("_global_") and isinstance(value, dict)
    )


def _or_none(read: Callable[[], Any]) -> Any:
    with contextlib.suppress(Exception):  # missing in this version of torch
        return read()
    return None


def _stream(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _has_children() -> bool:
    """Returns whether there is a child process or a zombie; reaps none."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def _handler(name: str) -> Any:
    number = getattr(signal, name, None)
    return None if number is None else signal.getsignal(number)


def environment_variables() -> dict[Any, Any]:
    """Returns a copy of all environment variables.

    As bytes where Python stores them so: decoding takes ten times as long.
    """
    return dict(getattr(os.environ, "_data", os.environ))


def restore_environment(before: dict[Any, Any]) -> None:
    """Sets the environment variables to those of `environment_variables`."""
    if environment_variables() != before:
        os.environ.clear()
        os.environ.update({os.fsdecode(k): os.fsdecode(v) for k, v in before.items()})
