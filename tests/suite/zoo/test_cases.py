"""The matrix, the targets by name, and the predicted trainings."""

from __future__ import annotations

import pytest
import torch

from ddpcheck.suite.zoo import cases, matrix, models
from ddpcheck.target.losses import LOSSES
from ddpcheck.target.target import TargetRef, load


def _train(model: str, loss: str, **changes: object) -> list[tuple[cases.Named, ...]]:
    settings = {
        "batch_norm": "asis",
        "mode": "ddp",
        "world_size": 2,
        "steps": 3,
        "dtype": torch.float64,
        **changes,
    }
    return list(cases.predicted_training(model, loss, **settings))  # type: ignore[arg-type]


def test_cases_cover_every_model_and_every_loss_once() -> None:
    assert len(set(matrix.CASES)) == len(matrix.CASES)
    assert {model for model, _ in matrix.CASES} == set(models.MODELS)
    assert {loss for _, loss in matrix.CASES} == set(LOSSES)


def test_batch_norm_modes_are_those_that_change_the_model() -> None:
    assert {name for name, modes in matrix.BATCH_NORM_MODES.items() if modes[1:]} == {
        "conv_bn",
        "bn_dropout",
    }
    assert matrix.BATCH_NORM_MODES["conv_bn"] == matrix.BATCH_NORMS


def test_target_is_made_by_factory_from_its_names() -> None:
    ref = TargetRef(
        factory="ddpcheck.suite.zoo.cases:target",
        arguments=(("model", "unet"), ("loss", "iou_global")),
    )
    target = load(ref)
    assert target.name == "unet-iou_global"
    assert target.loss is LOSSES["iou_global"]
    assert target.wrap is None
    inputs, targets = target.batch_at(1)
    assert inputs.shape == (48, 2, 8, 8)
    assert targets.shape == (48, 8, 8)


def test_target_with_unused_parameters_has_a_wrap() -> None:
    wrapped = [m for m in models.MODELS if cases.target(m, "mean").wrap]
    assert wrapped == ["unused_head"]


@pytest.mark.parametrize("model", list(models.MODELS))
def test_training_at_world_size_one_is_plain_training(model: str) -> None:
    target = cases.target(model, "masked")
    module = models.silence_dropout(target.build()).double()
    assert target.optimizer is not None
    assert target.loss is not None
    optimizer = target.optimizer(module.parameters())
    for step, (gradients, weights) in enumerate(_train(model, "masked", world_size=1)):
        inputs, targets = (
            t.double() if t.is_floating_point() else t for t in target.batch_at(step)
        )
        optimizer.zero_grad()
        target.loss(module(inputs), targets).backward()
        optimizer.step()
        named = dict(module.named_parameters())
        assert list(weights) == list(named)
        assert list(gradients) == [n for n, p in named.items() if p.grad is not None]
        for name, weight in weights.items():
            assert (weight - named[name]).abs().max() < 1e-12, name


def test_training_weights_are_copies_of_their_step() -> None:
    (_, first), (gradients, second), _ = _train("mlp", "mean")
    stepped = first["0.weight"] - 0.1 * gradients["0.weight"]
    assert (stepped - second["0.weight"]).abs().max() < 1e-15


@pytest.mark.parametrize("loss", list(LOSSES))
def test_training_in_float32_follows_float64(loss: str) -> None:
    narrow = _train("unet", loss, dtype=torch.float32)
    wide = _train("unet", loss)
    for (found, _), (wanted, _) in zip(narrow, wide, strict=True):
        scale = max(gradient.abs().max() for gradient in wanted.values())
        for name, gradient in found.items():
            assert gradient.dtype == torch.float32
            assert (gradient - wanted[name]).abs().max() < 1e-4 * scale, name


@pytest.mark.usefixtures("float64_default")
def test_training_under_float64_default_is_the_same() -> None:
    wide = _train("conv_bn", "masked")
    torch.set_default_dtype(torch.float32)
    narrow = _train("conv_bn", "masked")
    for (_, found), (_, wanted) in zip(wide, narrow, strict=True):
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
