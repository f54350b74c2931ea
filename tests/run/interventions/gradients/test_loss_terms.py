"""Terms without data are separated from terms with data, and scaled at their sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.run.interventions.gradients.loss_terms import scaled_terms

pytestmark = pytest.mark.usefixtures("seeded")  # layers draw their weights

Loss = Callable[[Tensor, Tensor], Tensor]  # of a parameter, 5.0, and data, 7.0


def gradient_of(loss: Loss) -> float:
    """Returns the gradient of the parameter, with terms without data scaled by 3."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 5.0)
    data = torch.full((), 7.0)
    with scaled_terms(module, 3.0):
        loss(module.weight.sum(), data).backward()
    assert module.weight.grad is not None
    return float(module.weight.grad)


def begun_with_a_zero(p: Tensor, data: Tensor) -> Tensor:
    """Returns a sum that begins without data, and is written into."""
    total = torch.zeros(())
    total += 2 * p
    total += data * p
    return total


def weighed_by_a_count(p: Tensor, data: Tensor) -> Tensor:
    """Returns a loss plus a count that data were written into."""
    count = torch.zeros(())
    count.add_(data)
    return p * count + count


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        pytest.param(lambda p, x: p * x + 2 * p, 7 + 3 * 2, id="added"),
        pytest.param(lambda p, x: 2 * p + p * x, 7 + 3 * 2, id="added-to"),
        pytest.param(lambda p, x: p * x - 2 * p, 7 - 3 * 2, id="subtracted"),
        pytest.param(lambda p, x: 2 * p - p * x, 3 * 2 - 7, id="subtracted-from"),
        pytest.param(
            lambda p, x: torch.stack([p * x, 2 * p]).sum(), 7 + 3 * 2, id="stacked"
        ),
        pytest.param(lambda p, x: sum([p * x, 2 * p]), 7 + 3 * 2, id="summed"),
        pytest.param(lambda p, x: 4 * (p * x + 2 * p), 28 + 3 * 8, id="both-scaled"),
        pytest.param(begun_with_a_zero, 7 + 3 * 2, id="in-place"),
        pytest.param(lambda p, x: (2 * p) * x, 14, id="a-factor-of-data"),
        pytest.param(weighed_by_a_count, 7, id="a-count-of-data"),
        pytest.param(
            lambda p, x: (p + x.expand(2)).sum(), 2, id="added-to-several-numbers"
        ),
    ],
)
def test_terms_without_data_are_scaled(loss: Loss, expected: float) -> None:
    assert gradient_of(loss) == expected
