"""Sums over ranks that carry gradients are means, gradient included; others stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch import Tensor

from ddpcheck.run.interventions.collectives.reductions import (
    averaged_gradient_sums,
    averaged_sums,
)

# Deprecated since torch 2.13.
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


@pytest.fixture(autouse=True)
def _torchs_sum_has_three_parts(
    monkeypatch: pytest.MonkeyPatch,
    three_alike: None,  # noqa: ARG001
) -> None:
    monkeypatch.setattr(dnn, "all_reduce", lambda t, *_: 3 * t)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        del ctx  # as functions with setup_context have none
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad


def _summed(tensor: Tensor) -> Tensor:
    made: Tensor = _Summed.apply(tensor)  # type: ignore[no-untyped-call]
    return made


def _reduced(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
    dist.all_reduce(tensor, op=op)
    return tensor


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda: _reduced(torch.tensor([2.0, 5.0])), [2.0, 5.0]),
        (lambda: _reduced(torch.tensor([2, 5])) * 1, [2.0, 5.0]),
        (lambda: _reduced(torch.tensor([2, 5])).tolist(), [2.0, 5.0]),
        (lambda: 12 / _reduced(torch.tensor([2, 5])), [6.0, 2.4]),
        (lambda: torch.ones(2).div_(_reduced(torch.tensor([2, 5]))), [0.5, 0.2]),
        (lambda: dnn.all_reduce(torch.tensor([2, 5])) + 0, [2.0, 5.0]),
        # It is the sum to what asks how many there are.
        (lambda: _reduced(torch.tensor([2, 5])) > 14, [False, True]),
        (lambda: _reduced(torch.tensor([2, 5]), dist.ReduceOp.MAX) * 1, [2, 5]),
        (lambda: _summed(torch.tensor([2.0, 5.0])), [6.0, 15.0]),
        (
            lambda: dnn.all_reduce(torch.tensor([2.0, 5.0], requires_grad=True)),
            [6.0, 15.0],
        ),
    ],
    ids=[
        "numbers",
        "counts",
        "counts as numbers",
        "under a count",
        "into another",
        "by a function",
        "compared",
        "no sum",
        "within an autograd function",
        "with a gradient",
    ],
)
def test_sum_of_the_ranks_is_read_as_their_mean(value: Any, expected: Any) -> None:
    with averaged_sums():
        found = value()
        told = found.tolist() if isinstance(found, Tensor) else found
        assert told == pytest.approx(expected)


def test_what_is_written_into_a_count_stays_a_count() -> None:
    with averaged_sums():
        count = _reduced(torch.tensor([2, 5]))
        count += 3
        assert (count * 1).tolist() == [3.0, 6.0]  # of 9 and 18, over three ranks
    assert count.tolist() == [9, 18]
