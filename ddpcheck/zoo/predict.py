"""What theory says of each cell of the suite: whether it differs, and by how much.

No process is started and no DDP is built here.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ddpcheck.zoo.closed_form import output_gradient
from ddpcheck.zoo.losses import LOSSES
from ddpcheck.zoo.models import MODELS

Verdict = Literal["equal", "differs"]

MODES = ("ddp", "dp")
BATCH_NORMS = ("asis", "local", "sync", "frozen")


def expected(
    model_name: str, loss_name: str, batch_norm: str, mode: str, world_size: int
) -> Verdict:
    """Returns whether gradients must equal those of one process.

    Holds for the suite's batches: shards of equal size, other counts in every shard.
    Dropout does not matter, as the engine turns it off or ties it to the sample.

    Args:
        model_name: a name of models.MODELS.
        loss_name: a name of losses.LOSSES.
        batch_norm: one of BATCH_NORMS.
        mode: one of MODES.
        world_size: 1 or more.

    Raises:
        ValueError: a name is unknown.
    """
    _check(loss_name, LOSSES)
    local = is_batch_norm_local(model_name, batch_norm, mode)
    if world_size == 1:
        return "equal"
    if local:
        return "differs"
    # DP gathers the outputs and computes one loss on all of them.
    if mode == "dp" or decomposes(loss_name):
        return "equal"
    return "differs"


def is_batch_norm_local(model_name: str, batch_norm: str, mode: str) -> bool:
    """Returns whether the forward pass uses the statistics of a shard.

    DP has no synchronised batch norm: without a process group nn.SyncBatchNorm is
    plain batch norm, on every replica (torch/nn/modules/batchnorm.py, `need_sync`).

    Raises:
        ValueError: a name is unknown.
    """
    _check(model_name, MODELS)
    _check(batch_norm, BATCH_NORMS)
    _check(mode, MODES)
    if not MODELS[model_name].batch_norm or batch_norm == "frozen":
        return False
    return mode == "dp" or batch_norm != "sync"


def decomposes(loss_name: str) -> bool:
    """Returns whether the mean over equal shards is the loss of the global batch."""
    return loss_name == "mean" or loss_name.endswith("_global")


def predicted_gradients(
    model: nn.Module,
    loss_name: str,
    inputs: Tensor,
    targets: Tensor,
    *,
    world_size: int,
    batch_norm_local: bool,
    mode: str,
) -> list[Tensor | None]:
    """Returns the gradients that every rank (DDP) or the module (DP) must end up with.

    The output gradient is a formula (closed_form); only the model itself is
    differentiated by autograd. Dropout must be silent.

    Args:
        model: in the state before the step; batch norms in eval mode where frozen.
        loss_name: a name of losses.LOSSES.
        inputs: of the global batch.
        targets: of the global batch.
        world_size: number of contiguous shards.
        batch_norm_local: whether every shard is normalised by its own statistics.
        mode: one of MODES.

    Returns:
        As many as model.parameters(), None where a parameter is unused.
    """
    _check(mode, MODES)
    shards = _shards(inputs, world_size, mode) if batch_norm_local else [inputs]
    model = copy.deepcopy(model)  # whose running statistics may change
    output = torch.cat([model(shard) for shard in shards])
    ranks = 1 if mode == "dp" else world_size
    gradient = output_gradient(loss_name, output, targets, world_size=ranks)
    parameters = list(model.parameters())
    return list(torch.autograd.grad(output, parameters, gradient, allow_unused=True))


def _shards(inputs: Tensor, world_size: int, mode: str) -> Sequence[Tensor]:
    """Returns the shards; DataParallel cuts by torch.chunk, which may give fewer."""
    if mode == "dp":
        return inputs.chunk(world_size)
    return inputs.tensor_split(world_size)


def _check(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"{name!r} is none of {', '.join(known)}")
