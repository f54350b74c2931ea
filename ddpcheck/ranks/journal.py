"""What a rank says during a job, in a file that outlives the rank.

A message per step would wake the tool in the middle of the ranks' work, on the cores
they need. The file costs a write to shared memory; the tool reads it once, when the
job has ended in whatever way.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from pathlib import Path
from typing import Any


class Journal:
    """The writing end, in the rank."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._owner = os.getpid()

    def clear(self) -> None:
        """Forgets the last job."""
        os.ftruncate(self._descriptor, 0)

    def write(self, value: Any) -> None:
        """Appends a value; it is there for the reader as soon as this returns.

        A child that user code forked, and that runs on as if it were the rank, ends.
        """
        if os.getpid() != self._owner:
            os._exit(0)
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        while data:
            data = data[os.write(self._descriptor, data) :]


def read(path: Path) -> list[Any]:
    """Returns the values written, without one that death cut off in the middle."""
    values: list[Any] = []
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        stream = io.BytesIO(path.read_bytes())
        end = stream.getbuffer().nbytes
        while stream.tell() < end:
            values.append(pickle.load(stream))  # noqa: S301 (our own rank wrote it)
    return values
