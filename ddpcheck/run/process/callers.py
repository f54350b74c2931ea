"""The calling module: the module of a frame further up the stack.

There may be none: hooks of GPU tensors are called by autograd threads, at the bottom of
their stack.
"""

from __future__ import annotations

import sys
from types import FrameType


def frame(depth: int) -> FrameType | None:
    """Returns the frame `depth` above the caller, None beyond the stack."""
    found: FrameType | None = sys._getframe(1)  # noqa: SLF001
    for _ in range(depth):
        found = found.f_back if found is not None else None
    return found


def module_of(frame: FrameType | None) -> str:
    """Returns the name of the module whose code a frame runs, "" without one."""
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))
