"""The lines of user code for which an intervention changes something."""

from __future__ import annotations

from ddpcheck.run.intervention import Switch
from ddpcheck.run.interventions.acts import Acts


def test_line_is_noted_once_for_each_intervention() -> None:
    acts = Acts()
    for value in (1.0, 2.0):
        for by in (Switch.MEAN_OF_NUMBERS, "OffsetLabels"):
            acts.note(by, value)
    (first, second) = acts.noted
    assert (first.by, second.by) == ("MEAN_OF_NUMBERS", "OffsetLabels")
    assert (first.code, first.value) == ("acts.note(by, value)", 1.0)
    assert first.place.startswith("test_acts.py:")


def test_at_most_eight_lines_are_noted() -> None:
    acts = Acts()
    for number in range(20):
        acts.note(f"Fix{number}")
    assert [act.by for act in acts.noted] == [f"Fix{number}" for number in range(8)]


def test_line_that_returns_what_is_asked_is_told_by_its_caller() -> None:
    acts = Acts()

    def asked() -> None:
        return acts.note(Switch.FIRST_RANK)

    asked()
    assert [act.code for act in acts.noted] == ["asked()"]


def test_long_line_is_cut() -> None:
    acts = Acts()
    acts.note("Fix", 0.5 if "a condition that has many characters" else 1.25)
    assert [act.code for act in acts.noted] == [
        'acts.note("Fix", 0.5 if "a condition that has many charac...'
    ]
