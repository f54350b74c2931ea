"""Files that are whole or not there at all; one that cannot be written is a warning."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from ddpcheck.report import streams


def write(path: Path, text: str) -> bool:
    """Writes a whole file or nothing; a failure is a warning, and False.

    A pipe or a device is written to as it is; a link stays, and what it leads to is
    written. Folders that were made for it go with it.
    """
    made: list[Path] = []
    try:
        made = _missing_folders(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode("utf-8", "backslashreplace")
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _write_whole(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless another file is in it by now
        streams.warn(f"cannot write {path}: {reason(error)}")
        return False
    return True


def _missing_folders(path: Path) -> list[Path]:
    """Returns the folders above a file that are not there yet, the innermost first."""
    return [folder for folder in path.parents if not folder.exists()]


def _write_whole(path: Path, data: bytes) -> None:
    """Replaces a file with a new one, which keeps the permissions of the old."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if not _write_unnamed(part, data):
            part.write_bytes(data)
        if path.exists():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    except BaseException:
        remove(part)
        raise


def _write_unnamed(path: Path, data: bytes) -> bool:
    """Writes a file that gets its name when it is whole; False where nothing can.

    What kills the process before that leaves nothing. Linux, most file systems.
    """
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except (AttributeError, OSError):
        return False
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        remove(path)  # of a killed process with the same number
        try:
            os.link(f"/proc/self/fd/{descriptor}", path, follow_symlinks=True)
        except OSError:  # no /proc
            return False
    return True


def reason(error: OSError | ValueError) -> str:
    """Returns why a file could not be written, in the words of the system."""
    return getattr(error, "strerror", None) or str(error)


def remove(path: Path) -> None:
    """Removes a file that may not be there, or may have to stay."""
    with contextlib.suppress(OSError):
        path.unlink()
