"""A stand-in for torch._dynamo, which is imported only when needed.

Its import takes as long as torch's own, and training without torch.compile uses only
four of its functions: optimizers and DistributedDataParallel exclude themselves from
compilation. Without a compiler the results of these are known, so a stand-in returns
them. Any other attribute imports the module itself, which replaces the stand-in.

See ddpcheck.run.process.ahead for when it is imported for all ranks at once.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.ranks import messages

NAME = "torch._dynamo"
_SETTINGS = "TORCHDYNAMO"  # prefix of its environment variables
_lock = threading.Lock()  # never held while anything is imported


class StandIn(ModuleType):
    """Behaves as torch._dynamo does if nothing has been compiled."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(NAME)
        vars(self).update(
            __spec__=spec,
            __file__=spec.origin,
            __path__=list(spec.submodule_search_locations or []),
            __package__=NAME,
            __loader__=spec.loader,
            disable=_disable,
            graph_break=_graph_break,
            trace_rules=_Part("trace_rules", clear_lru_cache=_nothing_cached),
            utils=_Part("utils", get_optimize_ddp_mode=_default_mode),
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # as inspect reads of every module
            raise AttributeError(name)
        return getattr(real(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(real(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(real(), name)


class _Part:
    """A submodule with one known function, until it has been imported."""

    def __init__(self, name: str, **known: Any) -> None:
        vars(self).update(_name=name, _known=known)

    def __getattr__(self, name: str) -> Any:
        if name in self._known and is_stood_in():
            return self._known[name]
        return getattr(self._itself(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._itself(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._itself(), name)

    def _itself(self) -> Any:
        return getattr(real(), self._name)


class _Submodules(MetaPathFinder):
    """Finds submodules of the package while the stand-in replaces it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Returns the spec; imports nothing yet, as importlib holds a lock."""
        del target
        if not name.startswith(NAME + ".") or not is_stood_in():
            return None
        own = PathFinder.find_spec(name, path)
        if own is None:
            return None
        is_package = own.submodule_search_locations is not None
        loader = _AfterPackage(own)
        return ModuleSpec(name, loader, origin=own.origin, is_package=is_package)


class _AfterPackage(Loader):
    """Imports the package, then returns the submodule that it has imported.

    Loading it again would create a second one, with other settings and classes.
    """

    def __init__(self, own: ModuleSpec) -> None:
        self._own = own
        self._made: ModuleType | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Returns the submodule, a new one if the package has not imported it."""
        real()
        there = sys.modules.get(spec.name)
        if there is not None:
            return there
        self._made = importlib.util.module_from_spec(self._own)
        return self._made

    def exec_module(self, module: ModuleType) -> None:
        """Runs a new module; restores the spec that importlib has replaced."""
        with contextlib.suppress(AttributeError):  # config modules refuse assignment
            module.__spec__, module.__loader__ = self._own, self._own.loader
        if module is self._made and self._own.loader is not None:
            self._own.loader.exec_module(module)


def _graph_break(*args: Any, **options: Any) -> None:
    """Does nothing while nothing is traced."""
    if not is_stood_in():
        real().graph_break(*args, **options)


def _nothing_cached() -> None:
    """Does nothing, as no rule has been cached yet."""


def _default_mode() -> str:
    """Returns torch's default, which DDP reads when it is built."""
    return "ddp_optimizer"


def _disable(*args: Any, **options: Any) -> Any:
    """Returns a function that is never compiled, for torch's own decorator.

    Other callers may use more of the result, so they get that of the real module.
    """
    if len(args) != 2 or options != {"wrapping": False}:  # noqa: PLR2004 (its call)
        return real().disable(*args, **options)
    function, recursive = args
    chosen: Callable[..., Any] | None = None

    def disabled(*values: Any, **named: Any) -> Any:
        nonlocal chosen
        if chosen is None:
            if is_stood_in():
                return function(*values, **named)
            chosen = real().disable(function, recursive, **options)
        return chosen(*values, **named)

    return disabled


def is_stood_in() -> bool:
    """Returns whether the stand-in is still in place."""
    return isinstance(sys.modules.get(NAME), StandIn)


def real() -> ModuleType:
    """Imports and returns torch._dynamo itself, which replaces the stand-in.

    Raises:
        ImportError: torch has no compiler.
    """
    with _lock:
        is_first = is_stood_in()
        if is_first:
            del sys.modules[NAME]
            vars(torch).pop("_dynamo", None)
    with messages.paused() if is_first else contextlib.nullcontext():
        return importlib.import_module(NAME)


def can_wait() -> bool:
    """Returns whether this torch uses only what the stand-in has."""
    if any(name.startswith(_SETTINGS) for name in os.environ):
        return False
    try:
        disable = inspect.getsource(importlib.import_module("torch._compile"))
        wrapper = inspect.getsource(DistributedDataParallel.__init__)
    except (ImportError, OSError, TypeError):
        return False
    return (
        "torch._dynamo.disable(fn, recursive, wrapping=False)" in disable
        and "torch._dynamo.utils.get_optimize_ddp_mode()" in wrapper
    )


def put_off() -> None:
    """Installs the stand-in unless torch._dynamo has been imported."""
    spec = None if NAME in sys.modules else importlib.util.find_spec(NAME)
    if spec is not None:
        made = StandIn(spec)
        sys.meta_path.insert(0, _Submodules())
        sys.modules[NAME] = made
        vars(torch)["_dynamo"] = made
