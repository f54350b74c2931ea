"""The gradients that theory predicts for a cell of the suite.

No process is started and no DDP is built here. The gradient of each loss with respect
to the output under DDP is a formula, written from the definition alone: it calls
neither the losses nor autograd, so that it can tell a run that differs as it must from
one that differs in some other way.

Write G_r for the gradient of rank r's loss by its own output. DDP's average makes
G_r / W the share of the parameter gradient that passes through the rank's output.

    mean            (q - y) / (W * E_r)           sum    (q - y) / W
    masked          valid * (q - y) / (W * n_r)
    class_weighted  w[y] * (q - y) / (W * s_r),   s_r the sum of w[y] on rank r
    iou, dice       J (-1/C df/dq) / W,           J the Jacobian of the softmax

with q the softmax of the logits, y the one-hot target (for float targets 2 * (output
- target) takes the place of q - y), I = sum(q * y), S = sum(q + y), and

    iou   f = I / (S - I)   df/dq = y / (S - I) - I * (1 - y) / (S - I)^2
    dice  f = 2 * I / S     df/dq = 2 * y / S - 2 * I / S^2

plus the smoothing term. A correct form has the same formula at W = 1.

Shape legend: B batch, S further dimensions of a target, C classes, E entries.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ddpcheck.run.modes.registry import mode_of
from ddpcheck.suite.zoo.matrix import MODES, check_name
from ddpcheck.target.entries import IGNORED_CLASS, class_dim
from ddpcheck.target.losses import SMOOTH


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

    The output gradient is a formula; only the model itself is
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


def output_gradient(
    loss: str, output: Tensor, target: Tensor, *, world_size: int
) -> Tensor:
    """Returns what DDP back-propagates from the outputs of all ranks, divided by W.

    Args:
        loss: a name of losses.LOSSES.
        output: of the global batch, in the order of the shards.
        target: of the global batch.
        world_size: contiguous shards, of sizes as even as they can be.

    Shapes: output and result are equal.
    """
    output = output.detach()
    if target.is_floating_point():
        return _squared_gradient(loss, output, target, world_size)
    dim = class_dim(output, target)
    logits = output.movedim(dim, -1)
    shards = zip(*_shards(loss, logits, target, world_size), strict=True)
    gradient = torch.cat([_shard_gradient(loss, *shard) for shard in shards])
    return (gradient / _ranks(loss, world_size)).movedim(-1, dim)


def _ranks(loss: str, world_size: int) -> int:
    return 1 if loss.endswith("_global") else world_size


def _shards(
    loss: str, output: Tensor, target: Tensor, world_size: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    count = _ranks(loss, world_size)
    return output.tensor_split(count), target.tensor_split(count)


def _squared_gradient(
    loss: str, output: Tensor, target: Tensor, world_size: int
) -> Tensor:
    """Returns the gradient for float targets. Shapes: output and target are equal."""
    gradients = []
    for values, truth in zip(*_shards(loss, output, target, world_size), strict=True):
        valid = ~truth.isnan() & (truth != IGNORED_CLASS)
        divisor = _divisor(loss, valid.to(values.dtype))
        residual = torch.where(valid, 2 * (values - truth), 0.0)
        gradients.append(residual / divisor)
    return torch.cat(gradients) / _ranks(loss, world_size)


def _shard_gradient(loss: str, logits: Tensor, target: Tensor) -> Tensor:
    """Returns the gradient of one rank's loss. Shapes: [B, *S, C], [B, *S]."""
    name = loss.removesuffix("_global")
    valid = target != IGNORED_CLASS
    classes = torch.arange(logits.shape[-1], device=logits.device)
    hot = (target.unsqueeze(-1) == classes).to(logits.dtype)  # ignored: a row of zeros
    powers = (logits - logits.amax(-1, keepdim=True)).exp()
    chances = powers / powers.sum(-1, keepdim=True)
    if name in _OVERLAPS:
        ratio = _OVERLAPS[name](chances, hot, valid.unsqueeze(-1).to(logits.dtype))
        slope = -ratio / logits.shape[-1]
        return chances * (slope - (chances * slope).sum(-1, keepdim=True))
    weight = valid.to(logits.dtype)
    if name == "class_weighted":
        weight = (hot * (classes + 1) / 2).sum(-1)
    scale = weight / _divisor(loss, weight)
    return scale.unsqueeze(-1) * (chances - hot)


def _divisor(loss: str, weight: Tensor) -> float:
    """Returns what one rank divides its sum by: the sum of its entries' weights."""
    return 1.0 if loss.startswith("sum") else float(weight.sum())


def _iou_slope(chances: Tensor, hot: Tensor, valid: Tensor) -> Tensor:
    """Returns d(I / U)/dq of valid entries. Shapes: [B, *S, C] twice, [B, *S, 1]."""
    dims = tuple(range(chances.ndim - 1))
    shared = (chances * hot).sum(dims) + SMOOTH
    union = ((chances + hot - chances * hot) * valid).sum(dims) + SMOOTH
    return valid * (hot / union - (1 - hot) * shared / union**2)


def _dice_slope(chances: Tensor, hot: Tensor, valid: Tensor) -> Tensor:
    """Returns d(2 * I / S)/dq of valid entries. Shapes: as for IoU."""
    dims = tuple(range(chances.ndim - 1))
    shared = 2 * (chances * hot).sum(dims) + SMOOTH
    summed = ((chances + hot) * valid).sum(dims) + SMOOTH
    return valid * (2 * hot / summed - shared / summed**2)


_OVERLAPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "iou": _iou_slope,
    "dice": _dice_slope,
}
