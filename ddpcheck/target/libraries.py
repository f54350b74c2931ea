"""Installed packages that the caller's own modules use: ranks import them once.

A target that is given as objects brings what it uses along as names. Where the fork
server has imported these, all ranks have them; otherwise every rank would import
transformers for itself, in its first job.
"""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from collections.abc import Iterator
from types import FunctionType, ModuleType

from ddpcheck.target import importing

# Ranks have these anyway, or have no use for them.
_LEFT_OUT = {
    *sys.stdlib_module_names,
    *("ddpcheck", "torch", "numpy", "cloudpickle"),
    *("pytest", "_pytest", "pluggy", "xdist", "execnet", "py"),
}


def used() -> tuple[str, ...]:
    """Returns the modules of these packages, in the order of their first import.

    All loaded modules of a package, also those that it loads lazily.
    """
    # Both grow where the caller imports something: a walk over all takes 3 ms.
    return _used(len(sys.modules), len(vars(sys.modules["__main__"])))


@functools.lru_cache(maxsize=1)
def _used(*_sizes: int) -> tuple[str, ...]:
    values = [v for module in _own_modules() for v in list(vars(module).values())]
    packages = {package(home) for home in map(_home, values) if home} - _LEFT_OUT
    found = [pair for pair in list(sys.modules.items()) if package(pair[0]) in packages]
    return tuple(name for name, module in found if is_installed(module))


def package(name: str) -> str:
    """Returns the outermost package of a module."""
    return name.partition(".")[0]


def is_installed(module: object) -> bool:
    """Returns whether a module's file is Python's own or an installed package's."""
    return importing.file_of(module).startswith(_folders())


@functools.cache
def _folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_path(name) for name in names]
    return tuple({*found, *site.getsitepackages(), site.getusersitepackages()})


def _own_modules() -> Iterator[ModuleType]:
    """Yields the caller's modules: neither installed nor left out."""
    for name, module in list(sys.modules.items()):
        if package(name) in _LEFT_OUT or not isinstance(module, ModuleType):
            continue
        # What is typed into an interpreter or a notebook has no file.
        has_code = importing.file_of(module) or name == "__main__"
        if has_code and not is_installed(module):
            yield module


def _home(value: object) -> str:
    """Returns the module that a module, class or function is or comes from."""
    kind = type(value)
    if issubclass(kind, ModuleType):  # isinstance would ask the value
        return str(vars(value).get("__name__", ""))
    if issubclass(kind, type | FunctionType):
        return str(getattr(value, "__module__", ""))
    return ""
