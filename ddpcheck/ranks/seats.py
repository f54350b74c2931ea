"""Ranks that never sat: no code of the user's has run in them."""

from __future__ import annotations

from ddpcheck.ranks.messages import Outcome


def why(unseated: Outcome) -> str:
    """Returns what kept a rank from its seat."""
    if unseated.raised is not None:
        return f"{unseated.raised.type_name}: {unseated.raised.message}"
    return f"a rank ended with exit code {unseated.exit_code} before it was ready"


def left_standing(outcomes: list[Outcome]) -> list[Outcome]:
    """Returns the ranks that found no seat.

    Not those that were still taking theirs when a seated rank died in its job: to them
    that looks like a seat that is not there. They are marked as stopped.
    """
    unseated = [o for o in outcomes if o.kind == "unseated"]
    if not any(o.kind == "died" for o in outcomes):
        return unseated
    for outcome in unseated:
        outcome.kind = "stopped"
    return []
