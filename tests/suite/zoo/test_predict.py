"""The predictions: they differ where they must and are exact where they must be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ddpcheck.suite.zoo import cases, matrix, models, predict
from ddpcheck.suite.zoo.predict import output_gradient
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
def test_prediction_differs_from_one_process_where_expected_shows_it(
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
def test_prediction_of_a_server_differs_where_expected_shows_it(
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
