"""Which GPU, which backend; and the error where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import devices
from ddpcheck.ranks.pool import Pool
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.end_to_end.wrong_files import target


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs that were made the current one, of three that torch pretends to see."""
    made: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    return made


def test_ranks_go_round_the_gpus(chosen: list[int]) -> None:
    for rank in range(5):
        devices.use("cuda", rank)
    assert chosen == [0, 1, 2, 0, 1]


def test_no_gpu_is_touched_for_the_cpu(chosen: list[int]) -> None:
    devices.use("cpu", 1)
    assert chosen == []
    assert devices.backend("cpu", 2) == "gloo"
    assert devices.warnings("cpu", "float32") == []


@pytest.mark.usefixtures("chosen")
def test_nccl_needs_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.backend("cuda", 3) == "cpu:gloo,cuda:nccl"
    assert devices.backend("cuda", 4) == "gloo"
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert devices.backend("cuda", 3) == "gloo"


@pytest.fixture
def matmul() -> Iterator[Any]:
    """torch.backends.cuda.matmul, put back by hand: it has no attributes to delete."""
    settings: Any = torch.backends.cuda.matmul
    yield settings
    if hasattr(settings, "fp32_precision"):
        settings.fp32_precision = "none"
    settings.allow_tf32 = False


def _old(matmul: Any) -> None:
    matmul.allow_tf32 = True


def _new(matmul: Any) -> None:
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("torch has no fp32_precision")
    matmul.fp32_precision = "tf32"  # from here on torch refuses to return the old one


@pytest.mark.parametrize("turn_on", [_old, _new])
def test_tf32_and_cudnn_are_warned_of(
    turn_on: Callable[[Any], None], matmul: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert [w[:5] for w in devices.warnings("cuda", "float32")] == ["cuDNN"]
    turn_on(matmul)
    starts = [w.split(" ")[0] for w in devices.warnings("cuda", "float32")]
    assert starts == ["cuDNN", "TF32"]
    assert [w[:5] for w in devices.warnings("cuda", "float64")] == ["cuDNN"]


@pytest.mark.usefixtures("seeded")
def test_tf32_of_cudnn_is_warned_of_where_a_module_is_cudnns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    monkeypatch.setattr(devices, "_cudnn_uses_tf32", lambda: True)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert devices.warnings("cuda", "float32", model) == []
    model.append(nn.GRU(2, 2))
    assert devices.warnings("cuda", "float64", model) == []
    (warning,) = devices.warnings("cuda", "float32", model)
    assert warning == (
        "TF32 is on in cuDNN: float32 convolutions and recurrent nets have 10 bits of "
        "mantissa (torch.backends.cudnn.allow_tf32 = False)"
    )


def test_cudnn_has_settings_of_its_own() -> None:
    cudnn = torch.backends.cudnn
    if not hasattr(cudnn, "conv"):
        pytest.skip("torch has one setting for all of cuDNN")
    kinds: list[Any] = [cudnn.conv, cudnn.rnn]
    before = [kind.fp32_precision for kind in kinds]
    try:
        for kind in kinds:
            kind.fp32_precision = "ieee"
        assert not devices._cudnn_uses_tf32()  # noqa: SLF001
        kinds[1].fp32_precision = "tf32"
        assert devices._cudnn_uses_tf32()  # noqa: SLF001
    finally:
        for kind, value in zip(kinds, before, strict=True):
            kind.fp32_precision = value


def test_kernels_that_draw_within_are_off_on_gpus_alone() -> None:
    cudnn = torch.backends.cudnn
    with devices.plain_kernels("cpu"):
        assert cudnn.enabled
    with devices.plain_kernels("cuda"):
        assert not cudnn.enabled
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert cudnn.enabled
    assert torch.backends.cuda.flash_sdp_enabled()


def test_state_of_random_numbers_on_a_gpu_is_that_of_the_cpu_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.ones(3).byte())
    assert torch.equal(devices.random_state("cpu"), own)
    assert devices.random_state("cuda").tolist() == [*own.tolist(), 1, 1, 1]


def test_target_that_initialises_cuda_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices.check_untouched("mymodel.py")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsageError) as caught:
        devices.check_untouched("mymodel.py")
    assert str(caught.value) == (
        "ddpcheck: mymodel.py: importing it initialises CUDA [target-starts-cuda]\n"
        "  expected   no tensor on a GPU before model() and batch() are called\n"
        "  found      torch.cuda.is_initialized() is True after the import\n"
        "  fix        make these tensors in model() or batch(), on the CPU; "
        "--device cuda moves them\n"
        "  more       ddpcheck --explain target-starts-cuda"
    )


@pytest.mark.skipif(devices.count() > 0, reason="there is a GPU")
def test_cuda_without_a_gpu_is_reported(pool: Pool, tmp_path: Path) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(target(), encoding="utf-8")
    options = Options(device="cuda", world_sizes=(2,))
    try:
        with pytest.raises(UsageError) as caught:
            checking.check(pool, TargetRef(path=str(path)), options)
    finally:
        pool.device = "cpu"
    assert str(caught.value) == (
        "ddpcheck: --device cuda, and torch finds no GPU [environment-no-gpu]\n"
        "  expected   a torch built for CUDA, and at least one GPU\n"
        f"  found      torch {torch.__version__}, no GPU\n"
        "  fix        --device cpu\n"
        "  more       ddpcheck --explain environment-no-gpu"
    )
