"""Functions that user code imports by name, looked up when they are called.

`from torch.distributed import all_reduce` keeps the function that there was: what a run
is watched by, and what mends it, takes its place in torch's module, and would be passed
by.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

_OF_AUTOGRAD = ("backward", "grad")


class _Late:
    """Stands for a function of a module: calling it calls what the module has then.

    The function is got before it is called, so that no frame of this class lies between
    the two: who calls is asked by frames.
    """

    def __init__(self, owner: types.ModuleType, name: str) -> None:
        self._owner, self._name = owner, name
        functools.update_wrapper(self, getattr(owner, name))

    @property
    def __call__(self) -> Any:
        """The module's function of now."""
        return getattr(self._owner, self._name)


def rebind(names: Iterable[str]) -> None:
    """Makes modules look these functions up that have them as their own globals.

    Args:
        names: of the user's modules, as in sys.modules.
    """
    late = _late()
    for name in names:
        own = vars(sys.modules[name])
        found = {
            key: late[value]
            for key, value in own.items()
            if type(value) is types.FunctionType and value in late
        }
        if found and not _is_traced_whole(sys.modules[name]):
            own.update(found)


def _is_traced_whole(module: types.ModuleType) -> bool:
    """Returns whether it has torch.compile refuse what cannot be traced: this here."""
    try:
        return "fullgraph" in inspect.getsource(module)
    except (OSError, TypeError):
        return False


@functools.cache
def _late() -> dict[types.FunctionType, _Late]:
    """Returns what stands for each function, from before anything took its place."""
    names = [(torch.autograd, name) for name in _OF_AUTOGRAD]
    names += [(dist, name) for name in vars(dist) if not name.startswith("_")]
    # By its type: what asks some others for anything is told that they are deprecated.
    return {
        vars(owner)[name]: _Late(owner, name)
        for owner, name in names
        if type(vars(owner)[name]) is types.FunctionType
    }
