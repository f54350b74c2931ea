"""Where the tensors of a run live: on the CPU, or on the GPU of this rank.

Rank r uses GPU r modulo the number of GPUs. Each rank has a GPU of its own where there
are enough, and NCCL then; several ranks share one through gloo otherwise.
"""

from __future__ import annotations

import torch
from torch import nn

from ddpcheck.errors import Problem, UsageError


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
        raise UsageError(
            Problem(
                slug="environment-no-gpu",
                message="--device cuda, and torch finds no GPU",
                expected="a torch built for CUDA, and at least one GPU",
                found=f"torch {torch.__version__}, no GPU",
                fix="--device cpu",
            )
        )
    torch.cuda.set_device(rank % gpus)


def check_untouched(name: str) -> None:
    """Says so where importing the target `name` has initialised CUDA.

    A process that did cannot fork others that use it.

    Raises:
        UsageError: target-starts-cuda.
    """
    if not torch.cuda.is_initialized():
        return
    raise UsageError(
        Problem(
            slug="target-starts-cuda",
            message=f"{name}: importing it initialises CUDA",
            expected="no tensor on a GPU before model() and batch() are called",
            found="torch.cuda.is_initialized() is True after the import",
            fix="make these tensors in model() or batch(), on the CPU; "
            "--device cuda moves them",
        )
    )


def place(model: nn.Module, device: str) -> nn.Module:
    """Returns the model on the device, the same object."""
    return model if device == "cpu" else nn.Module.to(model, device)


def backend(device: str, world_size: int) -> str:
    """Returns the backend of a process group, as `init_process_group` takes it."""
    gpus = count() if device == "cuda" else 0
    if world_size <= gpus and torch.distributed.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def warnings(device: str, dtype: str) -> list[str]:
    """Returns what makes a GPU's results differ from run to run, or from the CPU's."""
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
    return found


def _uses_tf32() -> bool:
    """Returns whether products of float32 matrices are rounded to TF32.

    Since torch 2.9 there are two settings, and the old one cannot be read where the
    new one was used.
    """
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    if precision is None:
        return bool(matmul.allow_tf32)
    if precision == "none":  # not set for products: the one of all backends counts
        precision = getattr(torch.backends, "fp32_precision", "none")
    return bool(precision == "tf32")


def random_state(device: str) -> torch.Tensor:
    """Returns the state of the generator that the model draws from on the device."""
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()


def free_memory() -> None:
    """Gives cached memory of the GPU back, for other processes to take."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
