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

from ddpcheck import importing

# Ranks have these anyway, or have no use for them.
_LEFT_OUT = {
    *sys.stdlib_module_names,
    *("ddpcheck", "torch", "numpy", "cloudpickle"),
    *("pytest", "_pytest", "pluggy", "xdist", "execnet", "py"),
}


def used() -> tuple[str, ...]:
    """Returns the modules of these packages, in the order of their first import.

    All that this process has of a package: what it loads when first asked comes too.
    """
    names = frozenset(_own_modules())
    return _modules_of(_packages(names), len(sys.modules))


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


def _own_modules() -> Iterator[str]:
    """Yields the caller's modules: neither installed nor left out."""
    for name, module in list(sys.modules.items()):
        is_own = package(name) not in _LEFT_OUT and isinstance(module, ModuleType)
        if is_own and importing.file_of(module) and not is_installed(module):
            yield name


@functools.lru_cache(maxsize=1)
def _packages(own: frozenset[str]) -> frozenset[str]:
    """Returns the installed packages that these modules have names of."""
    values = [v for name in own for v in list(vars(sys.modules[name]).values())]
    found = {package(home) for home in map(_home, values) if home}
    return frozenset(found - _LEFT_OUT)


def _home(value: object) -> str:
    """Returns the module that a module, class or function is or comes from."""
    kind = type(value)
    if issubclass(kind, ModuleType):  # isinstance would ask the value
        return str(vars(value).get("__name__", ""))
    if issubclass(kind, type | FunctionType):
        return str(getattr(value, "__module__", ""))
    return ""


@functools.lru_cache(maxsize=1)
def _modules_of(packages: frozenset[str], count: int) -> tuple[str, ...]:
    """Returns the names in sys.modules, which has `count` of them."""
    del count  # the key of the cache
    found = [name for name in list(sys.modules) if package(name) in packages]
    return tuple(name for name in found if is_installed(sys.modules[name]))
