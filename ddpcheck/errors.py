"""What the user did wrong, said once and in one shape."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A usage error as data: it crosses process boundaries.

    `message` stands alone in a CI log; the other lines are optional. `more` is the
    slug's page unless it says something else. `stack` is for those who ask for it.
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
        return "\n".join(lines)


class UsageError(ValueError):
    """The target, an option or the environment does not allow a check."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class SignalError(BaseException):
    """A signal asks the tool to end; no `except Exception` may swallow it.

    `again`: another one came before, whose report is not waited for. `doing` is what
    was going on, "" where nobody has said.
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


def cut(items: list[str], limit: int = 5) -> str:
    """Returns the items joined by commas, the rest as a number.

    >>> cut(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    shown = ", ".join(items[:limit])
    rest = len(items) - limit
    return f"{shown} and {rest} more" if rest > 0 else shown
