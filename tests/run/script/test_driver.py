"""Which steps of an optimizer are updates."""

from __future__ import annotations

import torch
from torch import nn

from ddpcheck.run.script.driver import is_empty


def _optimizer(lr: float | None, gradient: float | None) -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.ones(2))
    if gradient is not None:
        parameter.grad = torch.full((2,), gradient)
    made = torch.optim.SGD([parameter], lr=0.1)
    made.param_groups[0]["lr"] = lr
    return made


def test_step_that_only_makes_the_state_is_empty() -> None:
    assert is_empty(_optimizer(0.0, 0.0))


def test_first_step_of_a_warm_up_is_an_update() -> None:
    assert not is_empty(_optimizer(0.0, 0.5))


def test_step_with_gradients_of_zero_is_an_update() -> None:
    assert not is_empty(_optimizer(0.1, 0.0))


def test_step_without_a_learning_rate_is_an_update() -> None:
    assert not is_empty(_optimizer(None, 0.0))


def test_step_with_sparse_gradients_is_an_update() -> None:
    made = _optimizer(0.0, None)
    (parameter,) = made.param_groups[0]["params"]
    parameter.grad = torch.zeros(2).to_sparse()
    assert not is_empty(made)
