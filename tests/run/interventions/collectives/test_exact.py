"""Collectives are judged by their definition, and replaced by it."""

from __future__ import annotations

from typing import Any

import pytest

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool
from tests.diagnose.test_rules import skip_where_too_new


def _run(pool: Pool, name: str, world_size: int) -> list[Any]:
    outcomes = pool.run(Job(function=f"tests.run.jobs:{name}"), world_size)
    assert [o.kind for o in outcomes] == ["done"] * world_size, outcomes
    return [o.value for o in outcomes]


def test_only_the_view_with_gaps_is_not_what_was_asked_for(pool: Pool) -> None:
    skip_where_too_new("reduce-op-avg")
    ranks = _run(pool, "judged_collectives", 3)
    # gloo sums the memory from the first element of the view on.
    for rank in ranks:
        assert set(rank["found"]) == {"column"}
        (defect,) = rank["found"]["column"]
        assert not defect["is_dense"]
        assert (
            defect["what"] == "all_reduce(SUM) of float32 [3] with strides [2] by gloo"
        )
        # 1, 3, 5 of the three ranks, with 1, 10 and 100 added to each.
        assert rank["column"] == [114.0, 120.0, 126.0]


def test_function_in_place_of_a_collective_is_judged_too(pool: Pool) -> None:
    assert _run(pool, "halved", 2) == [[pytest.approx(0.5)]] * 2
