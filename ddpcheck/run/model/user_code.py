"""Calls the target's hooks with the same seeds and dtypes in every kind of run.

The single process, the ranks of DDP, the replicas of DataParallel, simulated ranks and
the probes of the diagnosis call user code only through this module.

hook               default dtype   seeded
model              float32         by the caller; each process has its own seed
batch              float32         the same in all processes
collate            float32         no; a collate that draws raises
wrap               float32         by the caller; each rank has its own seed
optimizer          of the run      the same in all processes; see `optimizer`
loss, train_step   of the run      no; continues after wrap and optimizer

Generators return other numbers in float64: model, batch and wrap draw in float32, as in
the user's own training. Training computes in the dtype of the run. A run that casts no
tensor keeps the target's default dtype. Hooks run with one thread; the steps of the
single-process run use more for a large model (see sizing.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.model import batch_norm, contents
from ddpcheck.run.process import isolation
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.spec import NATIVE, RunSpec
from ddpcheck.target.target import Target

# Of the single process; the ranks have others.
REFERENCE_SEED = 7_919
# Offset of the optimizer's seed: one that a target is unlikely to use itself.
_OPTIMIZER_SEED = 1_299_709


def seed_of_rank(spec: RunSpec, rank: int) -> int:
    """Returns the seed of a rank; they differ, so that unseeded models show."""
    return spec.seed + 1 + rank


def model(target: Target, spec: RunSpec, *, seed: int) -> nn.Module:
    """Calls `model` and returns the model.

    From here on ddpcheck's own tensors are float32; see `compute`.
    """
    if spec.constants != NATIVE:
        torch.set_default_dtype(torch.float32)
    isolation.seed_everything(seed)
    # A script runs on from one hook to the next, all of it in one dtype.
    hook = _default(_computes(spec)) if target.is_script else building(spec)
    with hook, batch_norm.forward_on(spec.device):
        made: nn.Module = target.build()
    return made


def batches(target: Target, spec: RunSpec) -> list[Any]:
    """Calls `batch` and returns the global batch of every step."""
    isolation.seed_everything(spec.seed)
    with building(spec):
        return [target.batch_at(step) for step in range(spec.steps)]


def wrap(target: Target, spec: RunSpec, bare: nn.Module) -> Any:
    """Calls the target's `wrap` and returns its result; see `widen`."""
    assert target.wrap is not None
    synchronises = batch_norm.sync_batch_norm_on(spec.device)
    hook = _default(_computes(spec)) if target.is_script else building(spec)
    with hook, synchronises, _widened_for_ddp(spec):
        return target.wrap(bare)


def widen(spec: RunSpec, wrapped: nn.Module) -> None:
    """Casts float32 tensors that `wrap` has created to float64, in a float64 run."""
    if _computes(spec) is torch.float64:
        _widen(wrapped)


def optimizer(target: Target, spec: RunSpec, parameters: list[nn.Parameter]) -> Any:
    """Calls the target's `optimizer` and returns the optimizer.

    Its random numbers are the same in all processes, and do not change those of the
    steps. A seed that it sets stays in force for the steps.
    """
    assert target.optimizer is not None
    with isolation.seeded_apart(spec.seed + _OPTIMIZER_SEED), _default(_computes(spec)):
        return target.optimizer(parameters)


def compute(spec: RunSpec) -> None:
    """Sets the default dtype to that of the training, once everything is built."""
    dtype = _computes(spec)
    if dtype is not None:
        torch.set_default_dtype(dtype)


@contextlib.contextmanager
def steps(spec: RunSpec) -> Iterator[None]:
    """Context of training: `loss`, `train_step`, and the model's forward.

    Autocast is per thread, so each replica enters this context too.
    """
    with _default(_computes(spec)), _autocast(spec):
        yield


def _computes(spec: RunSpec) -> torch.dtype | None:
    """Returns the default dtype during training; None: that of the target."""
    if spec.constants == NATIVE:
        return None
    wide = spec.dtype == "float64" and spec.constants == "float64"
    return torch.float64 if wide else torch.float32


def building(spec: RunSpec) -> contextlib.AbstractContextManager[None]:
    """Context of user code that creates a model, a batch or a wrapper."""
    return _default(None if spec.constants == NATIVE else torch.float32)


@contextlib.contextmanager
def _default(dtype: torch.dtype | None) -> Iterator[None]:
    if dtype is None:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _autocast(spec: RunSpec) -> contextlib.AbstractContextManager[Any]:
    """Returns autocast to the reduced dtype of the run.

    A model that creates its own tensors in that dtype runs without.
    """
    if spec.dtype not in ("bfloat16", "float16") or spec.constants == NATIVE:
        return contextlib.nullcontext()
    device = spec.device.partition(":")[0]
    return torch.autocast(device, dtype=getattr(torch, spec.dtype))


@contextlib.contextmanager
def _widened_for_ddp(spec: RunSpec) -> Iterator[None]:
    """Casts new float32 tensors of a model to float64 before DDP is built."""
    if _computes(spec) is not torch.float64:
        yield
        return
    init = DistributedDataParallel.__init__

    def widening(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        _widen(module)
        init(self, module, *args, **kwargs)

    with replaced(DistributedDataParallel, __init__=widening):
        yield


def _widen(module: nn.Module) -> None:
    for tensor in contents.tensors(module):
        if tensor.dtype is torch.float32:
            tensor.data = tensor.data.double()
