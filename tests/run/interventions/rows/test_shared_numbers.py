"""Ranks read the mean of their numbers, whenever they read a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddpcheck.run.interventions.acts import Acts
from ddpcheck.run.interventions.rows.shared_numbers import numbers_together


@pytest.fixture(autouse=True)
def _another_rank_with_three_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a second rank: its numbers are larger by 3, its conditions hold."""

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        if op == dist.ReduceOp.MAX:  # of a number and its negative
            is_condition = tensor.tolist() in ([0.0, 0.0], [1.0, -1.0])
            theirs = 1.0 if is_condition else float(tensor[0]) + 3
            tensor.copy_(
                torch.maximum(tensor, torch.tensor([theirs, -theirs]).view_as(tensor))
            )
        else:
            tensor.add_(tensor + 3)

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda: torch.tensor(2.0).item(), 3.5),
        (lambda: float(torch.tensor([2.0])), 3.5),
        (lambda: int(torch.tensor(5)), 6),  # 6.5, to the even one
        (lambda: bool(torch.tensor(2.0) > 3), True),
        (lambda: [torch.tensor(2.0) < 3], [False]),
        (lambda: bool(torch.tensor(0.0).isinf()), True),
        (lambda: torch.tensor([2.0, 5.0]).tolist(), [2.0, 5.0]),
        (lambda: list(torch.tensor([2.0, 5.0]) > 3), [False, True]),
        (lambda: [torch.tensor(2.0) + 1], [3.0]),
        (lambda: torch.tensor(1 + 2j).item(), 1 + 2j),
    ],
)
def test_number_is_that_of_all_ranks(ask: Callable[[], Any], expected: Any) -> None:
    with numbers_together(Acts()):
        found = ask()
    assert found == expected


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda: int(torch.tensor(5)), 13),
        (lambda: torch.tensor(2.0).item(), 7.0),
        (lambda: float(torch.tensor([2.5])), 4.0),  # the mean, as no count
        (lambda: [torch.tensor(6) > 14], [True]),
        (lambda: bool(torch.tensor(0.0).isinf()), True),
    ],
)
def test_whole_number_is_the_sum_over_ranks(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], Any], expected: Any
) -> None:
    mean = dist.all_reduce

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        if op == dist.ReduceOp.MAX or tensor.numel() == 1:
            mean(tensor, op)
            return
        tensor.mul_(2)[0] += 3  # the number; then whether it is no whole one

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with numbers_together(Acts(), sums=True):
        found = ask()
    assert found == expected


def test_loss_is_the_mean_once_its_backward_has_ended() -> None:
    weight, seen = torch.tensor(2.0, requires_grad=True), []
    weight.register_hook(lambda grad: seen.append(grad.item()))
    with numbers_together(Acts()):
        loss = weight.exp()
        before = loss.detach().clone()
        loss.backward()
        torch.autograd.backward([3 * weight])
    assert loss.tolist() == pytest.approx(float(before) + 1.5)
    assert seen == pytest.approx([float(before), 3.0])  # as the rank has them


def test_all_is_as_before_afterwards() -> None:
    backward = torch.autograd.backward
    with numbers_together(Acts()):
        assert torch.autograd.backward is not backward
    assert torch.autograd.backward is backward
    assert torch.tensor(2.0).item() == 2.0


def test_line_that_reads_another_number_than_all_ranks_is_noted_with_it() -> None:
    acts = Acts()
    with numbers_together(acts):
        torch.tensor(2.0).item()
        first = torch.tensor(4.0).item()  # is read 1 too low
    assert first == 5.5
    assert [(act.by, act.code, act.value) for act in acts.noted] == [
        ("MEAN_OF_NUMBERS", "torch.tensor(2.0).item()", 2.0),
        (
            "MEAN_OF_NUMBERS",
            "first = torch.tensor(4.0).item()  # is read 1 too low",
            4.0,
        ),
    ]
