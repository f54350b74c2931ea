"""Detects ps/reduce-mismatch."""

from __future__ import annotations

import math

from ddpcheck.diagnose.facts.server_case import Proposal, ServerCase
from ddpcheck.diagnose.facts.text import number

SLUG = "ps/reduce-mismatch"
LINK = "reduce"
# Gradients of one factor round alike; what couples samples is far from it.
_CLOSE = 1e-6
# Updates that are linear in the gradient: v = mu * v + (1 - d) * g, w -= lr * v.
_LINEAR = ("SGD",)
# Optimizers that divide by past gradients: m / (sqrt(v) + eps), with v of g ** 2.
_SCALE_FREE = ("Adam", "AdamW", "Adamax", "NAdam", "RMSprop", "Adagrad")
_DECOUPLED = ("AdamW",)  # w -= lr * decay * w, beside the gradient


def detect(case: ServerCase) -> Proposal | None:
    """Proposes it if all gradients of the first step are off by W or by 1/W."""
    world = case.run.world_size
    ratio = float(world) if case.reduce == "sum" else 1.0 / world
    if world < 2 or not case.first or case.run.faults:  # noqa: PLR2004
        return None
    if not all(_is_scaled(row.ratio, row.rel_diff, ratio) for row in case.first):
        return None
    return proposed(case)


def proposed(case: ServerCase) -> Proposal:
    """Returns the proposal, whatever the gradients are."""
    world = case.run.world_size
    is_sum = case.reduce == "sum"
    ratio = float(world) if is_sum else 1.0 / world
    other = "mean" if is_sum else "sum"
    if is_sum:
        summary = (
            "the parameter server sums the workers' gradients, whose mean is the single-process "
            f"gradient: the sum is {number(ratio)} times that"
        )
    else:
        summary = (
            "the parameter server averages the workers' gradients, whose sum is the "
            f"single-process gradient: the mean is 1/{world} of that"
        )
    code = "grad = sum(gradients)" + (" / num_workers" if is_sum else "")
    scale = rate(case, 1.0 / ratio)
    return Proposal(
        summary=summary,
        facts=(
            *_measured(case, ratio),
            "a mean over samples needs the mean of the workers' gradients, a sum their sum",
            scale[1],
        ),
        fix=f"let the server make the {other} of the gradients: --ps-reduce {other}",
        code=code,
        evidence={"ratio": ratio, "lr_factor": scale[0], "reduce": case.reduce},
    )


def rate(case: ServerCase, factor: float) -> tuple[float | None, str]:
    """Returns what multiplies the learning rate to make weights equal, and why.

    None where no learning rate does, or where none is needed.

    Args:
        case: whose gradients are 1 / factor times the single-process ones.
        factor: by which the learning rate would make up for that.
    """
    kind = case.optimizer
    decay = max((g.get("weight_decay", 0.0) for g in case.numbers), default=0.0)
    if case.clips:
        return None, (
            "no learning rate makes the weights equal: gradients are clipped, and what is "
            "clipped to a norm does not grow with the factor"
        )
    is_decoupled = kind in _DECOUPLED or any(
        g.get("decoupled_weight_decay") for g in case.numbers
    )
    if kind in (*_LINEAR, *_SCALE_FREE) and decay and not is_decoupled:
        return None, (
            f"no learning rate makes the weights equal: weight decay adds {number(decay)} "
            "times the weight to the gradient, which the factor does not multiply"
        )
    if kind in _LINEAR:
        return factor, (
            f"the update of {kind} is linear in the gradient, with and without momentum: "
            f"{_rates(case, factor)} makes the weights equal"
        )
    starts = any(g.get("initial_accumulator_value") for g in case.numbers)
    if kind in _SCALE_FREE and not starts:
        return None, (
            f"no learning rate is to be changed: {kind} divides the factor out, up to its "
            f"eps of {_eps(case)}"
        )
    return None, (
        f"which learning rate makes the weights equal is not known for {kind or 'this optimizer'}"
    )


def _measured(case: ServerCase, ratio: float) -> tuple[str, ...]:
    if not case.first:
        return ()
    return (
        f"gradients over the single-process ones: {number(ratio)} for all "
        f"{len(case.first)} tensors that differ in step 1, expected 1",
    )


def _is_scaled(found: float | None, rel_diff: float, ratio: float) -> bool:
    return (
        found is not None
        and math.isclose(found, ratio, rel_tol=_CLOSE)
        and math.isclose(rel_diff, abs(ratio - 1), rel_tol=_CLOSE)
    )


def _rates(case: ServerCase, factor: float) -> str:
    """Returns the learning rate to take: "lr=0.05 in place of 0.1"."""
    told = {g["lr"] for g in case.numbers if "lr" in g}
    if len(told) != 1:
        return f"every learning rate times {number(factor)}"
    (lr,) = told
    world = case.run.world_size
    return f"lr={number(lr * factor)} in place of {number(lr)} at world size {world}"


def _eps(case: ServerCase) -> str:
    return number(max((g.get("eps", 0.0) for g in case.numbers), default=0.0))
