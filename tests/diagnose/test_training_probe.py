"""A probe's step: what training code does to gradients between backward and update."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.diagnose.probes import training
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import Target

ROWS = torch.tensor([[3.0, -4.0], [0.5, 2.0], [1.0, -1.0], [2.0, 7.0]])


class Heated(nn.Linear):
    """Has a parameter that the loss uses; its outputs may be cut."""

    def __init__(self, *, is_cut: bool) -> None:
        super().__init__(2, 1, device="meta")  # draws no random numbers
        self.weight, self.bias = (
            nn.Parameter(torch.ones(shape)) for shape in ((1, 2), (1,))
        )
        self.heat = nn.Parameter(torch.tensor(2.0))
        self.is_cut = is_cut

    def forward(self, x: Tensor) -> Tensor:
        """Returns one number per row."""
        y = super().forward(x)
        return y.detach() if self.is_cut else y


def _clipped(model: nn.Module, _: Any, batch: Tensor) -> None:
    (model.heat * model(batch).sum()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def _divided(model: nn.Module, _: Any, batch: Tensor) -> None:
    (model.heat * model(batch).sum()).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= len(batch)


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize(
    ("train_step", "factor"), [(_clipped, 1.0), (_divided, 0.25)], ids=["clip", "count"]
)
def test_marks_are_divided_by_counts_and_clipped_by_their_own_size(
    train_step: Any, factor: float, *, is_cut: bool
) -> None:
    model = Heated(is_cut=is_cut)
    target = Target(name="target.py", model=model, batch=ROWS, train_step=train_step)
    spec = RunSpec(mode="single")
    done = training.step(target, spec, model, ROWS, puts_aside=True)
    assert done.factor == pytest.approx(factor)
    total = float(model(ROWS).detach().sum())
    assert model.heat.grad is not None
    assert float(model.heat.grad) == pytest.approx(factor * total)
    weight = torch.zeros(1, 2) if is_cut else factor * 2 * ROWS.sum(0, keepdim=True)
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, weight)


def test_step_sees_gradients_where_none_is_put_aside() -> None:
    model = Heated(is_cut=True)
    target = Target(name="target.py", model=model, batch=ROWS, train_step=_clipped)
    training.step(target, RunSpec(mode="single"), model, ROWS)
    assert model.heat.grad is not None
    assert float(model.heat.grad) == pytest.approx(0.5)
