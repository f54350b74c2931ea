"""Imports that a rank makes within a job: their time is not the job's.

torch imports its compiler in the middle of a forward, for seconds, and several ranks
on few cores do it at once. A file beside the rank's log says so, under one name while
it lasts and under another when it has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

LASTING, ENDED = ".pause", ".paused"

_file: Path | None = None  # of this process, where it is a rank


def tell_by(path: Path) -> None:
    """Makes files of this path, with other suffixes, tell of pauses."""
    global _file  # noqa: PLW0603 (a process is one rank)
    _file = path.with_suffix(LASTING)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Stands around an import."""
    if _file is None:
        yield
        return
    with contextlib.suppress(OSError):
        _file.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _file.rename(_file.with_suffix(ENDED))


def take(folder: Path, prefix: str) -> tuple[bool, bool]:
    """Returns whether a rank pauses, and whether one has, since this was last asked.

    Args:
        folder: of the ranks' files.
        prefix: with which the names of a crew's ranks begin.
    """
    ended = list(folder.glob(f"{prefix}-*{ENDED}"))
    for path in ended:
        path.unlink(missing_ok=True)
    return any(folder.glob(f"{prefix}-*{LASTING}")), bool(ended)
