"""The predictions: they differ where they must and are exact where they must be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.suite.zoo import cases, matrix, models, predict
from ddpcheck.target.losses import LOSSES

# DP has one loss on all outputs: one world size shows what batch norm does there.
CELLS = (*(("ddp", size) for size in matrix.WORLD_SIZES), ("dp", 3))
ROWS = [
    (model, loss, batch_norm)
    for model, loss in matrix.CASES
    for batch_norm in matrix.BATCH_NORM_MODES[model]
    if batch_norm != "asis" or not models.MODELS[model].batch_norm  # as "local"
]


def _cell(model: str, loss: str, batch_norm: str) -> tuple[nn.Module, Tensor, Tensor]:
    target = cases.target(model, loss)
    module = models.silence_dropout(target.build()).double()
    if batch_norm == "frozen":
        models.freeze_batch_norm(module)
    inputs, targets = (
        part.double() if part.is_floating_point() else part
        for part in target.batch_at(0)
    )
    return module, inputs, targets


def _flat(gradients: list[Tensor | None]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients if g is not None])


def _one_process(module: nn.Module, loss: Tensor) -> Tensor:
    parameters = list(module.parameters())
    return _flat(list(torch.autograd.grad(loss, parameters, allow_unused=True)))


@pytest.mark.parametrize(("model", "loss", "batch_norm"), ROWS)
def test_prediction_differs_from_one_process_where_expected_says_so(
    model: str, loss: str, batch_norm: str
) -> None:
    module, inputs, targets = _cell(model, loss, batch_norm)
    reference = _one_process(module, LOSSES[loss](module(inputs), targets))
    for mode, world_size in CELLS:
        local = matrix.is_batch_norm_local(model, batch_norm, mode)
        predicted = predict.predicted_gradients(
            module,
            loss,
            inputs,
            targets,
            world_size=world_size,
            batch_norm_local=local,
            mode=mode,
        )
        rel_diff = (_flat(predicted) - reference).norm() / reference.norm()
        verdict = matrix.expected(model, loss, batch_norm, mode, world_size)
        differs = verdict == "differs"
        assert rel_diff > 1e-3 if differs else rel_diff < 1e-12, (mode, world_size)


@pytest.mark.parametrize("reduce", matrix.REDUCTIONS)
@pytest.mark.parametrize("loss", matrix.CLASS_LOSSES)
def test_prediction_of_a_server_differs_where_expected_says_so(
    loss: str, reduce: str
) -> None:
    module, inputs, targets = _cell("mlp", loss, "asis")
    reference = _one_process(module, LOSSES[loss](module(inputs), targets))
    for world_size in matrix.SERVER_WORLD_SIZES:
        predicted = predict.predicted_gradients(
            module,
            loss,
            inputs,
            targets,
            world_size=world_size,
            batch_norm_local=False,
            mode="ps",
            reduce=reduce,
        )
        rel_diff = (_flat(predicted) - reference).norm() / reference.norm()
        verdict = matrix.expected("mlp", loss, "asis", "ps", world_size, reduce)
        assert rel_diff > 1e-3 if verdict == "differs" else rel_diff < 1e-12


@pytest.mark.parametrize("world_size", matrix.WORLD_SIZES)
def test_sum_is_one_over_world_size_of_the_reference(world_size: int) -> None:
    module, inputs, targets = _cell("unet", "sum", "asis")
    reference = _one_process(module, LOSSES["sum"](module(inputs), targets))
    predicted = predict.predicted_gradients(
        module,
        "sum",
        inputs,
        targets,
        world_size=world_size,
        batch_norm_local=False,
        mode="ddp",
    )
    scaled = world_size * _flat(predicted)
    assert (scaled - reference).norm() < 1e-13 * reference.norm()


@pytest.mark.parametrize("loss", ["mean", "masked", "iou", "dice"])
@pytest.mark.parametrize("model", ["conv_bn", "bn_dropout"])
def test_local_batch_norm_is_the_mean_over_forwards_of_shards(
    model: str, loss: str
) -> None:
    module, inputs, targets = _cell(model, loss, "local")
    shards = zip(inputs.tensor_split(3), targets.tensor_split(3), strict=True)
    ranks = [LOSSES[loss](module(part), truth) for part, truth in shards]
    reference = _one_process(module, torch.stack(ranks).mean())
    predicted = predict.predicted_gradients(
        module,
        loss,
        inputs,
        targets,
        world_size=3,
        batch_norm_local=True,
        mode="ddp",
    )
    assert (_flat(predicted) - reference).norm() < 1e-12 * reference.norm()


def test_prediction_leaves_running_statistics_alone() -> None:
    module, inputs, targets = _cell("conv_bn", "mean", "local")
    before = [buffer.clone() for buffer in module.buffers()]
    predict.predicted_gradients(
        module,
        "mean",
        inputs,
        targets,
        world_size=2,
        batch_norm_local=True,
        mode="dp",
    )
    assert all(map(torch.equal, before, module.buffers()))


@pytest.mark.parametrize(
    ("model", "loss", "batch_norm", "mode", "world_size", "verdict"),
    [
        ("mlp", "sum", "asis", "ddp", 1, "equal"),
        ("mlp", "sum", "asis", "ddp", 2, "differs"),
        ("mlp", "sum", "asis", "dp", 2, "equal"),
        ("mlp", "sum_global", "asis", "ddp", 2, "equal"),
        ("conv_bn", "mean", "asis", "ddp", 2, "differs"),
        ("conv_bn", "mean", "asis", "dp", 2, "differs"),
        ("conv_bn", "mean", "sync", "ddp", 2, "equal"),
        ("conv_bn", "mean", "sync", "dp", 2, "differs"),
        ("conv_bn", "mean", "frozen", "dp", 2, "equal"),
        ("conv_bn", "iou", "frozen", "ddp", 2, "differs"),
        ("conv_bn", "mean", "local", "ddp", 1, "equal"),
    ],
)
def test_expected_follows_theory(
    model: str, loss: str, batch_norm: str, mode: str, world_size: int, verdict: str
) -> None:
    found = matrix.expected(model, loss, batch_norm, mode, world_size)
    assert found == verdict


def test_expected_of_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"^'fsdp' is none of dp, ddp, ps$"):
        matrix.expected("mlp", "mean", "asis", "fsdp", 1)
