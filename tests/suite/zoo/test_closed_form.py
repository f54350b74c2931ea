"""The output gradients: exact numbers, and autograd over hand-made shards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddpcheck.suite.zoo import cases, matrix
from ddpcheck.suite.zoo.closed_form import output_gradient
from ddpcheck.target.losses import LOSSES

# Chances of 1/2: q - y is (-1/2, 1/2) for class 0 and (1/2, -1/2) for class 1.
EVEN = torch.zeros(4, 2, dtype=torch.float64)
PLAIN = [(m, name) for m, name in matrix.CASES if not name.endswith("_global")]


def _first_logit(loss: str, targets: list[int], world_size: int) -> list[float]:
    gradient = output_gradient(
        loss, EVEN[: len(targets)], torch.tensor(targets), world_size=world_size
    )
    assert gradient.sum(1).abs().max() < 1e-15
    return gradient[:, 0].tolist()


def test_masked_divides_by_each_ranks_own_count() -> None:
    targets = [0, -100, 1, 1]
    wanted = [-0.5 / 2, 0, 0.5 / 4, 0.5 / 4]
    assert _first_logit("masked", targets, 2) == pytest.approx(wanted, rel=1e-15)


def test_masked_global_divides_by_the_global_count() -> None:
    targets = [0, -100, 1, 1]
    wanted = [-0.5 / 3, 0, 0.5 / 3, 0.5 / 3]
    assert _first_logit("masked_global", targets, 2) == pytest.approx(wanted, rel=1e-15)


def test_class_weighted_divides_by_each_ranks_sum_of_weights() -> None:
    targets = [0, 1, 1, 1]  # weights 1/2, 1 and 1, 1: sums 3/2 and 2
    wanted = [-0.25 / 3, 0.5 / 3, 0.5 / 4, 0.5 / 4]
    assert _first_logit("class_weighted", targets, 2) == pytest.approx(
        wanted, rel=1e-15
    )


def test_sum_and_mean_divide_by_world_size_and_batch() -> None:
    targets = [0, 1, 1, 1]
    assert _first_logit("sum", targets, 2) == [-0.25, 0.25, 0.25, 0.25]
    assert _first_logit("mean", targets, 2) == [-0.125, 0.125, 0.125, 0.125]


def test_iou_averages_the_gradients_of_the_shards() -> None:
    # Class 0, one sample: I = 1/2, U = 1, df/dq = 1 there and 0 for the absent class.
    alone = _first_logit("iou", [0], 1)
    halves = _first_logit("iou", [0, 1], 2)
    assert alone == pytest.approx([-0.125], rel=1e-5)
    assert halves == pytest.approx([-0.0625, 0.0625], rel=1e-5)


@pytest.mark.parametrize("world_size", [1, 3, 5])
@pytest.mark.parametrize(("model", "loss"), PLAIN)
def test_formula_equals_autograd_over_shards_uneven_ones_included(
    model: str, loss: str, world_size: int
) -> None:
    _, targets = cases.target(model, loss).batch_at(0)
    targets = targets.double() if targets.is_floating_point() else targets
    outputs = _outputs_for(model, targets)
    shards = outputs.tensor_split(world_size), targets.tensor_split(world_size)
    ranks = [LOSSES[loss](o, t) for o, t in zip(*shards, strict=True)]
    (wanted,) = torch.autograd.grad(torch.stack(ranks).mean(), outputs)
    found = output_gradient(loss, outputs, targets, world_size=world_size)
    assert (found - wanted).norm() < 1e-13 * wanted.norm()


def _outputs_for(model: str, targets: Tensor) -> Tensor:
    """Returns random outputs in the layout of the model."""
    shape = {
        "regression": targets.shape,
        "unet": (len(targets), 4, *targets.shape[1:]),
        "transformer": (*targets.shape, 7),
        "tied": (*targets.shape, 7),
    }.get(model, (len(targets), 4))
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    return drawn.requires_grad_()
