"""The modules that a process has imported since its fork.

Reading the dictionaries of the thousands of modules from before the fork would copy
their pages from the fork server: most of the time of a rank's first job. `sys.modules`
keeps the order of import, so later modules are found from its end.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass

from ddpcheck.errors import code_origin
from ddpcheck.ranks.server import preload
from ddpcheck.target.importing import file_of

_MARK = "ddpcheck.run.process.modules.mark"  # in sys.modules: what follows came later


@dataclass(frozen=True, slots=True)
class _Known:
    """The modules that the fork server had imported before its first fork."""

    names: frozenset[str]
    users: tuple[str, ...]  # the user's modules among them


_NOTHING = _Known(frozenset(), ())
_known = _NOTHING


def remember() -> None:
    """Notes the imported modules; the fork server calls it before its first fork."""
    global _known  # noqa: PLW0603 (of this process, as sys.modules is)
    names = tuple(sys.modules)
    _known = _Known(frozenset(names), tuple(filter(is_users, names)))
    sys.modules.pop(_MARK, None)
    sys.modules[_MARK] = types.ModuleType(_MARK)


def last() -> str:
    """Returns the name of the module that was imported last."""
    return next(reversed(sys.modules), "")


def since(name: str) -> list[str]:
    """Returns the modules imported after the module of this name, in order.

    If that one was removed, returns all modules imported after the fork.
    """
    found: list[str] = []
    for other in reversed(sys.modules):
        if other in (name, _MARK):
            break
        found.append(other)
    else:
        found = [other for other in found if other not in _known.names]
    return found[::-1]


def users() -> list[str]:
    """Returns the names of the user's modules, in the order of import."""
    here = [name for name in _known.users if name in sys.modules]
    return here + [name for name in since(_MARK) if is_users(name)]


def is_users(name: str) -> bool:
    """Returns whether a module is user code: not installed, Python's or torch's."""
    if name.partition(".")[0] in ("ddpcheck", "torch"):
        return False
    file = file_of(sys.modules.get(name))
    return bool(file) and code_origin.is_users(file)


preload.BEFORE_FORKS.append(remember)
