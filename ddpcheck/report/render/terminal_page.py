"""Lines of text that keep to a width and to a budget of lines."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from rich.text import Text

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Report
from ddpcheck.report.render import numbers

LABEL = 9  # width of "  facts  "
CUT = " ..."
_ALL_ELSEWHERE = " ... (all with -v)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much of each list is shown, and over how many lines a text may run.

    `whole` findings are shown in full, the next `brief` as title, cause, fix and, with
    `proofs`, proof; the rest by name. Without `proofs` none tells its size. A cause or
    a fix may run over `told` lines, all else over `wrap`: without its end neither says
    what to do. `worst`: the worst tensor gets its line even beside findings. `spare`
    lines must be left for blank ones.
    """

    runs: int
    whole: int
    brief: int
    facts: int
    code: int
    wrap: int
    notes: int
    told: int = 3
    worst: bool = True
    spare: int = 0
    stacks: bool = False
    proofs: bool = True


def one_line(text: str) -> str:
    """Returns `text` on one line, with what cannot be printed written out."""
    return " ".join(visible(text).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report, and the room that its text has."""

    report: Report
    budget: Budget
    width: int

    def wrapped(
        self,
        text: str,
        *,
        indent: str = "",
        hang: str = "  ",
        style: str = "",
        most: int | None = None,
        end: str = CUT,
    ) -> list[Text]:
        """Returns `text` over `most` lines, by default what the budget allows.

        `end` is what stands in place of what is cut.
        """
        lines = textwrap.wrap(
            one_line(text),
            self.width,
            initial_indent=indent,
            subsequent_indent=hang,
            max_lines=most or self.budget.wrap,
            placeholder=end,
        )
        return [Text(line, style=style) for line in lines]

    def holds(self, text: str) -> bool:
        """Returns whether `wrapped` shows all of a text."""
        rows = textwrap.wrap(one_line(text), self.width, subsequent_indent="  ")
        return len(rows) <= self.budget.wrap

    def labelled(
        self,
        label: str,
        text: str,
        *,
        style: str = "",
        most: int | None = None,
        end: str = CUT,
    ) -> list[Text]:
        """Returns `text` beside its label, aligned with the other labelled texts."""
        indent = f"  {label}".ljust(LABEL)
        hang = " " * LABEL
        lines = self.wrapped(text, indent=indent, hang=hang, most=most, end=end)
        for index, line in enumerate(lines):
            line.stylize(style, LABEL)
            if index == 0:
                line.stylize("dim", 0, LABEL)
        return lines

    def told(self, label: str, text: str, *, style: str = "") -> list[Text]:
        """Returns a cause or a fix, which is cut last, and then says where all is."""
        most = self.budget.told
        return self.labelled(label, text, style=style, most=most, end=_ALL_ELSEWHERE)

    def verbatim(self, code: str) -> list[Text]:
        """Returns code or a stack: its own lines, cut at the width, not re-wrapped.

        Where nothing is to be cut, a longer line goes on in the next.
        """
        indent = " " * (LABEL + 2)
        rows = [visible(row) for row in _rows(code)]
        limit = self.budget.code
        # A line saying "1 more line" would be as long as that line.
        shown = rows if len(rows) == limit + 1 else rows[:limit]
        if len(shown) < len(rows):
            rest = numbers.count(len(rows) - len(shown))
            shown = [*shown, f"... {rest} more lines"]
        if not self.budget.stacks:
            return [Text(_cut_end(indent + row, self.width)) for row in shown]
        room = self.width - len(indent)
        return [Text(indent + part) for row in shown for part in _parts(row, room)]

    def more(self, indent: str, rest: int) -> list[Text]:
        """Returns the line "and N more", none where nothing is left."""
        return [Text(f"{indent}and {numbers.count(rest)} more")] if rest > 0 else []


def _rows(code: str) -> list[str]:
    text = visible(code).expandtabs(4).strip("\n")
    return [row.rstrip() for row in text.split("\n")] if text.strip() else []


def _parts(row: str, room: int) -> list[str]:
    return [row[at : at + room] for at in range(0, len(row), room)] or [""]


def _cut_end(row: str, width: int) -> str:
    return row if len(row) <= width else row[: width - 3] + "..."
