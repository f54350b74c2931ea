"""Usage errors as data, with one message format."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A usage error as data: it crosses process boundaries.

    `message` is complete by itself in a CI log; the other lines are optional. `more`
    defaults to the slug's page. `stack` is shown with -v.
    """

    slug: str
    message: str
    expected: str = ""
    found: str = ""
    fix: str = ""
    more: str = ""
    stack: str = ""

    def __str__(self) -> str:
        """Returns the message and its aligned lines, as the terminal shows them."""
        lines = [f"ddpcheck: {self.message} [{self.slug}]"]
        parts = {
            "expected": self.expected,
            "found": self.found,
            "fix": self.fix,
            "more": self.more or f"ddpcheck --explain {self.slug}",
        }
        for label, text in parts.items():
            if text:
                indented = text.replace("\n", "\n" + " " * 13)
                lines.append(f"  {label:<10} {indented}")
        return visible("\n".join(lines))


class UsageError(ValueError):
    """The target, an option or the environment does not allow a check."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def usage_error(**fields: str) -> UsageError:
    """Returns the error of the problem with these fields, to be raised."""
    return UsageError(Problem(**fields))


class EndedError(BaseException):
    """The check has to end, with a report; no `except Exception` may swallow it.

    `number`: of the signal that asks for it, 0 for none. `again`: it is the second
    signal, which does not wait for a report.
    """

    number = 0
    again = False


class DeadlineError(EndedError):
    """The time that the user gave the whole check is over."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s

    def __str__(self) -> str:
        """Returns what came: "ended by --deadline-s 60"."""
        return f"ended by --deadline-s {self.limit_s:g}"


class SignalError(EndedError):
    """A signal asks the tool to end.

    `doing` is the current phase, "" if it is not known.
    """

    def __init__(self, number: int, *, again: bool = False) -> None:
        super().__init__(number)
        self.number, self.again, self.doing = number, again, ""

    def __str__(self) -> str:
        """Returns what came: "interrupted by SIGINT (Ctrl-C)"."""
        name = signal.Signals(self.number).name
        if self.number == signal.SIGINT:
            return f"interrupted by {name} (Ctrl-C)"
        return f"terminated by {name}"


def visible(text: str) -> str:
    r"""Returns `text` with control and other unprintable characters written out.

    Newlines and tabs stay.

    >>> visible("a" + chr(27) + "[31m")
    'a\\x1b[31m'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def shortened(text: str, limit: int) -> str:
    r"""Returns `text` made visible, cut at `limit` characters, and how many were cut.

    >>> shortened("abc" + chr(27) + "def", 7)
    'abc\\x1b ... and 3 characters more'
    """
    shown, size = [], 0
    for number, character in enumerate(text):
        shown.append(visible(character))
        size += len(shown[-1])
        if size > limit:
            rest = len(text) - number
            plural = "s" if rest > 1 else ""
            return "".join(shown[:-1]) + f" ... and {rest:,} character{plural} more"
    return "".join(shown)


def cut(items: list[str], limit: int = 5) -> str:
    """Returns the items joined by commas, the rest as a number.

    >>> cut(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    shown = ", ".join(items[:limit])
    rest = len(items) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown
