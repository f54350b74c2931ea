"""The lines of the user's file that a fix is about, as the run that proves it saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ddpcheck.diagnose.facts.text import listed
from ddpcheck.run.facts import Act
from ddpcheck.run.intervention import Interventions
from ddpcheck.run.spec import RunOutcome

ActsOfRanks = Sequence[Sequence[Act]]

_DECIDE = ("if ", "elif ", "while ")  # how a line begins that decides
_MOST = 2  # lines in a sentence


def by_intervention(outcome: RunOutcome) -> dict[str, ActsOfRanks]:
    """Returns the acts of a run's ranks by the intervention that changed something."""
    of_ranks = [facts.get("acts", []) for facts in outcome.facts_of_ranks()]
    names = dict.fromkeys(act.by for acts in of_ranks for act in acts)
    return {
        name: [[act for act in acts if act.by == name] for acts in of_ranks]
        for name in names
    }


def with_lines(fix: str, fixes: Interventions, known: Mapping[str, ActsOfRanks]) -> str:
    """Returns what to do, with the lines for which these fixes changed a value.

    >>> first = Act(by="MEAN_OF_NUMBERS", place="a.py:3", code="if x > 1:", value=0.0)
    >>> with_lines("reduce it", (Switch.MEAN_OF_NUMBERS,), {first.by: [[first]]})
    'reduce it; here `if x > 1:` at a.py:3 (0 on the ranks)'
    """
    names = [f.name if isinstance(f, Enum) else type(f).__name__ for f in fixes]
    lines = [line for name in names for line in _lines(known.get(name, ()))]
    if not lines:
        return fix
    more = f" and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    return f"{fix}; here {', '.join(lines[:_MOST])}{more}"


def _lines(of_ranks: ActsOfRanks) -> list[str]:
    """Returns a phrase for each line, those that decide first."""
    acts = {act.place: act for acts in of_ranks for act in acts}
    ordered = sorted(acts.values(), key=lambda act: not act.code.startswith(_DECIDE))
    return [_phrase(act, of_ranks) for act in ordered]


def _phrase(act: Act, of_ranks: ActsOfRanks) -> str:
    values = [
        other.value
        for acts in of_ranks
        for other in acts
        if other.place == act.place and other.value is not None
    ]
    told = f" ({listed(values)} on the ranks)" if values else ""
    return f"`{act.code}` at {act.place}{told}"
