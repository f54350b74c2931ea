"""Which part of one process's tensor a rank's is: rows, blocks, or kinds of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddpcheck.diagnose.probes.rows import closest

EDGES, LOOPS = torch.arange(1.0, 13).view(12, 1), torch.arange(-6.0, 0).view(6, 1)
WHOLE = torch.cat([EDGES, LOOPS])  # of 6 samples: two edges each, and a loop


def _taken(mine: Tensor, whole: Tensor, rows: tuple[int, int, int]) -> list[int]:
    take, diff = closest(mine, whole, rows)
    assert take is not None
    assert diff == 0.0
    places: list[int] = take(torch.arange(len(whole)).view_as(whole)).flatten().tolist()
    return places


@pytest.mark.parametrize(
    ("rank", "places"),
    [
        (0, [0, 1, 2, 3, 12, 13]),
        (1, [4, 5, 6, 7, 14, 15]),
        (2, [8, 9, 10, 11, 16, 17]),
    ],
)
def test_edges_are_followed_by_loops(rank: int, places: list[int]) -> None:
    assert _taken(WHOLE[places], WHOLE, (2 * rank, 2, 6)) == places


def test_several_kinds_of_rows_follow_each_other() -> None:
    whole = torch.cat([EDGES[:6], LOOPS, EDGES])
    places = [3, 4, 5, 9, 10, 11, 18, 19, 20, 21, 22, 23]
    assert _taken(whole[places], whole, (3, 3, 6)) == places


def test_numbers_of_nodes_begin_anew_on_a_rank() -> None:
    whole = torch.cat([torch.arange(12) // 2, torch.arange(6)])
    places = [6, 7, 8, 9, 10, 11, 15, 16, 17]
    assert _taken(whole[places] - 3, whole, (3, 3, 6)) == places


@pytest.mark.parametrize(
    "mine",
    [
        WHOLE[[11, 10, 9, 8, 7, 6, 17, 16, 15]],
        WHOLE[[7, 8, 9, 10, 11, 6, 15, 16, 17]],
        WHOLE[[0, 1, 2, 3, 4, 5, 15, 16, 17]],
        WHOLE[[6, 7, 8, 9, 10, 11, 15, 16, 17]] + 0.5,
    ],
    ids=["turned round", "rolled", "of others", "other values"],
)
def test_rows_elsewhere_are_no_part(mine: Tensor) -> None:
    _, diff = closest(mine, WHOLE, (3, 3, 6))
    assert diff > 0.01
