"""The losses: exact numbers, layouts, correct forms, and built-in checks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import log
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ddpcheck.suite.zoo import cases, matrix
from ddpcheck.target import losses
from ddpcheck.target.losses import BUILTIN, LOSSES

# Chances 1/4 and 3/4: cross entropies log(4) and log(4 / 3).
LOGITS = torch.tensor([[0, log(3)]] * 3, dtype=torch.float64)
EVEN = torch.zeros(4, 2, dtype=torch.float64)


@pytest.fixture
def group_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real gloo group with this process alone: the code path of a rank."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


def _output(model: str, loss: str) -> tuple[Tensor, Tensor]:
    target = cases.target(model, loss)
    inputs, targets = target.batch_at(0)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    output: Tensor = target.build().double()(inputs)
    return output, targets.double() if targets.is_floating_point() else targets


def test_masked_counts_valid_entries_only() -> None:
    loss = losses.masked(LOGITS, torch.tensor([0, -100, 1]))
    assert loss.item() == pytest.approx((log(4) + log(4 / 3)) / 2, rel=1e-14)


def test_masked_leaves_out_nan_and_ignored_values() -> None:
    output = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    loss = losses.masked(output, torch.tensor([0.0, float("nan"), -100.0, 2.0]))
    loss.backward()
    assert loss.item() == (1 + 4) / 2
    assert output.grad is not None
    assert output.grad.tolist() == [1.0, 0.0, 0.0, 2.0]


def test_class_weighted_divides_by_the_sum_of_target_weights() -> None:
    loss = losses.class_weighted(LOGITS, torch.tensor([0, 1, 1]))
    wanted = (0.5 * log(4) + 2 * log(4 / 3)) / 2.5
    assert loss.item() == pytest.approx(wanted, rel=1e-14)


def test_iou_sums_over_the_batch_before_it_divides() -> None:
    targets = torch.tensor([0, 0, 1, 1])
    whole = losses.iou(EVEN, targets, smooth=0).item()
    first = losses.iou(EVEN[:3], targets[:3], smooth=0).item()
    second = losses.iou(EVEN[3:], targets[3:], smooth=0).item()
    assert whole == pytest.approx(2 / 3, rel=1e-14)
    assert first == pytest.approx(1 - (0.4 + 0.25) / 2, rel=1e-14)
    assert second == pytest.approx(1 - (0 + 0.5) / 2, rel=1e-14)


def test_dice_of_an_asymmetric_batch_is_exact() -> None:
    loss = losses.dice(EVEN[:3], torch.tensor([0, 0, 1]), smooth=0)
    assert loss.item() == pytest.approx(1 - (4 / 7 + 2 / 5) / 2, rel=1e-14)


def test_iou_leaves_out_ignored_entries() -> None:
    targets = torch.tensor([0, 0, 1, -100])
    loss = losses.iou(EVEN, targets, smooth=0)
    assert loss.item() == pytest.approx(1 - (0.4 + 0.25) / 2, rel=1e-14)


@pytest.mark.parametrize("name", list(LOSSES))
def test_classes_last_equals_classes_first(name: str) -> None:
    output, targets = _output("unet", name)
    first = LOSSES[name](output, targets)
    last = LOSSES[name](output.movedim(1, -1), targets)
    assert (first - last).abs() < 1e-13 * first.abs()


@pytest.mark.parametrize(("model", "loss"), matrix.CASES)
def test_correct_form_without_a_group_equals_the_plain_form(
    model: str, loss: str
) -> None:
    with torch.random.fork_rng():  # dropout draws
        output, targets = _output(model, loss)
    plain = LOSSES[loss.removesuffix("_global")]
    assert torch.equal(LOSSES[loss](output, targets), plain(output, targets))


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("model", ["regression", "unet", "transformer"])
def test_correct_form_in_a_group_of_one_equals_the_plain_form(model: str) -> None:
    for loss in (name for m, name in matrix.CASES if m == model):
        output, targets = _output(model, loss)
        plain = LOSSES[loss.removesuffix("_global")]
        correct, wanted = LOSSES[loss](output, targets), plain(output, targets)
        wanted_grad = torch.autograd.grad(wanted, output, retain_graph=True)[0]
        grad = torch.autograd.grad(correct, output, retain_graph=True)[0]
        assert (correct - wanted).abs() < 1e-13 * wanted.abs(), loss
        assert (grad - wanted_grad).norm() < 1e-13 * wanted_grad.norm(), loss


def test_masked_global_of_an_empty_batch_is_zero_in_a_group(
    group_of_one: None,  # noqa: ARG001
) -> None:
    loss = losses.masked_global(EVEN, torch.full((4,), -100))
    assert loss.item() == 0


@pytest.mark.parametrize(
    ("name", "output", "target", "message"),
    [
        (
            "mean",
            torch.zeros(4, 3),
            torch.zeros(4, 2),
            "loss 'mean' needs a target of the output's shape (4, 3), "
            "found float32 of shape (4, 2)",
        ),
        (
            "sum",
            torch.zeros(4, 3),
            torch.zeros(5, dtype=torch.int64),
            "loss 'sum': class targets of shape (5) need logits of shape [B, C, ...] "
            "or [B, ..., C], found (4, 3)",
        ),
        (
            "masked",
            torch.zeros(4, 1),
            torch.zeros(4, dtype=torch.int64),
            "loss 'masked' needs logits of 2 or more classes, "
            "found float32 of shape (4, 1)",
        ),
        (
            "iou",
            torch.zeros(4, 3),
            torch.tensor([0, 1, 3, -100]),
            "loss 'iou' needs classes 0 to 2, one per logit, found targets from 0 to 3",
        ),
        (
            "iou",
            torch.zeros(2),
            torch.tensor([-0.5, 3.0]),
            "loss 'iou' needs class targets or float targets from 0 to 1, "
            "found values from -0.5 to 3",
        ),
        (
            "mean",
            (torch.zeros(2),),
            torch.zeros(2),
            "loss 'mean' needs a float tensor as output, found tuple",
        ),
        (
            "mean",
            torch.zeros(2),
            None,
            "loss 'mean' needs a tensor as target, found NoneType",
        ),
    ],
)
def test_builtin_that_does_not_fit_shows_why(
    name: str, output: Tensor, target: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=r"^loss ") as caught:
        BUILTIN[name](output, target)
    assert str(caught.value) == message


def test_builtin_takes_a_target_without_the_outputs_dimension_of_one() -> None:
    loss = BUILTIN["sum"](torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0]))
    assert loss.item() == 1 + 4


def test_builtin_iou_takes_booleans_and_small_integers() -> None:
    flags = torch.tensor([True, False, False])
    loss = BUILTIN["iou"](torch.zeros(3), flags)
    assert loss.item() == pytest.approx(1 - 0.5 / 2, rel=1e-5)
    labels = torch.tensor([0, 0, 1, 1], dtype=torch.int32)
    assert BUILTIN["iou"](EVEN, labels).item() == pytest.approx(2 / 3, rel=1e-5)


@pytest.mark.parametrize("name", list(BUILTIN))
def test_builtin_equals_the_loss_of_its_name(name: str) -> None:
    output, targets = _output("transformer", name)
    assert torch.equal(BUILTIN[name](output, targets), LOSSES[name](output, targets))
