"""Random operations of every kind give constants, whatever their shape and order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.run.interventions.constant_draws import ConstantDraws

pytestmark = pytest.mark.usefixtures("seeded")  # what draws is drawn from all the same


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda: torch.rand(2), [0.5, 0.5]),
        (lambda: torch.rand_like(torch.ones(2)), [0.5, 0.5]),
        (lambda: torch.randn(2), [0.0, 0.0]),
        (lambda: torch.zeros(2).uniform_(3, 4), [0.5, 0.5]),
        (lambda: torch.normal(torch.tensor([2.0, 3.0]), 1.0), [2.0, 3.0]),
        (lambda: torch.bernoulli(torch.tensor([0.1, 0.9])), [1.0, 1.0]),
        (lambda: torch.randint(3, 9, (2,)), [0, 0]),
        (lambda: torch.randperm(3), [0, 1, 2]),
        (lambda: torch.multinomial(torch.tensor([0.1, 0.2, 0.7]), 2), [2, 1]),
        # It keeps all, and scales by 1 / (1 - p) as ever.
        (lambda: nn.functional.dropout(torch.tensor([2.0, 3.0]), 0.5), [4.0, 6.0]),
    ],
)
def test_draw_is_constant(draw: Callable[[], Tensor], expected: list[float]) -> None:
    with ConstantDraws():
        assert draw().tolist() == expected


def test_dropout_that_drops_nothing_has_a_gradient() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    with ConstantDraws():
        nn.functional.dropout(x, 0.5).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]
