"""The device of a run: the CPU, or the GPU of this rank.

Rank r uses GPU r modulo the number of GPUs. If each rank has a GPU of its own, they
communicate by NCCL; ranks that share a GPU communicate by gloo.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ddpcheck.errors.problem import UsageError, usage_error


def count() -> int:
    """Returns the number of GPUs that torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def use(device: str, rank: int) -> None:
    """Makes the rank's GPU the one that "cuda" means; nothing to do for "cpu".

    Raises:
        UsageError: environment-no-gpu.
    """
    if device == "cpu":
        return
    gpus = count()
    if not gpus:
        raise usage_error(
            slug="environment-no-gpu",
            message="--device cuda, and torch finds no GPU",
            expected="a torch built for CUDA, and at least one GPU",
            found=f"torch {torch.__version__}, no GPU",
            fix="--device cpu",
        )
    torch.cuda.set_device(rank % gpus)


def check_untouched(name: str) -> None:
    """Raises if importing the target `name` has initialised CUDA.

    Forks of a process that has initialised CUDA cannot use it.

    Raises:
        UsageError: target-starts-cuda.
    """
    if not torch.cuda.is_initialized():
        return
    raise starts_cuda(name, "torch.cuda.is_initialized() is True after the import")


def starts_cuda(name: str, found: str) -> UsageError:
    """Returns the error for a target whose import leaves CUDA unusable in children."""
    return usage_error(
        slug="target-starts-cuda",
        message=f"{name}: importing it initialises CUDA",
        expected="no tensor on a GPU before model() and batch() are called",
        found=found,
        fix="make these tensors in model() or batch(), on the CPU; "
        "--device cuda moves them",
    )


def place(model: nn.Module, tensors: Iterable[torch.Tensor], device: str) -> nn.Module:
    """Returns the model, which holds these tensors, on the device, the same object."""
    if device == "cpu" and all(t.is_cpu for t in tensors):
        return model  # nn.Module.to visits every module
    return nn.Module.to(model, device)


def backend(device: str, world_size: int) -> str:
    """Returns the backend of a process group, as `init_process_group` takes it."""
    gpus = count() if device == "cuda" else 0
    if world_size <= gpus and torch.distributed.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def warnings(device: str, dtype: str, model: nn.Module | None = None) -> list[str]:
    """Returns why a GPU's results differ between runs, or from the CPU's."""
    if device == "cpu":
        return []
    cudnn = torch.backends.cudnn
    found = []
    if cudnn.is_available() and (cudnn.benchmark or not cudnn.deterministic):
        found.append(
            "cuDNN may choose other algorithms in other processes: results differ by "
            "rounding (torch.backends.cudnn.deterministic = True, benchmark = False)"
        )
    if dtype == "float32" and _uses_tf32():
        found.append(
            "TF32 is on: products of float32 matrices have 10 bits of mantissa "
            "(torch.backends.cuda.matmul.allow_tf32 = False)"
        )
    if dtype == "float32" and model and _has_cudnns(model) and _cudnn_uses_tf32():
        found.append(
            "TF32 is on in cuDNN: float32 convolutions and recurrent nets have 10 bits "
            "of mantissa (torch.backends.cudnn.allow_tf32 = False)"
        )
    return found


def _cudnn_uses_tf32() -> bool:
    """Returns whether cuDNN rounds to TF32, by settings of its own.

    Since torch 2.9 there are two of them too, as in `_uses_tf32`.
    """
    cudnn = torch.backends.cudnn
    kinds = [getattr(cudnn, name, None) for name in ("conv", "rnn")]
    precisions = [getattr(kind, "fp32_precision", None) for kind in kinds]
    if None in precisions:
        return bool(cudnn.allow_tf32)
    return "tf32" in precisions


def _has_cudnns(model: nn.Module) -> bool:
    """Returns whether the model has a module that cuDNN computes."""
    kinds = (
        *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase),
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    )
    return any(isinstance(module, kinds) for module in model.modules())


def _uses_tf32() -> bool:
    """Returns whether products of float32 matrices are rounded to TF32.

    Since torch 2.9 there are two settings, and reading the old one raises if the new
    one was set.
    """
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision is None:
        return bool(matmul.allow_tf32)
    if precision == "none":  # not set for matmul: the setting of all backends applies
        precision = getattr(torch.backends, "fp32_precision", "none")
    return bool(precision == "tf32")


@contextlib.contextmanager
def plain_kernels(device: str) -> Iterator[None]:
    """Disables GPU kernels that draw random numbers inside a fused operation.

    Those of attention and recurrent nets do: their draws cannot be split by rows.
    """
    if device == "cpu":
        yield
        return
    from torch.nn import attention  # noqa: PLC0415 (imports more of torch)

    cudnn = torch.backends.cudnn
    before = cudnn.enabled
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        cudnn.enabled = False
        try:
            yield
        finally:
            cudnn.enabled = before


def random_state(device: str) -> torch.Tensor:
    """Returns the state of the generators that a model on the device draws from.

    On a GPU these are two: a model may draw on the CPU and move the result.
    """
    own = torch.get_rng_state()
    return own if device == "cpu" else torch.cat([own, torch.cuda.get_rng_state()])


def free_memory() -> None:
    """Releases cached GPU memory to other processes."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
