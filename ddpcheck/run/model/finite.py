"""Rejects targets whose single-process run computes NaN or infinity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ddpcheck.compare import tree
from ddpcheck.errors.problem import usage_error


def check(
    name: str,
    losses: Sequence[float | None],
    tensors: list[str],
    batches: Sequence[Any],
) -> None:
    """Checks that training stayed finite.

    Args:
        name: of the target.
        losses: of the steps.
        tensors: other recorded groups that are not finite.
        batches: of the steps, searched for NaN if something is not finite.

    Raises:
        UsageError: target-not-finite.
    """
    bad = [
        f"the loss at step {step + 1}"
        for step, value in enumerate(losses)
        if value is not None and not math.isfinite(value)
    ] + tensors
    if not bad:
        return
    found = ", ".join(bad[:3])
    is_at_once = bool(losses) and not math.isfinite(losses[0] or 0.0)
    fix = (
        "other data, or a loss that is finite for them: no update has been made yet"
        if is_at_once
        else "a smaller learning rate, other data, or fewer --steps"
    )
    for step, batch in enumerate(batches):
        if unknown := _not_numbers(batch):
            found = f"{unknown} NaN in the batch of step {step + 1}, {found}"
            fix = "data without NaN"
            break
    raise usage_error(
        slug="target-not-finite",
        message=f"{name}: training in a single process gives NaN or infinity",
        expected="finite losses and gradients in all steps",
        found=found,
        fix=fix,
    )


def _not_numbers(batch: Any) -> int:
    """Returns the number of NaN in a batch; infinities may be masks."""
    found = [t for t in tree.held(batch) if t.is_floating_point()]
    return sum(int(torch.isnan(t).sum()) for t in found)
