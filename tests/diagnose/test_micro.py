"""In which order a step gives the rows of its batch to a module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddpcheck.diagnose.probes.micro import GivenOrder

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
