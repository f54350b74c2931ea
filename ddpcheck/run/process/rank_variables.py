"""Whether user code reads, while it is imported, which rank it runs on.

A target is imported once, before there are ranks. One that keeps WORLD_SIZE in a global
would find none there, where `torchrun` sets it before the file is read.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}


@contextlib.contextmanager
def watched(folders: tuple[str, ...]) -> Iterator[set[str]]:
    """Yields the variables that files in these folders or below have asked for."""
    asked: set[str] = set()
    kind = type(os.environ)
    read, has = kind.__getitem__, kind.__contains__

    def note(name: object) -> None:
        if name in _NAMES and _asker().startswith(folders):
            asked.add(str(name))

    def watched_read(self: os._Environ[str], name: str) -> str:
        note(name)
        return read(self, name)

    def watched_has(self: os._Environ[str], name: object) -> bool:
        note(name)
        return has(self, name)

    kind.__getitem__, kind.__contains__ = watched_read, watched_has  # type: ignore[method-assign, assignment]
    try:
        yield asked
    finally:
        kind.__getitem__, kind.__contains__ = read, has  # type: ignore[method-assign]


def _asker() -> str:
    """Returns the file of the code that called os.getenv or os.environ."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename


def _is_between(file: str) -> bool:
    """Returns whether a file is this one, or one of Python's that asks for others."""
    return file in (__file__, os.__file__) or file.startswith("<frozen ")
