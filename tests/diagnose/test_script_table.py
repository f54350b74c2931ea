"""The facts of a script's training as functions of the world size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ddpcheck.diagnose import script_data
from ddpcheck.report.data import Row
from ddpcheck.run.script.events import Drawn, Updated
from tests.diagnose.test_script_data import PLAIN, RANDOM, Process, order, shards


def _updates(*groups: Sequence[dict[str, float]]) -> list[Updated]:
    """Returns updates of one optimizer, with the numbers of its groups after each."""
    return [
        Updated(step=step, updates=1, groups=(tuple(each),))
        for step, each in enumerate(groups)
    ]


def _rates(*rates: float) -> list[Updated]:
    return _updates(*([{"lr": rate}] for rate in rates))


def _given(rows: Sequence[Row], what: str) -> Row:
    (found,) = (row for row in rows if row.what == what)
    return found


def _with_rates(events: Sequence[Any], rates: Sequence[float]) -> list[Any]:
    """Returns events whose updates have these learning rates."""
    left = iter(rates)
    return [
        replace(e, groups=(({"lr": next(left)},),)) if isinstance(e, Updated) else e
        for e in events
    ]


@pytest.mark.parametrize(
    ("ranks", "at_8", "effect"),
    [
        (0.1, 0.1, "updates have the same size at any world size"),
        (
            0.2,
            0.8,
            "updates grow with the world size, as linear scaling wants where the "
            "global batch grows, too",
        ),
        (0.05, 0.0125, "updates shrink with the world size"),
        (0.13, None, "updates have another size than in the single process"),
    ],
)
def test_learning_rate_is_given_at_8_where_it_follows(
    ranks: float, at_8: float | None, effect: str
) -> None:
    rows = script_data.table([_rates(ranks, ranks)] * 2, _rates(0.1, 0.1))
    assert rows == (
        Row(
            what="learning rate",
            single=0.1,
            ranks=ranks,
            world_size=2,
            at_8=at_8,
            effect=effect,
        ),
    )


def test_learning_rate_that_grows_with_four_ranks_is_given_at_8() -> None:
    (row,) = script_data.table([_rates(0.4)] * 4, _rates(0.1))
    assert (row.world_size, row.at_8) == (4, 0.8)


def test_groups_with_other_learning_rates_have_a_row_each() -> None:
    one = _updates([{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.01}])
    many = _updates([{"lr": 0.2}, {"lr": 0.2}, {"lr": 0.01}])
    rows = script_data.table([many, many], one)
    assert [(row.what, row.at_8) for row in rows] == [
        ("learning rate of optimizer 1, group 1", 0.8),
        ("learning rate of optimizer 1, group 3", 0.01),
    ]


def test_batches_that_are_divided_keep_updates_and_samples() -> None:
    ranks = [Process().train(part).events for part in shards(0)]
    rows = script_data.table(ranks, Process(RANDOM, batch=8).train(order(5)).events)
    assert [(r.what, r.single, r.ranks, r.at_8) for r in rows[1:]] == [
        ("samples of an update", 8, 8, 8),
        ("batches of a pass", 3, 3, 3),
        ("updates of a pass", 3, 3, 3),
    ]
    assert rows[1].effect == (
        "an update trains on as many samples as in the single process"
    )


def test_batches_of_the_same_size_make_a_pass_shorter() -> None:
    ranks = [Process(batch=2).train(part).events for part in shards(0)]
    rows = script_data.table(ranks, Process(RANDOM, batch=2).train(order(5)).events)
    assert [(r.what, r.single, r.ranks, r.at_8) for r in rows[1:]] == [
        ("samples of an update", 2, 4, 16),
        ("batches of a pass", 12, 6, None),
        ("updates of a pass", 12, 6, None),
    ]
    assert rows[-1].effect == (
        "a pass has fewer updates: a schedule that counts updates, or was made for the "
        "single process, is not at its end when the passes are"
    )


def test_batches_that_eight_ranks_can_share_are_given_at_8() -> None:
    ranks = [Process(batch=1).train(part[:8]).events for part in shards(0)]
    one = Process(RANDOM, batch=1).train(order(5)[:16]).events
    row = _given(script_data.table(ranks, one), "batches of a pass")
    assert (row.single, row.ranks, row.at_8) == (16, 8, 2)


def test_global_batch_that_ranks_cut_has_the_samples_of_one_process() -> None:
    one = Process(RANDOM, batch=8, rows=(8,)).train(order(0)).events
    many = [
        Process(RANDOM, batch=8, rows=(4,)).train(order(0)).events for _ in range(2)
    ]
    row = _given(script_data.table(many, one), "samples of an update")
    assert (row.single, row.ranks) == (8, 8)
    whole = [
        Process(RANDOM, batch=8, rows=(8,)).train(order(0)).events for _ in range(2)
    ]
    row = _given(script_data.table(whole, one), "samples of an update")
    assert (row.single, row.ranks) == (8, 16)


def test_number_that_is_rounded_follows_nothing() -> None:
    ranks = [Process().train(part).events for part in shards(0)]
    one = Process(RANDOM, batch=5).train(order(5)).events
    row = _given(script_data.table(ranks, one), "batches of a pass")
    assert (row.single, row.ranks, row.at_8) == (5, 3, None)


def _ahead(events: Sequence[Any]) -> list[Any]:
    """Returns events in which every second batch is drawn one update earlier."""
    return [
        replace(e, step=e.step - e.step % 2) if isinstance(e, Drawn) else e
        for e in events
    ]


def test_batches_that_are_drawn_before_their_update_have_no_samples_of_an_update() -> (
    None
):
    ranks = [_ahead(Process().train(part).events) for part in shards(0)]
    rows = script_data.table(ranks, Process(RANDOM, batch=8).train(order(5)).events)
    assert [row.what for row in rows if "lear" not in row.what] == ["batches of a pass"]


def _accumulated(part: Sequence[int], every: int) -> list[Any]:
    process = Process(PLAIN, batch=2)
    one = process.begin()
    for number in range(len(part) // 2):
        process.draw(one, part[2 * number : 2 * number + 2], number)
        if number % every == every - 1:
            process.update()
    process.end(one, len(part) // 2)
    return process.events


def test_accumulated_batches_count_as_one_update() -> None:
    ranks = [_accumulated(part, 2) for part in shards(0)]
    rows = script_data.table(ranks, _accumulated(order(5), 4))
    assert [(r.what, r.single, r.ranks) for r in rows[1:]] == [
        ("samples of an update", 8, 8),
        ("batches of a pass", 12, 6),
        ("updates of a pass", 3, 3),
    ]


def test_schedule_that_is_the_same_needs_longer_by_passes() -> None:
    rates = [0.1 - 0.005 * number for number in range(12)]
    ranks = [
        _with_rates(Process(batch=2).train(part).events, rates) for part in shards(0)
    ]
    one = _with_rates(Process(RANDOM, batch=2).train(order(5)).events, rates)
    row = _given(script_data.table(ranks, one), "learning rate after update 6")
    assert row.single == row.ranks == row.at_8 == rates[5]
    assert row.effect == (
        "the schedule is the same, update by update; a pass has fewer updates: by "
        "passes it needs 2 times as long"
    )


def test_schedule_that_is_stepped_by_every_rank_is_told_with_its_end() -> None:
    rates = [0.1 - 0.005 * number for number in range(12)]
    ranks = [
        _with_rates(Process(batch=2).train(part).events, rates[1::2])
        for part in shards(0)
    ]
    one = _with_rates(Process(RANDOM, batch=2).train(order(5)).events, rates)
    row = _given(script_data.table(ranks, one), "learning rate after update 6")
    assert (row.single, row.ranks, row.at_8) == (rates[5], rates[11], None)
    assert row.effect == (
        "the schedule advances 2 times as far in every update, and a pass has fewer "
        "updates: by passes it is the same"
    )


def _of_passes(single: int, ranks: int) -> Row:
    return Row(
        what="updates of a pass", single=single, ranks=ranks, world_size=2, effect=""
    )


@pytest.mark.parametrize(
    ("single", "ranks", "shares"),
    [(16, 8, True), (17, 9, True), (1, 1, True), (16, 16, False)],
)
def test_ranks_with_fewer_updates_share_a_pass(
    single: int,
    ranks: int,
    shares: bool,  # noqa: FBT001
) -> None:
    rows = [_of_passes(single, ranks)]
    assert script_data.shares_passes(rows) is shares
    assert script_data.shares_passes([])


def test_schedule_that_ends_early_is_told_so() -> None:
    rates = [0.1, 0.09, 0.08, 0.07, 0.06, 0.05]
    double = [0.09, 0.07, 0.05, 0.05, 0.05, 0.05]
    parts = [shards(0), shards(1)]
    ranks = []
    for rank in range(2):
        process = Process()
        for part in parts:
            process.train(part[rank])
        ranks.append(_with_rates(process.events, double))
    one = Process(RANDOM, batch=8).train(order(5)).train(order(6))
    rows = script_data.table(ranks, _with_rates(one.events, rates))
    row = _given(rows, "learning rate after update 6")
    assert row.effect == (
        "the schedule advances 2 times as far in every update: it ends after 1/2 of "
        "the passes"
    )


def test_schedule_that_is_scaled_only_is_no_faster_one() -> None:
    rows = script_data.table([_rates(0.2, 0.1, 0.05)] * 2, _rates(0.1, 0.05, 0.025))
    assert [(r.what, r.at_8) for r in rows] == [
        ("learning rate after update 1", 0.8),
        ("learning rate after update 3", 0.2),
    ]
    assert rows[1].effect == (
        "the schedule gives a learning rate that grows with the world size"
    )


def test_nothing_recorded_has_no_rows() -> None:
    assert script_data.table([[], []], []) == ()
    assert script_data.table([], []) == ()
