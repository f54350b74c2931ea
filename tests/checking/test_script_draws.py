"""Which loaders draw batches before their step, from what a rank has drawn."""

from __future__ import annotations

import pytest

from ddpcheck.checking import script_draws
from ddpcheck.ranks.messages import Outcome
from ddpcheck.run.script.events import Drawn, Passed, Updated


def _rank(*counts: dict[int, int], rows: int = 4) -> Outcome:
    """Returns a rank that draws so many batches of 4, by loader, in each step."""
    events: list[object] = []
    for step, by_loader in enumerate(counts):
        for loader, count in by_loader.items():
            for _ in range(count):
                samples = (1, 2, 3, 4)
                drawn = Drawn(
                    loader=loader, turn=0, number=0, samples=samples, step=step
                )
                events.append(drawn)
        events.append(Updated(step=step, updates=1, groups=(), rows=(rows,)))
    return Outcome(rank=0, kind="done", progress=events)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([{0: 1}, {0: 1}, {0: 1}], []),
        ([{0: 2}, {0: 1}, {0: 1}], [(0, 1, 1)]),
        ([{0: 3}, {0: 2}, {0: 2}], [(0, 2, 1)]),
        # Two batches, both drawn before the first update.
        ([{0: 2}, {}], [(0, 1, 1)]),
        ([{0: 3}, {}, {}], [(0, 1, 2)]),
        # Passes of two batches; the recording ends in the middle of the third.
        ([{0: 2}, {}, {0: 2}, {}, {0: 2}], [(0, 1, 1)]),
        # Another loader has the batches: the first one evaluates before the training.
        ([{0: 3, 1: 1}, {1: 1}, {1: 1}], []),
        ([{0: 2}], [(0, 1, 1)]),
    ],
)
def test_loader_that_draws_ahead_is_found(
    counts: list[dict[int, int]], found: list[tuple[int, int, int]]
) -> None:
    assert [*script_draws.ahead(_rank(*counts))] == found


def test_one_step_of_two_batches_that_the_model_gets_is_no_drawing_ahead() -> None:
    assert [*script_draws.ahead(_rank({0: 2}, rows=8))] == []


def _of_passes(*turns: tuple[int, ...], ended: tuple[int, ...] = ()) -> Outcome:
    """Returns a rank that draws a batch of each of these passes in each step."""
    events: list[object] = [Passed(loader=0, turn=t, batches=1) for t in ended]
    for step, every in enumerate(turns):
        events += [
            Drawn(loader=0, turn=turn, number=0, samples=(step,), step=step)
            for turn in every
        ]
        events.append(Updated(step=step, updates=1, groups=(), rows=(1,)))
    return Outcome(rank=0, kind="done", progress=events)


@pytest.mark.parametrize(
    ("rank", "looks", "ahead"),
    [
        (_of_passes((0, 1), (1,), (1,)), [(0, 0)], []),
        (_of_passes((0, 0, 1), (1,)), [(0, 0)], []),
        # The one after it is drawn ahead.
        (_of_passes((0, 1, 1), (1,), (1,)), [(0, 0)], [(0, 1, 1)]),
        # Each step draws two batches, as of endless loaders.
        (_of_passes((0, 1), (2, 3)), [], []),
        (_of_passes((0, 1), (1, 2)), [], []),
        # Two passes at a time.
        (_of_passes((0, 1), (0,), (1,)), [], [(0, 1, 1)]),
        # A pass of one batch has ended.
        (_of_passes((0, 1), (2,), (3,), ended=(0, 1, 2, 3)), [], [(0, 1, 1)]),
        # Two passes are left, and one batch more is used than later: which is unknown.
        (_of_passes((0, 1, 2), (2, 2)), [], [(0, 2, 1)]),
    ],
)
def test_pass_that_is_left_before_the_training_is_found(
    rank: Outcome, looks: list[tuple[int, int]], ahead: list[tuple[int, int, int]]
) -> None:
    assert [*script_draws.looks(rank)] == looks
    assert [*script_draws.ahead(rank)] == ahead


def test_steps_without_batches_are_left_out_where_nothing_is_drawn_ahead() -> None:
    first, second = _rank({0: 1}, {}, {0: 1}), _rank({0: 1}, {0: 1}, {0: 1})
    assert script_draws.usable_steps([first, second], 3) == 1
    assert script_draws.usable_steps([second, first], 3) == 1
    assert script_draws.usable_steps([second, second], 3) == 3


def _passed(count: int, *, drawn: int) -> Outcome:
    events: list[object] = []
    for number in range(drawn):
        events.append(
            Drawn(loader=0, turn=1, number=number, samples=(number,), step=number)
        )
        if number + 1 == count:
            events.append(Passed(loader=0, turn=1, batches=count))
    return Outcome(rank=0, kind="done", progress=events)


def test_pass_has_the_batches_of_the_rank_that_draws_most() -> None:
    ranks = [_passed(2, drawn=2), _passed(3, drawn=3)]
    assert script_draws.passes(ranks) == {(0, 1): 3}


def test_pass_of_more_batches_than_its_loaders_length_has_not_ended() -> None:
    assert script_draws.passes([_passed(2, drawn=3), _passed(2, drawn=2)]) == {}
