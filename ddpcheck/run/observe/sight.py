"""What of a program is the user's own: functions, classes, and the names they use."""

from __future__ import annotations

import sys
import types

from ddpcheck.errors import code_origin as whose


def is_torchs(made: types.FunctionType | type) -> bool:
    """Returns whether a function or class is torch's, or ddpcheck's."""
    name = made.__module__ or ""
    return name.partition(".")[0] in ("torch", "ddpcheck")


def is_librarys(made: types.FunctionType | type) -> bool:
    """Returns whether a function or class comes from an installed package."""
    found = sys.modules.get(made.__module__ or "")
    return bool(whose.inside_packages(getattr(found, "__file__", None) or ""))


def names_in(code: types.CodeType) -> set[str]:
    """Returns the names that a function's code and the functions in it use."""
    inner = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))
