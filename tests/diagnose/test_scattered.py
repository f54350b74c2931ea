"""Rows of a shard are found in the whole, wherever they lie there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddpcheck.diagnose.probes import scattered
from ddpcheck.diagnose.probes.teacher import closest

WHOLE = torch.tensor([[1.0, 2.0], [5.0, -3.0], [0.5, 0.5], [7.0, 1.0], [-2.0, 2.0]])


def _found(actual: Tensor, whole: Tensor = WHOLE, *, once: bool = True) -> list[int]:
    places = scattered.positions(actual, whole, 0, once=once)
    return [] if places is None else places.tolist()


def test_rows_are_found_in_any_order() -> None:
    assert _found(WHOLE[[3, 0, 4]]) == [3, 0, 4]
    assert _found(WHOLE[[3, 0]] * (1 + 1e-9)) == [3, 0]


def test_rows_are_found_along_any_dimension() -> None:
    whole = WHOLE.T.unsqueeze(-1)
    found = scattered.positions(whole[:, [4, 1]], whole, 1, once=True)
    assert found is not None
    assert found.tolist() == [4, 1]


@pytest.mark.parametrize(
    "row",
    [[1.0, 2.001], [2.0, 1.0], [float("nan"), 1.0], [100.0, 100.0]],
    ids=["another value", "turned round", "not a number", "beyond all"],
)
def test_row_that_is_not_there_is_not_found(row: list[float]) -> None:
    assert _found(torch.cat([WHOLE[:2], torch.tensor([row])])) == []


def test_rows_alike_stand_for_each_other_where_they_may() -> None:
    whole = torch.cat([WHOLE, WHOLE[1:2]])
    assert _found(whole[[1, 3]], whole) == []
    places = _found(whole[[1, 3]], whole, once=False)
    assert places in ([1, 3], [5, 3])


@pytest.mark.parametrize("whole", [torch.zeros(4, 2), torch.empty(0, 2)])
def test_nothing_is_found_where_there_is_nothing(whole: Tensor) -> None:
    assert _found(whole[:2], whole) == []


def test_rows_of_edges_and_loops_are_a_part_of_the_whole() -> None:
    edges, loops = torch.arange(1.0, 13).view(12, 1), torch.arange(-6.0, 0).view(6, 1)
    whole = torch.cat([edges, loops])  # of 6 nodes; the shard has the last 3
    mine = torch.cat([edges[6:], loops[3:]])
    take, diff = closest(mine, whole, (3, 3, 6), for_gradients=True)
    assert take is not None
    assert diff == 0.0
    assert torch.equal(
        take(torch.arange(18)), torch.tensor([*range(6, 12), 15, 16, 17])
    )


def test_rows_of_other_values_are_as_far_as_the_closest_part() -> None:
    whole = torch.arange(1.0, 19.0).view(18, 1)
    mine = whole[9:] + 3.0
    take, diff = closest(mine, whole, (3, 3, 6))
    assert take is not None
    assert diff == pytest.approx(3 / 18)
