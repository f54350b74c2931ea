"""Progress events of a rank, in a file that outlives the rank.

A message per step would wake the tool while the ranks work, on the cores that they
need. Writing to the file costs a write to shared memory; the tool reads it once, when
the job has ended.

Pauses are files, too. torch imports its compiler in the middle of a forward, which
takes seconds when several ranks do it on few cores, and does not count as time of the
job. A file next to the rank's log shows a pause that lasts, another one that has ended.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Writes progress events, in the rank."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._owner = os.getpid()

    def clear(self) -> None:
        """Removes the events of the last job."""
        os.ftruncate(self._descriptor, 0)

    def write(self, value: Any) -> None:
        """Appends a value, which a reader sees as soon as this returns.

        In a child that user code forked and that runs on as the rank, exits.
        """
        if os.getpid() != self._owner:
            os._exit(0)
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        while data:
            data = data[os.write(self._descriptor, data) :]


def read(path: Path) -> list[Any]:
    """Returns the values written, without one that is incomplete as the rank died."""
    values: list[Any] = []
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        stream = io.BytesIO(path.read_bytes())
        end = stream.getbuffer().nbytes
        while stream.tell() < end:
            values.append(pickle.load(stream))  # noqa: S301 (our own rank wrote it)
    return values


_PAUSED, _PAUSE_ENDED = ".pause", ".paused"

_pause_file: Path | None = None  # set in a rank process


def set_pause_file(path: Path) -> None:
    """Sets the path, up to its suffix, of the files that show pauses."""
    global _pause_file  # noqa: PLW0603 (a process is one rank)
    _pause_file = path.with_suffix(_PAUSED)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Marks the import inside the context as a pause."""
    if _pause_file is None:
        yield
        return
    with contextlib.suppress(OSError):
        _pause_file.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _pause_file.rename(_pause_file.with_suffix(_PAUSE_ENDED))


def take_pauses(folder: Path, prefix: str) -> tuple[bool, bool]:
    """Returns whether a rank pauses, and whether one has since the last call.

    Args:
        folder: where the ranks keep their files.
        prefix: of the file names of a crew's ranks.
    """
    ended = list(folder.glob(f"{prefix}-*{_PAUSE_ENDED}"))
    for path in ended:
        path.unlink(missing_ok=True)
    return any(folder.glob(f"{prefix}-*{_PAUSED}")), bool(ended)
