"""The calling code: the module of a frame further up the stack, or the user's line.

There may be none: hooks of GPU tensors are called by autograd threads, at the bottom of
their stack.
"""

from __future__ import annotations

import linecache
import sys
from types import FrameType

from ddpcheck.errors import code_origin

_FRAMES = 60


def frame(depth: int) -> FrameType | None:
    """Returns the frame `depth` above the caller, None beyond the stack."""
    found: FrameType | None = sys._getframe(1)  # noqa: SLF001
    for _ in range(depth):
        found = found.f_back if found is not None else None
    return found


def module_of(frame: FrameType | None) -> str:
    """Returns the name of the module whose code a frame runs, "" without one."""
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def line_of_user() -> tuple[str, int] | None:
    """Returns the file and the line of the innermost frame of user code.

    That of its caller for a function that only returns what it asks for.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    found = None
    for _ in range(_FRAMES):
        if frame is None:
            break
        file, line = frame.f_code.co_filename, frame.f_lineno
        if code_origin.is_users(file):
            if found is None or linecache.getline(*found).lstrip().startswith("return"):
                found = file, line
            else:
                break
        frame = frame.f_back
    return found
