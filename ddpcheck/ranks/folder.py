"""The private folder of a session, and what is left of those that were killed.

A session that ends removes its folder, and its fork server does where the session was
killed. Where both were killed at once nobody can: the next session does. The owner
holds a lock on a file in it, which the kernel frees with the owner, so no process
number is trusted: that of another container means nothing here.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

from ddpcheck.compare import space

_PREFIX = "ddpcheck-"
_LOCK = "lock"
_MAX_BASE = 55
# A record larger than this goes to a disk, where there is room: the kernel can take
# back what it caches of a file, but nothing that lies in shared memory. One that shared
# memory has no room for goes there, too.
_LARGE = 1 << 30
_MESSAGES = 8 << 20  # bytes of all that ranks write beside records


class Folder:
    """A folder for this session alone; call `remove`."""

    def __init__(self) -> None:
        base = base_folder()
        sweep(Path(base))
        prefix = f"{_PREFIX}{os.getpid()}-"
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        self._descriptor = _locked(self.path)

    def remove(self) -> None:
        """Removes the folder and what is in it; may be called twice."""
        remove(self.path)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _locked(folder: Path) -> int:
    """Makes the file that says whose `folder` is; returns its descriptor.

    It gets its name when it is locked: a session that sweeps between its making and
    its locking would take the folder for one that is left.
    """
    unnamed = folder / f"{_LOCK}.new"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(unnamed, flags, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unnamed.rename(folder / _LOCK)
    return descriptor


def sweep(base: Path) -> None:
    """Removes the folders below `base` whose owners have gone."""
    for path in base.glob(f"{_PREFIX}*-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and _is_left(path):
                remove(path)


def on_disk(folder: Path) -> Path:
    """Returns the place for large files of the session whose folder this is.

    Made by whoever needs it, among temporary files, under the same name: whoever knows
    one folder can remove the other.
    """
    return temporary() / f"{folder.name}-large"


@functools.cache
def temporary() -> Path:
    """Returns the folder of temporary files, as it was when first asked for.

    Ranks inherit the answer from their fork server, whatever user code makes of
    `tempfile.tempdir`. Nor does who knows it wait for the lock of `tempfile`, which
    a process that is told of its parent's end may hold at that moment.
    """
    return Path(tempfile.gettempdir())


def place(folder: Path, size: int) -> Path:
    """Returns the folder for a record: the session's own, or its folder on a disk.

    Args:
        folder: the session's own.
        size: bytes of the record.
    """
    if size <= _LARGE and space.has_room(folder, size):
        return folder
    disk = on_disk(folder)
    try:
        disk.mkdir(mode=0o700, exist_ok=True)
        return disk if space.has_room(disk, size) else folder
    except OSError:
        return folder


def remove(folder: Path) -> None:
    """Removes both folders of a session."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(on_disk(folder), ignore_errors=True)


def _is_left(path: Path) -> bool:
    # One without the file is being made just now, or is none of ours.
    descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def base_folder() -> str:
    """Returns where the pool's folder goes: in memory, and with a short path.

    The folder holds a socket, whose whole path has at most 103 bytes (macOS). Shared
    memory that others have filled is no place for it.
    """
    places = ("/dev/shm", tempfile.gettempdir(), "/tmp")  # noqa: S108
    usable = [
        p
        for p in places
        if os.access(p, os.W_OK)
        and len(p) <= _MAX_BASE
        and space.has_room(Path(p), _MESSAGES)
    ]
    return usable[0] if usable else tempfile.gettempdir()
