"""The private folder of a session, and the removal of folders of killed sessions.

A session removes its folder when it ends; if it is killed, its fork server removes it.
If both are killed at once, the next session removes it. The owner holds a lock on a
file in the folder, which the kernel releases when the owner dies. Process ids are not
used, as they mean nothing in another container.
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
from ddpcheck.ranks import made

_PREFIX = "ddpcheck-"
_LOCK = "lock"
_MAX_BASE = 55
# A larger record is written to disk, if there is room: the kernel can reclaim the cache
# of a file, but no shared memory. A record that does not fit into shared memory is
# written to disk too.
_LARGE = 1 << 30
_MESSAGES = 8 << 20  # bytes of all other files of the ranks


class Folder:
    """A folder for this session alone, or one in that of another; call `remove`."""

    def __init__(self, outer: Path | None = None) -> None:
        self._descriptor = -1
        if outer is not None:
            prefix = f"{outer.name}-"
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=outer))
            return
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
    """Creates the lock file of `folder`, locked; returns its descriptor.

    It is renamed once locked: a session that sweeps between creation and locking would
    remove the folder.
    """
    unnamed = folder / f"{_LOCK}.new"
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(unnamed, flags, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unnamed.rename(folder / _LOCK)
    return descriptor


def sweep(base: Path) -> None:
    """Removes the folders below `base` whose owners have died."""
    for path in base.glob(f"{_PREFIX}*-*"):
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and _is_left(path):
                _remove_both(path)


def on_disk(folder: Path) -> Path:
    """Returns the session's folder for large files, which may not exist.

    It is in the folder for temporary files and has the same name: the path of one gives
    the path of the other.
    """
    return temporary() / f"{folder.name}-large"


@functools.cache
def temporary() -> Path:
    """Returns the folder for temporary files, as it was at the first call.

    Ranks inherit the cached result from their fork server, even if user code sets
    `tempfile.tempdir`. The cache also avoids the lock of `tempfile`: a process may hold
    it when the signal for its parent's end arrives.
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
    """Removes both folders of a session, and what its processes made elsewhere."""
    for inner in folder.glob(f"{folder.name}-*"):
        remove(inner)
    made.remove(folder)
    _remove_both(folder)


def _remove_both(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(on_disk(folder), ignore_errors=True)


def _is_left(path: Path) -> bool:
    # A folder without the file is being created, or is not ours.
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
    memory that is full is not used.
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
