"""The losses of the suite: as people write them, and as DDP needs them (`*_global`).

Every loss takes (output, target) and returns a scalar. Class targets are integers and
give cross entropies, float targets mean squared errors. A `*_global` loss reduces its
own counts over the ranks; where no process group is initialised it is the plain loss.

DDP averages gradients over W ranks. So a rank's loss must be W times its share of the
global loss, or the global loss itself computed from statistics that were reduced with
gradients: the backward of that reduction sums the W equal output gradients.

Shape legend: B batch, S further dimensions of a target, C classes, E entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ddpcheck.target.entries import IGNORED_CLASS, class_first, fitted, is_valid, rows

Loss = Callable[[Tensor, Tensor], Tensor]

SMOOTH = 1e-6  # keeps iou and dice finite where a shard holds no valid entry


def mean(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean over all entries, the losses' default reduction."""
    if target.is_floating_point():
        return F.mse_loss(output, target)
    return F.cross_entropy(class_first(output, target), target)


def total(output: Tensor, target: Tensor) -> Tensor:
    """Returns the sum over all entries: the loss named "sum"."""
    if target.is_floating_point():
        return F.mse_loss(output, target, reduction="sum")
    return F.cross_entropy(class_first(output, target), target, reduction="sum")


def masked(output: Tensor, target: Tensor) -> Tensor:
    """Returns the mean over the entries whose target is neither -100 nor NaN."""
    if target.is_floating_point():
        valid = is_valid(target)
        return F.mse_loss(output[valid], target[valid])
    logits = class_first(output, target)
    return F.cross_entropy(logits, target, ignore_index=IGNORED_CLASS)


def class_weighted(output: Tensor, target: Tensor) -> Tensor:
    """Returns the class-weighted cross entropy: torch divides by the weights' sum."""
    logits = class_first(output, target)
    return F.cross_entropy(logits, target, weight=class_weights(logits))


def iou(output: Tensor, target: Tensor, smooth: float = SMOOTH) -> Tensor:
    """Returns 1 - soft IoU, summed over the whole batch, averaged over classes.

    Float targets are the probabilities of one class: output is its logit.
    """
    return _iou_of(*_overlap(output, target), smooth)


def dice(output: Tensor, target: Tensor, smooth: float = SMOOTH) -> Tensor:
    """Returns 1 - soft Dice, summed over the whole batch, averaged over classes.

    Source: arXiv:1606.04797, "batch dice" as in nnU-Net.
    """
    return _dice_of(*_overlap(output, target), smooth)


def mean_global(output: Tensor, target: Tensor) -> Tensor:
    """Returns W * sum / global count: correct for uneven shards, too."""
    if not _in_group():
        return mean(output, target)
    count = is_valid(target).sum() if not target.is_floating_point() else _size(target)
    return dist.get_world_size() * total(output, target) / _reduced(count)


def total_global(output: Tensor, target: Tensor) -> Tensor:
    """Returns W * sum: the loss named "sum_global"."""
    scale = dist.get_world_size() if _in_group() else 1
    return scale * total(output, target)


def masked_global(output: Tensor, target: Tensor) -> Tensor:
    """Returns W * sum over valid entries / their global count."""
    if not _in_group():
        return masked(output, target)
    valid = is_valid(target)
    count = _reduced(valid.sum()).clamp(min=1)
    if target.is_floating_point():
        summed = total(output[valid], target[valid])
    else:
        summed = total(output, target)
    return dist.get_world_size() * summed / count


def class_weighted_global(output: Tensor, target: Tensor) -> Tensor:
    """Returns W * weighted sum / global sum of the targets' weights."""
    if not _in_group():
        return class_weighted(output, target)
    logits = class_first(output, target)
    weights = class_weights(logits)
    summed = F.cross_entropy(logits, target, weight=weights, reduction="sum")
    count = _reduced(weights[target[is_valid(target)]].sum())
    return dist.get_world_size() * summed / count


def iou_global(output: Tensor, target: Tensor) -> Tensor:
    """Returns the IoU loss of the global batch, from reduced statistics."""
    shared, summed = _overlap(output, target)
    return _iou_of(sum_over_ranks(shared), sum_over_ranks(summed), SMOOTH)


def dice_global(output: Tensor, target: Tensor) -> Tensor:
    """Returns the Dice loss of the global batch, from reduced statistics."""
    shared, summed = _overlap(output, target)
    return _dice_of(sum_over_ranks(shared), sum_over_ranks(summed), SMOOTH)


def class_weights(logits: Tensor) -> Tensor:
    """Returns 0.5, 1, 1.5, ... on the logits' device. Shapes: [B, C, *S] -> [C]."""
    classes = logits.shape[1]
    return torch.arange(1, classes + 1, dtype=logits.dtype, device=logits.device) / 2


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Returns the sum over all ranks, with gradients; the tensor without a group.

    It is torch.distributed.nn.functional.all_reduce, which warns since torch 2.13,
    while its successor has gradients in recent versions only.
    """
    if not _in_group():
        return tensor
    return cast("Tensor", _SumOverRanks.apply(tensor))  # type: ignore[no-untyped-call]


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: object, tensor: Tensor) -> Tensor:
        return _reduced(tensor)

    @staticmethod
    def backward(_ctx: object, *grads: Tensor) -> Tensor:
        return sum_over_ranks(grads[0])


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _reduced(tensor: Tensor) -> Tensor:
    """Returns the sum over all ranks, without gradients."""
    summed = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed)
    return summed


def _size(tensor: Tensor) -> Tensor:
    return torch.tensor(tensor.numel(), device=tensor.device)


def _overlap(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns per class sum(p * t) and sum(p + t) over the valid entries.

    Shapes: [B, C, *S] or [B, *S, C], [B, *S] -> [C], [C]; float targets -> [1], [1].
    """
    truth = target.reshape(-1)
    valid = is_valid(truth)
    if target.is_floating_point():
        chances = output.sigmoid().reshape(-1, 1)[valid]
        truths = truth[valid].unsqueeze(1)
    else:
        chances = rows(output, target).softmax(-1)[valid]
        truths = F.one_hot(truth[valid], chances.shape[1]).to(chances.dtype)
    return (chances * truths).sum(0), (chances + truths).sum(0)


def _iou_of(shared: Tensor, summed: Tensor, smooth: float) -> Tensor:
    return 1 - ((shared + smooth) / (summed - shared + smooth)).mean()


def _dice_of(shared: Tensor, summed: Tensor, smooth: float) -> Tensor:
    return 1 - ((2 * shared + smooth) / (summed + smooth)).mean()


LOSSES: dict[str, Loss] = {
    "mean": mean,
    "sum": total,
    "masked": masked,
    "class_weighted": class_weighted,
    "iou": iou,
    "dice": dice,
    "mean_global": mean_global,
    "sum_global": total_global,
    "masked_global": masked_global,
    "class_weighted_global": class_weighted_global,
    "iou_global": iou_global,
    "dice_global": dice_global,
}


def _built_in(name: str) -> Loss:
    """Returns the loss with its arguments checked and brought into form first."""

    def loss(output: object, target: object) -> Tensor:
        logits, truth = fitted(output, target, name)
        if name == "iou" and truth.is_floating_point():
            _check_probabilities(truth)
        return LOSSES[name](logits, truth)

    loss.__name__ = name
    loss.__doc__ = f"Returns the loss {name!r} of any target that fits it."
    return loss


def _check_probabilities(target: Tensor) -> None:
    valid = target[is_valid(target)]
    if valid.numel() and not 0 <= valid.min() <= valid.max() <= 1:
        raise ValueError(
            "loss 'iou' needs class targets or float targets from 0 to 1, found values "
            f"from {valid.min().item():.3g} to {valid.max().item():.3g}"
        )


BUILTIN = {name: _built_in(name) for name in ("mean", "sum", "masked", "iou")}
