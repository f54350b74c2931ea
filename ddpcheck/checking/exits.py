"""Exceptions and signals into messages and exit codes: no traceback escapes."""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ddpcheck.errors.problem import SignalError, UsageError, visible
from ddpcheck.report import files, streams
from ddpcheck.report.data import EXIT_NOT_CHECKED, EXIT_SIGNAL, EXIT_USAGE

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_SHOWN_LINES = 12


def write_error(text: str) -> None:
    """Writes a message to stderr."""
    streams.write(visible(text), sys.stderr)


def guarded(
    action: Callable[[], int],
    *,
    verbose: bool = False,
    github: bool = False,
    write_error: Callable[[str], None] = write_error,
) -> int:
    """Returns the exit code of `action`, or of the way in which it failed.

    Usage errors give 2; what could not be checked, and bugs of ddpcheck, give 3;
    signals 128 and their number, as in shells.
    """
    try:
        with _signals_raise():
            return action()
    except UsageError as error:
        write_error(f"{error.problem}\n")
        if verbose and error.problem.stack:
            write_error(_stack_text(error.problem.stack))
        if github:
            _annotate(f"{error.problem.message} [{error.problem.slug}]")
        return EXIT_USAGE
    except SignalError as error:
        write_error(_signal_text(error))
        return EXIT_SIGNAL + error.number
    except Exception as error:  # noqa: BLE001 (the last line of defence)
        text = _failure_text(error, verbose=verbose)
        write_error(text)
        if github:
            _annotate(text.splitlines()[0].removeprefix("ddpcheck: "))
        return EXIT_NOT_CHECKED


def _signal_text(error: SignalError) -> str:
    """Returns the message for a check that a signal ended before there was a report."""
    if not error.doing or error.again:
        is_interrupt = error.number == signal.SIGINT
        return "ddpcheck: interrupted\n" if is_interrupt else "ddpcheck: terminated\n"
    return f"ddpcheck: not checked: {error} while {error.doing}\n"


def _stack_text(stack: str) -> str:
    lines = [f"    {line}".rstrip() for line in stack.strip().splitlines()]
    return "\n".join(["  stack, without ddpcheck's own frames:", *lines, ""])


def _failure_text(error: Exception, *, verbose: bool) -> str:
    try:
        from ddpcheck.ranks.pool import ServerDiedError  # noqa: PLC0415 (rarely needed)
        from ddpcheck.run.session.session import CannotCheckError, InternalError  # noqa: PLC0415
    except Exception:  # noqa: BLE001 (what failed may be this import)
        return _internal_text(error, verbose=verbose)
    if isinstance(error, InternalError):
        return _internal_words(error.message, error.detail, verbose=verbose)
    if isinstance(error, CannotCheckError):
        return cannot_check_text(error.message, error.detail, verbose=verbose)
    if isinstance(error, ServerDiedError):
        return cannot_check_text(str(error), "", verbose=verbose)
    return _internal_text(error, verbose=verbose)


def cannot_check_text(message: str, detail: str, *, verbose: bool = False) -> str:
    """Returns the message for a target that could not be run."""
    lines = [f"ddpcheck: not checked: {message}"]
    detail_lines = [line.rstrip() for line in detail.strip().splitlines()]
    if detail_lines:
        # faulthandler shows the innermost frame first, everything else ends with
        # what matters.
        is_stack = "most recent call first" in detail
        is_traceback = detail.lstrip().startswith("Traceback (most recent call last)")
        shown, cut = detail_lines, ""
        if not verbose and len(detail_lines) > _SHOWN_LINES:
            shown = (
                detail_lines[:_SHOWN_LINES]
                if is_stack
                else detail_lines[-_SHOWN_LINES:]
            )
            cut = f" ({len(shown)} of {len(detail_lines)} lines, all with -v)"
        what = "traceback" if is_traceback else "stack" if is_stack else "last output"
        lines.append(f"  {what}{cut}:")
        lines += [f"    {line}" for line in shown]
    return "\n".join(lines) + "\n"


def _internal_text(error: Exception, *, verbose: bool) -> str:
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    text = "".join(traceback.format_exception(error))
    return _internal_words(what, text, verbose=verbose)


def _internal_words(what: str, text: str, *, verbose: bool) -> str:
    lines = [
        f"ddpcheck: not checked: internal error of ddpcheck: {what}",
        "  this is a bug of ddpcheck, not of the target",
    ]
    if verbose:
        return "\n".join([*lines, text])
    path = Path("ddpcheck-traceback.txt")
    where = "the traceback that -v shows"
    if files.write(path, text):
        where = str(path.absolute())
    return "\n".join([*lines, f"  please report it, with {where}", ""])


def _annotate(text: str) -> None:
    flat = visible(text).replace("%", "%25").replace("\n", "%0A")
    streams.write(f"::error title=ddpcheck::{flat}\n")


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Turns a signal that asks to end into an exception: the first and the second.

    The first lets the check report what it has; the second ends it at once. After
    either, all are ignored until the process is gone: an impatient Ctrl-C must not
    change its exit code while Python shuts down.
    """
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    came: list[int] = []

    def ignore() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        came.append(number)
        if len(came) > 1:
            ignore()
        raise SignalError(number, again=len(came) > 1)

    before: dict[int, Any] = {}
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        if came:
            ignore()
        else:
            for number, handler in before.items():
                signal.signal(number, handler)
