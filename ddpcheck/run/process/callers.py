"""Who calls: the module of a frame above.

There may be none: what a hook of a tensor on a GPU calls is called by a thread of
autograd's own, at the bottom of its stack.
"""

from __future__ import annotations

import sys
from types import FrameType


def frame(depth: int) -> FrameType | None:
    """Returns the frame `depth` above the caller of this function, None beyond."""
    found: FrameType | None = sys._getframe(1)  # noqa: SLF001
    for _ in range(depth):
        found = found.f_back if found is not None else None
    return found


def module_of(frame: FrameType | None) -> str:
    """Returns the name of the module whose code a frame runs, "" without one."""
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))
