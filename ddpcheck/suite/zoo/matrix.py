"""The cells of the conformance suite and the result that theory predicts for each.

No torch here: the tool's own process lists cells and judges them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from ddpcheck.run.modes.registry import CHOICES, mode_of

Verdict = Literal["equal", "differs"]

WORLD_SIZES = (1, 2, 3, 4, 8, 16)
STEPS = 3
MODES = CHOICES
BATCH_NORMS = ("asis", "local", "sync", "frozen")

CLASS_LOSSES = (
    "mean",
    "sum",
    "masked",
    "class_weighted",
    "iou",
    "dice",
    "mean_global",
    "sum_global",
    "masked_global",
    "class_weighted_global",
    "iou_global",
    "dice_global",
)
VALUE_LOSSES = (
    "mean",
    "sum",
    "masked",
    "mean_global",
    "sum_global",
    "masked_global",
)

# Every model with every loss that its targets allow.
LOSSES_OF = {
    "mlp": CLASS_LOSSES,
    "regression": VALUE_LOSSES,
    "conv": CLASS_LOSSES,
    "conv_bn": CLASS_LOSSES,
    "unet": CLASS_LOSSES,
    "transformer": CLASS_LOSSES,
    "unused_head": CLASS_LOSSES,
    "tied": CLASS_LOSSES,
    "bn_dropout": CLASS_LOSSES,
}
CASES = tuple((model, loss) for model, names in LOSSES_OF.items() for loss in names)

# With a parameter server: every loss with each reduction.
REDUCTIONS = ("mean", "sum")
SERVER_MODELS = ("mlp", "regression")
SERVER_WORLD_SIZES = (2, 3, 4, 8)

HAS_BATCH_NORM = ("conv_bn", "bn_dropout")
HAS_DROPOUT = ("bn_dropout",)
BATCH_NORM_MODES = {
    model: BATCH_NORMS if model in HAS_BATCH_NORM else ("asis",) for model in LOSSES_OF
}


def reductions(model_name: str, mode: str) -> tuple[str, ...]:
    """Returns what is made of the gradients: with a server its settings, else ("",).

    () where the suite has no cells of this model in this mode.
    """
    if not mode_of(mode).servers:
        return ("",)
    return REDUCTIONS if model_name in SERVER_MODELS else ()


def world_sizes(mode: str) -> tuple[int, ...]:
    """Returns the world sizes at which the suite runs a mode."""
    return SERVER_WORLD_SIZES if mode_of(mode).servers else WORLD_SIZES


def expected(
    model_name: str,
    loss_name: str,
    batch_norm: str,
    mode: str,
    world_size: int,
    reduce: str = "",
) -> Verdict:
    """Returns whether gradients must equal those of the single-process run.

    Holds for the suite's batches: shards of equal size, other counts in every shard.
    Dropout does not matter, as the engine turns it off or ties it to the sample.

    Args:
        model_name: a name of LOSSES_OF.
        loss_name: a name of CLASS_LOSSES.
        batch_norm: one of BATCH_NORMS.
        mode: one of MODES.
        world_size: 1 or more.
        reduce: one of reductions(model_name, mode).

    Raises:
        ValueError: a name is unknown.
    """
    check_name(loss_name, CLASS_LOSSES)
    local = is_batch_norm_local(model_name, batch_norm, mode)
    if world_size == 1:
        return "equal"
    if local:
        return "differs"
    if reduce == "sum":  # each worker's gradient counts whole, and must be a part
        return "equal" if loss_name == "sum" else "differs"
    # DP gathers the outputs and computes one loss on all of them.
    if mode_of(mode).has_replicas or decomposes(loss_name):
        return "equal"
    return "differs"


def is_batch_norm_local(model_name: str, batch_norm: str, mode: str) -> bool:
    """Returns whether the forward pass uses the statistics of a shard.

    DP has no synchronised batch norm: without a process group nn.SyncBatchNorm is
    plain batch norm, on every replica (torch/nn/modules/batchnorm.py, `need_sync`).

    Raises:
        ValueError: a name is unknown.
    """
    check_name(model_name, LOSSES_OF)
    check_name(batch_norm, BATCH_NORMS)
    check_name(mode, MODES)
    if model_name not in HAS_BATCH_NORM or batch_norm == "frozen":
        return False
    return batch_norm != "sync" or mode_of(mode).unsynchronised is not None


def decomposes(loss_name: str) -> bool:
    """Returns whether the mean over equal shards is the loss of the global batch."""
    return loss_name == "mean" or loss_name.endswith("_global")


def check_name(name: str, known: Collection[str]) -> None:
    """Says which names there are.

    Raises:
        ValueError: `name` is none of them.
    """
    if name not in known:
        raise ValueError(f"{name!r} is none of {', '.join(known)}")
