"""Which rows of its batch a step gives to a module, and in which order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddpcheck.diagnose.probes.evidence import Windows
from ddpcheck.diagnose.probes.micro import Cursor, GivenOrder, dealt, described_apart

ROWS = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 0.5]])
LABELS = torch.tensor([1, 0, 1])


@pytest.mark.parametrize(
    ("given", "order"),
    [
        (ROWS[[2, 0, 1]], [2, 0, 1]),
        (ROWS[[2, 0, 1], :1], [2, 0, 1]),  # cut to the longest
        (ROWS, None),
        (ROWS[[0, 0, 1]], None),  # not each once
        (ROWS + 1, None),
        (LABELS[[1, 0, 2]], None),  # which of the two is which?
    ],
    ids=["sorted", "cut", "as-it-is", "repeated", "changed", "labels"],
)
def test_order_is_that_of_the_rows(given: Tensor, order: list[int] | None) -> None:
    found = GivenOrder((ROWS, LABELS))
    found.before("", 0, None, (given,), {})
    assert (None if found.order is None else found.order.tolist()) == order


def test_rows_that_are_recognised_first_count() -> None:
    found = GivenOrder((ROWS, LABELS))
    found.before("", 0, None, (ROWS,), {})
    found.before("head", 0, None, (ROWS[[2, 0, 1]],), {})
    assert found.order is None


def test_batch_with_lists_stays_as_it_is() -> None:
    found = GivenOrder((ROWS, [1, 2, 3]))
    found.before("", 0, None, (ROWS[[2, 0, 1]],), {})
    assert found.order is None


DEALT = Windows(sizes=(4, 4, 2, 2), calls=1, deal=2)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([4, 4, 2, 2], DEALT),
        ([4, 4, 4, 4, 2, 2, 2, 2], Windows(sizes=(4, 4, 2, 2), calls=2, deal=2)),
        ([4, 4, 2], None),
        ([4, 2, 4, 2, 4, 2, 4, 4], None),
        ([], None),
    ],
    ids=["one-call-each", "two-calls-each", "one-less", "unequal-calls", "no-call"],
)
def test_micro_batches_are_dealt_if_each_has_as_many_calls(
    rows: list[int], found: Windows | None
) -> None:
    assert dealt(rows, 2, 2) == found


@pytest.mark.parametrize(("start", "starts"), [(0, [0, 8]), (4, [4, 12])])
def test_micro_batches_of_a_rank_begin_where_those_that_are_dealt_do(
    start: int, starts: list[int]
) -> None:
    cursor = Cursor(Windows(sizes=(4,) * 4, calls=1, deal=2), start, 4, 8)
    for _ in range(2):
        cursor.enter((torch.ones(4, 1),), {}, lambda *_: None)
    assert cursor.starts == starts
    assert cursor.rows == (starts[-1], 4, 16)


def test_micro_batches_of_each_batch_count_under_the_name_of_the_first() -> None:
    batches = {"0.0": torch.tensor([1, 0, 1, 1]), "0.1": torch.tensor([0, 0, 0, 1])}
    found = described_apart(batches, (2, 2, 2, 2), ["batch.0.0 != 0"])
    assert [m.counts["batch.0.0 != 0"] for m in found] == [1, 2, 0, 1]
    assert [m.start for m in found] == [0, 2, 4, 6]
