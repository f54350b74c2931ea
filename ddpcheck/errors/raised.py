"""An exception in words: its message, where it was raised, and its stack."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from ddpcheck.errors import code_origin
from ddpcheck.errors.frames import Frame, raised_in_own_work
from ddpcheck.errors.problem import shortened, visible

_MAX_LINES = 3
# Of any shown message: libraries put a whole tensor or a page there.
_MAX_CHARACTERS = 300
_MAX_IN_LINE = 1000  # of a stack, which includes source lines
# gloo and NCCL begin with the place in their own source: "[/a/b/pair.cc:537] ".
_SOURCE = re.compile(r"^(?P<kind>\w+: )?\[\S+\.(?:cc|cpp|cu|h|hpp):\d+\]\s*")

# What torch says, and scripts do, on a machine without a GPU.
_WANTS_CUDA = re.compile(
    r"\b(cuda|gpus?|nvidia|nccl)\b|has no attribute '_cuda|dummy base class",
    re.IGNORECASE,
)
# What torch alone says, of a machine that has none, or fewer devices than are used.
_LACKS_CUDA = re.compile(
    r"not compiled with cuda|has no attribute '_cuda|dummy base class|no nvidia driver|"
    r"no (cuda )?gpus (are available|found)|doesn't have nccl|invalid device ordinal",
    re.IGNORECASE,
)
_ASSERTS_CUDA = re.compile(r"\bassert\b.*\bcuda\b")
_ASKS_FOR_CUDA = re.compile(r"\bassert\b.*\bcuda\b|\btorch\.cuda\.")


def wants_cuda(message: str, stack: str) -> bool:
    """Returns whether an exception, of a machine without a GPU, is for want of one.

    Args:
        message: of the exception.
        stack: with the source lines; that of the last frame counts.
    """
    frame = stack.rpartition('  File "')[2]
    return bool(_WANTS_CUDA.search(message) or _ASKS_FOR_CUDA.search(frame))


def lacks_cuda(message: str, stack: str) -> bool:
    """Returns whether an exception says that this machine has no CUDA, or too little.

    Arguments as of `wants_cuda`, which is also true of faults on machines that have it.
    """
    frame = stack.rpartition('  File "')[2]
    return bool(_LACKS_CUDA.search(message) or _ASSERTS_CUDA.search(frame))


def without_source(text: str) -> str:
    """Returns a message without the place in C++ that it begins with.

    >>> without_source("RuntimeError: [/gloo/tcp/pair.cc:537] Connection closed")
    'RuntimeError: Connection closed'
    """
    return _SOURCE.sub(lambda match: match["kind"] or "", text)


def in_words(error: BaseException, home: Path) -> str:
    """Returns its message, three lines at most, and where it was raised.

    Args:
        error: raised by the target, or by what it calls.
        home: the target's folder; files in it are named without it.
    """
    lines = message(error)
    where = place(error, home)
    if not where:
        return "\n".join(lines)
    return "\n".join(lines) + ("\n" if len(lines) > 1 else ", ") + where


def text_of(error: BaseException) -> str:
    """Returns the message of an exception, also of one whose __str__ raises.

    Cut, and with control characters written out.
    """
    return shortened(_whole_message(error), _MAX_CHARACTERS)


def _whole_message(error: BaseException) -> str:
    """Returns all of the message."""
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 (the user's __str__)
        return f"no message: its __str__ raises {type(other).__name__}"


def message(error: BaseException) -> list[str]:
    """Returns the kind of an exception and the first lines of its message."""
    text = text_of(error)
    if isinstance(error, SyntaxError):
        text = shortened(error.msg or "", _MAX_CHARACTERS)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # sys.exit() and sys.exit(None) have None for a message.
    if not lines or text == "None":
        return [type(error).__name__]
    first = without_source(f"{type(error).__name__}: {lines[0]}")
    shown = [first, *lines[1:_MAX_LINES]]
    shown[-1] += " ..." * (len(lines) > len(shown))
    return shown


def place(error: BaseException, home: Path) -> str:
    """Returns "at helper.py:3", the innermost line outside of torch; "" for none.

    With the line that called it where it is a library's.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frame = Frame(file=error.filename, line=error.lineno, name="")
        return f"at {_named(frame, home)}"
    found = [frame for frame in _frames(error) if _names_place(frame)]
    if not found:
        return ""
    where = f"at {_named(found[-1], home)}"
    users = [frame for frame in found if frame.is_users]
    if not users or users[-1] == found[-1]:
        return where
    return f"{where}, called at {_named(users[-1], home)}"


def users_place(error: BaseException) -> str | None:
    """Returns the user's innermost line, as a path and a number; None without one."""
    found = [frame.place for frame in _frames(error) if frame.is_users]
    return found[-1] if found else None


def stack(error: BaseException) -> str:
    """Returns the traceback without the frames of ddpcheck and of the import system."""
    chained = traceback.TracebackException.from_exception(error)
    for part in _chain(chained):
        shown = [entry for entry in part.stack if not _is_hidden(entry.filename)]
        part.stack = traceback.StackSummary.from_list(shown)
    return _shown("".join(chained.format()), error)


def is_own(error: BaseException) -> bool:
    """Returns whether ddpcheck itself failed, and not what the target does."""
    return raised_in_own_work(whole_stack(error)) is not None


def whole_stack(error: BaseException) -> str:
    """Returns the traceback with all frames; its messages are cut as elsewhere."""
    return _shown("".join(traceback.format_exception(error)), error)


def _shown(stack: str, error: BaseException) -> str:
    """Returns a stack with the messages of its exceptions as `text_of` has them."""
    for part in _errors(error):
        if (text := _whole_message(part)) and len(text) > _MAX_CHARACTERS:
            stack = stack.replace(text, text_of(part))
    lines = stack.splitlines(keepends=True)
    return "".join(_line(line) for line in lines)


def _line(line: str) -> str:
    text = line.rstrip("\r\n")
    return shortened(text, _MAX_IN_LINE) + ("\n" if len(text) < len(line) else "")


def _errors(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an exception and those that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _chain(
    chained: traceback.TracebackException | None,
) -> Iterator[traceback.TracebackException]:
    while chained is not None:
        yield chained
        chained = chained.__cause__ or chained.__context__


def _is_hidden(file: str) -> bool:
    return file.startswith("<frozen ") or Frame(file=file, line=0, name="").is_own


def _frames(error: BaseException) -> list[Frame]:
    """Returns the frames between the one that caught it and the one that raised it."""
    return [
        Frame(file=f.f_code.co_filename, line=line, name=f.f_code.co_name)
        for f, line in traceback.walk_tb(error.__traceback__)
    ]


def _names_place(frame: Frame) -> bool:
    """Returns whether a frame is the user's, or of a library that is not torch."""
    is_installed = bool(code_origin.inside_packages(frame.file))
    return frame.is_users or (is_installed and not frame.is_torch and not frame.is_own)


def _named(frame: Frame, home: Path) -> str:
    """Returns "file.py:3", as short as the file can be found by."""
    installed = code_origin.inside_packages(frame.file)
    if installed:
        return f"{installed}:{frame.line}"
    path = Path(frame.file)
    inside = path.relative_to(home) if path.is_relative_to(home) else path
    return visible(f"{inside}:{frame.line}")
