"""The models: seeded, the same in every dtype, and able to learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddpcheck.suite.zoo import cases, models

ALL = tuple(models.MODELS)


@pytest.mark.parametrize("name", ALL)
def test_model_trained_on_one_batch_lowers_its_loss(name: str) -> None:
    target = cases.target(name, "mean")
    model = models.silence_dropout(target.build()).double()
    inputs, targets = (
        t.double() if t.is_floating_point() else t for t in target.batch_at(0)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        assert target.loss is not None
        loss = target.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.01


@pytest.mark.parametrize("name", ALL)
def test_build_twice_gives_equal_state(name: str) -> None:
    first, second = models.build(name).state_dict(), models.build(name).state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", ALL)
def test_build_leaves_global_random_state(name: str) -> None:
    before = torch.get_rng_state()
    models.build(name)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.usefixtures("float64_default")
@pytest.mark.parametrize("name", ALL)
def test_build_under_float64_default_gives_the_float32_values(name: str) -> None:
    wide = models.build(name).state_dict()
    torch.set_default_dtype(torch.float32)
    narrow = models.build(name).double().state_dict()
    dtypes = {tensor.dtype for tensor in wide.values()}
    assert dtypes <= {torch.float64, torch.int64}
    assert all(torch.equal(wide[key], narrow[key]) for key in narrow)


def test_unused_head_gets_no_gradient() -> None:
    model = models.build("unused_head")
    model(torch.ones(3, models.NUM_FEATURES)).sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == ["unused.weight", "unused.bias"]


def test_tied_has_one_parameter_for_both_weights() -> None:
    names = [name for name, _ in models.build("tied").named_parameters()]
    assert names == ["embed.weight", "mix.weight", "mix.bias"]


def test_batch_norm_flag_matches_the_modules() -> None:
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    for name, spec in models.MODELS.items():
        found = any(
            isinstance(module, kinds) for module in models.build(name).modules()
        )
        assert found == spec.batch_norm, name


def test_freeze_batch_norm_makes_samples_independent() -> None:
    model = models.freeze_batch_norm(models.build("conv_bn").double())
    generator = torch.Generator().manual_seed(6)
    shape = (6, models.IMAGE_CHANNELS, 8, 8)
    images = torch.randn(shape, generator=generator, dtype=torch.float64)
    together, alone = model(images), model(images[:2])
    assert (together[:2] - alone).abs().max() < 1e-12
