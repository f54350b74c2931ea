"""Checks the space for records: in shared memory, else on a disk.

A container has 64 MB of shared memory by default, and all ranks keep their messages
there, so it must never be full.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddpcheck.errors.problem import usage_error

_RESERVE = 8 << 20  # bytes that stay free for other files of ranks
_MIB = 1 << 20
_RECORDS = (".bin", ".idx", ".part")  # see ddpcheck.compare.trace


def has_room(folder: Path, size: int) -> bool:
    """Returns whether the folder's file system has room for `size` more bytes."""
    return _free(folder) >= size + _RESERVE


def check(folders: list[Path], size: int) -> None:
    """Raises if none of the folders has room for `size` bytes.

    Raises:
        UsageError: environment-no-space.
    """
    if any(has_room(folder, size) for folder in folders):
        return
    found = ", ".join(f"{_free(f) / _MIB:.3g} MiB in {f.parent}" for f in folders)
    raise usage_error(
        slug="environment-no-space",
        message="there is no room for the tensors of the single-process run",
        expected=f"{(size + _RESERVE) / _MIB:.3g} MiB more in shared memory or "
        "among temporary files",
        found=found,
        fix="TMPDIR with a folder of a larger disk; docker run --shm-size=2g",
    )


def give_back(record: str) -> None:
    """Removes a record: the two files of a trace, "" for none."""
    for suffix in _RECORDS if record else ():
        Path(record).with_suffix(suffix).unlink(missing_ok=True)


def clear(folders: list[Path]) -> None:
    """Removes all records, also incomplete ones of processes that died."""
    for folder in folders:
        for suffix in _RECORDS:
            for path in folder.glob(f"*{suffix}"):
                path.unlink(missing_ok=True)


def _free(folder: Path) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
