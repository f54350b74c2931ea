"""Backward from a multiple: all gradients are that multiple, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ddpcheck.run.interventions.gradients import backwards


def _leaf() -> Tensor:
    return torch.tensor([2.0, 5.0], dtype=torch.float64, requires_grad=True)


def _tripled(backward: Any, *args: Any, **kwargs: Any) -> None:
    backwards.multiplied(backward, 3.0)(*args, **kwargs)


def test_loss_starts_from_the_factor() -> None:
    x = _leaf()
    loss = x.square().sum()
    seen: list[float] = []
    loss.register_hook(lambda grad: seen.append(grad.item()))
    with backwards.outermost(_tripled):
        loss.backward(retain_graph=True)
    assert x.grad is not None
    assert x.grad.tolist() == [12.0, 30.0]
    assert loss.item() == 29.0
    loss.backward()  # from 1 again
    assert x.grad.tolist() == [16.0, 40.0]
    assert seen == [1.0, 1.0]


def test_given_gradients_are_multiplied() -> None:
    x = _leaf()
    with backwards.outermost(_tripled):
        x.square().backward(torch.tensor([1.0, -1.0], dtype=torch.float64))
    assert x.grad is not None
    assert x.grad.tolist() == [12.0, -30.0]


def test_gradients_may_go_by_name() -> None:
    x = _leaf()
    with backwards.outermost(_tripled):
        given = torch.ones_like(x)
        torch.autograd.backward(tensors=x.square(), grad_tensors=given)
        torch.autograd.backward([x.square()], grad_tensors=[given])
    assert x.grad is not None
    assert x.grad.tolist() == [24.0, 60.0]


@pytest.mark.parametrize("several", [False, True])
def test_several_elements_without_a_gradient_fail_as_they_do_alone(
    several: bool,  # noqa: FBT001
) -> None:
    x = _leaf()
    with (
        pytest.raises(RuntimeError, match="only for scalar outputs"),
        backwards.outermost(_tripled),
    ):
        torch.autograd.backward([x.square()] if several else x.square())


def test_loss_that_depends_on_another_is_multiplied_once() -> None:
    x = _leaf()
    first = x.sum()
    second = first.square()  # 49; its gradient is 14
    with backwards.outermost(_tripled):
        torch.autograd.backward([first, second])
    assert x.grad is not None
    assert x.grad.tolist() == [45.0, 45.0]


def test_one_loss_in_a_list_is_multiplied() -> None:
    x = _leaf()
    with backwards.outermost(_tripled):
        torch.autograd.backward([x.sum()], inputs=[x])
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]


class _Inner(torch.autograd.Function):
    """Calls backward within backward, as a reentrant checkpoint does."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        """Returns the values."""
        return x.detach().clone()

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        """Returns the gradient of the square of ones, 2, times that of the output."""
        with torch.enable_grad():
            ones = torch.ones_like(grad).requires_grad_()
            ones.square().sum().backward()
        assert ones.grad is not None
        return grad * ones.grad


def test_backward_within_a_backward_is_left_alone() -> None:
    x = _leaf()
    with backwards.outermost(_tripled):
        inner: Any = _Inner
        inner.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0]


def test_loss_without_a_graph_fails_as_it_does_alone() -> None:
    before = torch.autograd.backward
    with (
        pytest.raises(RuntimeError, match="does not require grad"),
        backwards.outermost(_tripled),
    ):
        torch.tensor(1.0).backward()
    assert torch.autograd.backward is before
