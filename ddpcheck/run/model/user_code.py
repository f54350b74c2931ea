"""The target's hooks, called under the same surroundings in every kind of run.

The single process, the ranks of DDP, the replicas of DataParallel, simulated ranks and
the probes of the diagnosis call user code through this module alone.

hook               default dtype   seeded
model              float32         by the caller; each process has its own seed
batch              float32         alike in all processes
collate            float32         no; it is refused where it draws
wrap               float32         by the caller; each rank has its own seed
optimizer          of the run      alike in all processes; see `optimizer`
loss, train_step   of the run      no; it goes on from wrap and optimizer

Generators give other numbers in float64: model, batch and wrap draw in float32, as in
the user's own training. What computes has the dtype of the run. In a run that casts
no tensor, the default dtype is left as the target has it. A hook has one thread; where
one process alone trains a large model, its steps have more (see sizing.py).
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
from ddpcheck.run.spec import NATIVE, RunSpec
from ddpcheck.target.target import Target

# Of the single process; the ranks have others.
REFERENCE_SEED = 7_919
# Of the optimizer, from the run's: no seed that a target is likely to set itself.
_OPTIMIZER_SEED = 1_299_709


def seed_of_rank(spec: RunSpec, rank: int) -> int:
    """Returns the seed of a rank: unseeded models and unlike noise show."""
    return spec.seed + 1 + rank


def model(target: Target, spec: RunSpec, *, seed: int) -> nn.Module:
    """Returns what `model` makes.

    From here on ddpcheck's own tensors are of float32; see `compute`.
    """
    if spec.constants != NATIVE:
        torch.set_default_dtype(torch.float32)
    isolation.seed_everything(seed)
    with building(spec), batch_norm.forward_on(spec.device):
        made: nn.Module = target.build()
    return made


def batches(target: Target, spec: RunSpec) -> list[Any]:
    """Returns the global batch of every step, as `batch` makes it."""
    isolation.seed_everything(spec.seed)
    with building(spec):
        return [target.batch_at(step) for step in range(spec.steps)]


def wrap(target: Target, spec: RunSpec, bare: nn.Module) -> Any:
    """Returns what the target's own `wrap` makes of a model; see `widen`."""
    assert target.wrap is not None
    synchronises = batch_norm.sync_batch_norm_on(spec.device)
    with building(spec), synchronises, _widened_for_ddp(spec):
        return target.wrap(bare)


def widen(spec: RunSpec, wrapped: nn.Module) -> None:
    """Widens what `wrap` has made in float32, in a float64 run."""
    if _computes(spec) is torch.float64:
        _widen(wrapped)


def optimizer(target: Target, spec: RunSpec, parameters: list[nn.Parameter]) -> Any:
    """Returns what the target's own `optimizer` makes.

    What it draws is the same on all ranks and in the single process, and the steps draw
    what they would draw without it. A seed that it sets holds for the steps.
    """
    assert target.optimizer is not None
    with isolation.seeded_apart(spec.seed + _OPTIMIZER_SEED), _default(_computes(spec)):
        return target.optimizer(parameters)


def compute(spec: RunSpec) -> None:
    """Gives ddpcheck's own tensors the dtype of what computes; all has been built."""
    dtype = _computes(spec)
    if dtype is not None:
        torch.set_default_dtype(dtype)


@contextlib.contextmanager
def steps(spec: RunSpec) -> Iterator[None]:
    """Stands around training: `loss`, `train_step`, and the model's forward.

    Autocast, and nothing else here, is a thread's own: each replica enters this, too.
    """
    with _default(_computes(spec)), _autocast(spec):
        yield


def _computes(spec: RunSpec) -> torch.dtype | None:
    """Returns the dtype of tensors that user code makes on its way; None: its own."""
    if spec.constants == NATIVE:
        return None
    wide = spec.dtype == "float64" and spec.constants == "float64"
    return torch.float64 if wide else torch.float32


def building(spec: RunSpec) -> contextlib.AbstractContextManager[None]:
    """Stands around user code that makes a model, a batch or a wrapper."""
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
    """Computes in the reduced dtype of the run, as users run it.

    A model that makes its own tensors in that dtype is run without.
    """
    if spec.dtype not in ("bfloat16", "float16") or spec.constants == NATIVE:
        return contextlib.nullcontext()
    device = spec.device.partition(":")[0]
    return torch.autocast(device, dtype=getattr(torch, spec.dtype))


@contextlib.contextmanager
def _widened_for_ddp(spec: RunSpec) -> Iterator[None]:
    """Widens what is new in a model when DDP takes it over, in a float64 run."""
    if _computes(spec) is not torch.float64:
        yield
        return
    init = DistributedDataParallel.__init__

    def widening(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        _widen(module)
        init(self, module, *args, **kwargs)

    DistributedDataParallel.__init__ = widening  # type: ignore[method-assign]
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def _widen(module: nn.Module) -> None:
    for tensor in contents.tensors(module):
        if tensor.dtype is torch.float32:
            tensor.data = tensor.data.double()
