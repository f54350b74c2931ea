"""Schedules of scripts whose ranks have batches of their own size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from ddpcheck.diagnose import script_data
from ddpcheck.run.script.events import Updated

Rate = Callable[[int], float]


def _process(rate: Rate, updates: int, rows: int = 4) -> list[Updated]:
    """Returns the updates of a process whose learning rate is a function of them."""
    return [
        Updated(
            step=step,
            updates=1,
            groups=(({"lr": rate(step + 1), "momentum": 0.9},),),
            rows=(rows,),
        )
        for step in range(updates)
    ]


def _cosine(total: int, largest: float = 0.1) -> Rate:
    return lambda step: largest / 2 * (1 + math.cos(math.pi * min(1, step / total)))


def _follows(ranks: Sequence[Updated], single: Sequence[Updated]) -> bool:
    return script_data.follows_passes([ranks] * 2, single)


@pytest.mark.parametrize("scale", [1, math.sqrt(2), 2])
def test_schedule_of_the_sharded_length_follows_the_passes(scale: float) -> None:
    single = _process(_cosine(20), 20)
    assert _follows(_process(_cosine(10, 0.1 * scale), 10), single)


@pytest.mark.parametrize(
    "ranks",
    [
        _process(_cosine(5), 10),  # stepped W times of that length
        _process(_cosine(10, 0.3), 10),
        _process(_cosine(10), 2),  # too short to be known
        _process(_cosine(10), 10, rows=2),  # an update has as many samples
    ],
)
def test_other_schedule_does_not_follow_the_passes(ranks: list[Updated]) -> None:
    assert not _follows(ranks, _process(_cosine(20), 20))


def test_schedule_that_only_the_single_process_finishes_is_a_finding() -> None:
    ranks, single = _process(_cosine(20, 0.2), 10), _process(_cosine(20), 20)
    found = script_data.unfinished([ranks] * 2, single)
    assert found is not None
    assert found.slug == "sync/control-desync"
    assert found.facts == (
        "updates of the whole training: 20 in the single process, 10 on each rank",
        "learning rate after the last one: 0 in the single process, of at most "
        "0.09938; 0.1 on the ranks, of at most 0.1988",
    )


@pytest.mark.parametrize(
    ("ranks", "single"),
    [
        (_process(_cosine(10), 10), _process(_cosine(20), 20)),
        (_process(_cosine(20), 20), _process(_cosine(20), 20)),
        (_process(_cosine(20), 10, rows=2), _process(_cosine(20), 10)),
        # It is of updates, as a warm-up is, and nobody comes to its end.
        (_process(_cosine(90), 10), _process(_cosine(90), 20)),
        (_process(lambda _: 0.1, 10), _process(lambda _: 0.1, 20)),
    ],
)
def test_schedule_that_ranks_finish_is_no_finding(
    ranks: list[Updated], single: list[Updated]
) -> None:
    assert script_data.unfinished([ranks] * 2, single) is None


def _decided(rates: Sequence[float], weights: Sequence[str]) -> list[Updated]:
    """Returns the updates of a rank with these learning rates and weights."""
    groups = [(({"lr": rate},),) for rate in rates]
    return [
        Updated(step=step, updates=1, groups=own, weights=weights[step])
        for step, own in enumerate(groups)
    ]


def test_learning_rate_that_each_rank_decides_is_a_finding() -> None:
    ranks = _decided([0.1, 0.1, 0.1], "aab"), _decided([0.1, 0.05, 0.05], "aac")
    found = script_data.apart(ranks)
    assert found is not None
    assert (found.slug, found.facts) == (
        "sync/control-desync",
        ("lr after update 2 of the script: 0.1, 0.05",),
    )


@pytest.mark.parametrize(
    "ranks",
    [
        (_decided([0.1, 0.1], "ab"), _decided([0.1, 0.1], "ac")),
        (_decided([0.1, 0.2], "ab"), _decided([0.1, 0.1], "ab")),
        (_decided([0.1, 0.2], "ab"), _decided([0.1, 0.1], "cd")),
        (_decided([0.1, 0.2], ["", ""]), _decided([0.1, 0.1], ["", ""])),
    ],
)
def test_ranks_whose_weights_do_not_part_by_it_are_no_finding(
    ranks: tuple[list[Updated], ...],
) -> None:
    assert script_data.apart(ranks) is None
