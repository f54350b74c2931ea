"""Output to the standard streams; a closed stream is not an error."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from ddpcheck.errors.problem import visible


def warn(text: str) -> None:
    """Writes one warning to stderr."""
    write(f"ddpcheck: warning: {visible(text)}\n", sys.stderr)


def open_closed_streams() -> None:
    """Opens /dev/null for each standard stream that the shell closed (`>&-`).

    The next file to be opened would get the number, and what is printed with it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(number):
            opened = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            os.set_inheritable(opened, True)  # children print too
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8"))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def write(text: str, stream: TextIO | None = None) -> bool:
    """Writes `text` to `stream` or stdout; False where it does not take it.

    A closed reader is not an error.
    """
    stream = stream or sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        plain = text.encode(encoding, "backslashreplace").decode(encoding)
        return write(plain, stream)
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:  # a full disk behind `> file`
        _silence(stream)
        if stream is not sys.stderr:
            warn(f"cannot write to standard output: {error.strerror or error}")
        return False
    return True


def _silence(stream: TextIO) -> None:
    """Sends the rest to nowhere: the interpreter flushes once more at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
