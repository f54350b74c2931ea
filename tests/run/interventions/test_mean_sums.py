"""Sums over ranks that carry gradients are means, gradient included; others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import Tensor

from ddpcheck.run.interventions.mean_sums import averaged_gradient_sums

# Since torch 2.13 it says of itself that it is deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed.nn:FutureWarning"),
    pytest.mark.usefixtures("three_alike"),
]
MAX = dist.ReduceOp.MAX


class _Own(torch.autograd.Function):
    """Sums over ranks forward and back, as people write it."""

    @staticmethod
    def forward(_: Any, tensor: Tensor, op: Any) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total, op=op)
        return total

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Any:
        total = grad.clone()
        dist.all_reduce(total)
        return total, None


def _own(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
    made: Tensor = _Own.apply(tensor, op)  # type: ignore[no-untyped-call]
    return made


@pytest.mark.parametrize(
    ("reduced", "value", "slope"),
    [
        (dnn.all_reduce, [2.0, 5.0], [4.0, 10.0]),
        (_own, [2.0, 5.0], [4.0, 10.0]),
        (lambda t: _own(t, MAX), [2.0, 5.0], [12.0, 30.0]),  # no sum
        (lambda t: t.abs(), [2.0, 5.0], [4.0, 10.0]),
    ],
    ids=["torch's", "own", "maximum", "nothing reduced"],
)
def test_sum_with_a_gradient_is_a_mean(
    reduced: Callable[[Tensor], Tensor], value: list[float], slope: list[float]
) -> None:
    given = torch.tensor([2.0, 5.0], requires_grad=True)
    with averaged_gradient_sums():
        found = reduced(given)
        found.square().sum().backward()
    assert found.tolist() == value
    assert given.grad is not None
    assert given.grad.tolist() == pytest.approx(slope)


def test_sum_without_a_gradient_stays_and_so_do_functions_afterwards() -> None:
    plain = torch.tensor([2.0, 5.0])
    reduce, apply = dist.all_reduce, torch.autograd.Function.__dict__["apply"]
    with averaged_gradient_sums():
        assert dnn.all_reduce(plain.clone()).tolist() == [6.0, 15.0]
        assert _own(plain).tolist() == [6.0, 15.0]
    assert dist.all_reduce is reduce
    assert torch.autograd.Function.__dict__["apply"] is apply
    given = plain.clone().requires_grad_()
    assert _own(given).tolist() == [6.0, 15.0]
