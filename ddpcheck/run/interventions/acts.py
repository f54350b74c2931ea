"""Where in the user's code an intervention changed something: its acts.

An intervention proves a cause by a change of the run. The line at which it changed a
value is the line at which the user's file is wrong.
"""

from __future__ import annotations

import linecache
from pathlib import PurePath

from ddpcheck.run.facts import Act
from ddpcheck.run.intervention import Switch
from ddpcheck.run.process import callers

_MOST = 8  # acts of one run
_WIDTH = 60  # of a line of code in a sentence


class Acts:
    """The acts of one rank's run: the first of each line, at most 8 of them."""

    def __init__(self) -> None:
        self.noted: list[Act] = []

    def note(self, by: Switch | str, value: float | None = None) -> None:
        """Notes that an intervention changes a value for the line that runs now.

        Args:
            by: the switch, or the class of the intervention.
            value: what the line gets on this rank without the intervention.
        """
        place = callers.line_of_user()
        if place is None or len(self.noted) == _MOST:
            return
        file, line = place
        act = Act(
            by=by if isinstance(by, str) else by.name,
            place=f"{PurePath(file).name}:{line}",
            code=_shortened(linecache.getline(file, line).strip()),
            value=value,
        )
        if all((act.by, act.place) != (known.by, known.place) for known in self.noted):
            self.noted.append(act)


def _shortened(code: str) -> str:
    return code if len(code) <= _WIDTH else f"{code[: _WIDTH - 3].rstrip()}..."
