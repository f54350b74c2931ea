"""Synchronised batch norm on real ranks is batch norm of the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.model import batch_norm
from ddpcheck.run.model.batch_norm import SynchronizedBatchNorm
from tests.run import jobs

CASES = [
    pytest.param((12, 3), [4, 4, 4], True, 0.1, id="1d even"),
    pytest.param((15, 3), [1, 10, 4], True, 0.1, id="1d uneven"),
    pytest.param((16, 3), [1, 2, 3, 4, 6], True, None, id="1d cumulative"),
    pytest.param((9, 3, 2, 4), [2, 6, 1], True, 0.3, id="2d uneven"),
    pytest.param((20, 3, 2), [1, 2, 3, 8, 1, 1, 4], False, 0.1, id="no affine"),
]
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}


def _run(pool: Pool, world_size: int, name: str, **arguments: Any) -> list[Any]:
    job = Job(function=f"tests.run.jobs:{name}", arguments=arguments)
    outcomes = pool.run(job, world_size)
    assert [o.kind for o in outcomes] == ["done"] * world_size, outcomes
    return [o.value for o in outcomes]


def _tensor(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _assert_close(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert found.shape == expected.shape, what
    scale = max(1.0, float(expected.abs().max()))
    assert float((found - expected).abs().max()) < 1e-12 * scale, what


@pytest.mark.parametrize(("shape", "sizes", "affine", "momentum"), CASES)
def test_ranks_equal_batch_norm_of_the_whole_batch(
    pool: Pool,
    shape: tuple[int, ...],
    sizes: list[int],
    affine: bool,  # noqa: FBT001
    momentum: float | None,
) -> None:
    norm = PLAIN[len(shape)](jobs.CHANNELS, affine=affine, momentum=momentum)
    norm = jobs.dressed(norm, affine=affine)
    whole = jobs.trained(norm, shape, (0, shape[0]), affine=affine)
    ranks = _run(
        pool,
        len(sizes),
        "synchronized",
        shape=shape,
        sizes=sizes,
        affine=affine,
        momentum=momentum,
    )
    for name in ("outputs", "input grads"):
        for step in range(jobs.STEPS):
            found = torch.cat([_tensor(rank[name][step]) for rank in ranks])
            _assert_close(found, _tensor(whole[name][step]), f"{name} at step {step}")
    for name in ("weight grad", "bias grad") if affine else ():
        found = sum((_tensor(rank[name]) for rank in ranks), torch.zeros(3))
        _assert_close(found, _tensor(whole[name]), name)
    for number, rank in enumerate(ranks):
        for found, expected in zip(rank["buffers"], whole["buffers"], strict=True):
            _assert_close(_tensor(found), _tensor(expected), f"buffer of {number}")


def test_eval_mode_uses_running_statistics_and_no_collective(pool: Pool) -> None:
    assert _run(pool, 2, "evaluated") == [True, True]


def test_without_a_group_it_is_plain_batch_norm() -> None:
    inputs, _ = jobs.data((6, jobs.CHANNELS), 0)
    norm = jobs.dressed(SynchronizedBatchNorm(jobs.CHANNELS), affine=True)
    plain = jobs.dressed(nn.BatchNorm1d(jobs.CHANNELS), affine=True)
    assert torch.equal(norm(inputs), plain(inputs))


def test_one_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 2 dimensions, found 1"):
        SynchronizedBatchNorm(3)(torch.zeros(3))


def _model() -> nn.Sequential:
    shared = nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(4, 4), shared, nn.Sequential(nn.ReLU(), shared))


def test_sync_replaces_a_shared_module_once(seeded: None) -> None:  # noqa: ARG001
    model = _model()
    weight = model[1].weight
    made: Any = batch_norm.apply(model, "sync")
    assert type(made[1]) is SynchronizedBatchNorm
    assert made[2][1] is made[1]
    assert made[1].weight is weight


def test_sync_of_a_model_that_is_itself_a_batch_norm() -> None:
    made = batch_norm.apply(nn.BatchNorm2d(3), "sync")
    assert type(made) is SynchronizedBatchNorm


def test_local_takes_synchronised_norms_back(seeded: None) -> None:  # noqa: ARG001
    model = nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3))
    made = batch_norm.apply(model, "local")
    assert not any(isinstance(m, nn.SyncBatchNorm) for m in made.modules())
    inputs = torch.linspace(-1, 2, 12).reshape(4, 3)
    assert made(inputs).mean().abs() < 1e-6


def test_frozen_stays_frozen_when_the_model_is_put_in_train_mode(
    seeded: None,  # noqa: ARG001
) -> None:
    model: Any = batch_norm.apply(_model(), "frozen").train()
    before = model[1].running_mean.clone()
    model(torch.ones(5, 4))
    assert not model[1].training
    assert model[0].training
    assert torch.equal(model[1].running_mean, before)


def test_asis_changes_nothing(seeded: None) -> None:  # noqa: ARG001
    model = _model()
    kinds = [type(m) for m in model.modules()]
    assert [type(m) for m in batch_norm.apply(model, "asis").modules()] == kinds


def test_conversion_on_the_cpu_is_emulated_only_inside() -> None:
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    with batch_norm.sync_batch_norm_on("cpu"):
        inside = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))
    assert type(inside) is SynchronizedBatchNorm
    assert nn.SyncBatchNorm.convert_sync_batchnorm == convert
    outside = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))
    assert type(outside) is nn.SyncBatchNorm


def test_synchronised_norm_computes_on_the_cpu_while_a_model_is_built() -> None:
    cls: Any = nn.SyncBatchNorm
    forward = cls.forward
    with batch_norm.forward_on("cpu"):
        assert cls.forward is SynchronizedBatchNorm.forward
    assert cls.forward is forward
    with batch_norm.forward_on("cuda"):
        assert cls.forward is forward
