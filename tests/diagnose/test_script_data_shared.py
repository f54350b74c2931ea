"""Samples that ranks share in streams without an end, and what only looks like it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from ddpcheck.diagnose.script_data.shared import Shared, first_alike, shared

WORLDS = [2, 4, 8]
DRAWS = [12, 100, 400]
SIZES = [16, 64, 1000]  # of the data


def _random(seed: int = 0) -> random.Random:
    return random.Random(seed)  # noqa: S311 (not for secrets)


def _drawn(stream: Iterator[int], count: int) -> list[int]:
    return list(itertools.islice(stream, count))


def _with_replacement(size: int, seed: int) -> Iterator[int]:
    draw = _random(seed)
    while True:
        yield draw.randrange(size)


def _passes(samples: Sequence[int], seed: int) -> Iterator[int]:
    """Yields the samples in another order in every pass."""
    draw = _random(seed)
    while True:
        yield from draw.sample(samples, len(samples))


def test_one_stream_that_a_rank_is_ahead_in_is_shared() -> None:
    stream = _drawn(_with_replacement(10**5, 0), 140)
    assert shared([stream[40:], stream[:100]]) == Shared(size=100, samples=60, lag=40)


def test_streams_that_advance_by_a_batch_of_one_rank_are_shared() -> None:
    ranks = [list(range(4 * rank, 4 * rank + 80)) for rank in range(4)]
    assert shared(ranks) == Shared(size=80, samples=84, lag=4)


def test_own_orders_of_all_samples_are_shared_without_a_lag() -> None:
    ranks = [_drawn(_passes(range(100), rank), 100) for rank in range(2)]
    found = shared(ranks)
    assert found is not None
    assert found.lag is None


def test_one_stream_with_few_shared_samples_is_silent() -> None:
    stream = list(range(60))
    assert shared([stream[:39], stream[20:59]]) is None  # 19: one in 500,000
    assert shared([stream[:40], stream[20:60]]) is not None


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", DRAWS)
@pytest.mark.parametrize("world", WORLDS)
def test_random_draws_of_each_rank_are_silent(
    world: int, count: int, size: int
) -> None:
    ranks = [_drawn(_with_replacement(size, rank), count) for rank in range(world)]
    assert shared(ranks) is None
    assert not first_alike(ranks)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", DRAWS)
@pytest.mark.parametrize("world", WORLDS)
def test_shards_of_another_permutation_in_every_pass_are_silent(
    world: int, count: int, size: int
) -> None:
    stream = _drawn(_passes(range(size), 0), count * world)
    assert shared([stream[rank::world] for rank in range(world)]) is None


@pytest.mark.parametrize("count", DRAWS)
@pytest.mark.parametrize("world", WORLDS)
def test_ranks_that_begin_at_their_own_places_are_silent(
    world: int, count: int
) -> None:
    starts = [64 * rank // world for rank in range(world)]
    ranks = [[(start + i) % 64 for i in range(count)] for start in starts]
    assert shared(ranks) is None
    assert not first_alike(ranks)


def test_constant_rows_in_every_batch_are_silent() -> None:
    padding = [-1, -2, -3, -4]  # in the last rows of each batch, on all ranks
    ranks = [
        [key for i in range(30) for key in (*padding, 60 * rank + i)]
        for rank in range(2)
    ]
    assert shared(ranks) is None
    assert not first_alike(ranks)


def test_first_batch_of_streams_that_are_seeded_alike_is_found() -> None:
    first = [10_000, 10_001, 10_002, 10_003]
    ranks = [first + _drawn(_with_replacement(9999, r), 100) for r in range(2)]
    assert shared(ranks) is None
    assert first_alike(ranks) == len(first)


def test_first_samples_alike_of_few_data_are_silent() -> None:
    ranks = [_drawn(_with_replacement(6, 0), 5), _drawn(_with_replacement(6, 0), 5)]
    for rank, keys in enumerate(ranks):
        keys.extend(_drawn(_with_replacement(6, rank + 1), 100))
    assert not first_alike(ranks)
