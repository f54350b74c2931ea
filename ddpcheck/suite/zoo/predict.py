"""The gradients that theory predicts for a cell of the suite.

No process is started and no DDP is built here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ddpcheck.run.modes.registry import mode_of
from ddpcheck.suite.zoo.closed_form import output_gradient
from ddpcheck.suite.zoo.matrix import MODES, check_name


def predicted_gradients(
    model: nn.Module,
    loss_name: str,
    inputs: Tensor,
    targets: Tensor,
    *,
    world_size: int,
    batch_norm_local: bool,
    mode: str,
    reduce: str = "",
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
        reduce: "sum" where the ranks' gradients are added up; else DDP's mean.

    Returns:
        As many as model.parameters(), None where a parameter is unused.
    """
    check_name(mode, MODES)
    way = mode_of(mode)
    sizes = list(way.shard_sizes(len(inputs), world_size))
    shards: Sequence[Tensor] = inputs.split(sizes) if batch_norm_local else [inputs]
    ranks = 1 if way.has_replicas else world_size
    parameters = list(model.parameters())
    with _kept_buffers(model):  # a copy of the model takes longer than the rest
        output = torch.cat([model(shard) for shard in shards])
        gradient = output_gradient(loss_name, output, targets, world_size=ranks)
        if reduce == "sum":
            gradient = gradient * ranks
        # Not `grad(output, parameters, gradient)`, which is the same to the last bit:
        # for a gradient of the output torch imports a package of symbols for a second.
        total = (output * gradient).sum()
        return list(torch.autograd.grad(total, parameters, allow_unused=True))


@contextlib.contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    before = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
