"""The criterion: one number, `excess`, and where its tolerance comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddpcheck.errors.problem import usage_error
from ddpcheck.report.data import Tolerance

# Measured with torch 2.13: correct data-parallel training in float64 stays within
# 1e-14 of one process, in float32 within 5e-6 (gradients); the smallest real bug
# seen is 3e-3. bfloat16 and float16: 8 and 11 bits of mantissa.
DEFAULT_RTOL = {
    "float64": 1e-9,
    "float32": 2e-5,
    "bfloat16": 4e-2,
    "float16": 5e-3,
}

# Between a number and the next one, relative to it: what is closer is the same number.
# Of any dtype. Less is the rounding of float64: correct training differs by some
# 1e-15. More lets faults pass; the default of bfloat16 is 0.04.
FINEST_RTOL, COARSEST_RTOL = 1e-15, 0.1
LEAST_RTOL = {
    "float64": FINEST_RTOL,
    "float32": 2.0**-23,
    "bfloat16": 2.0**-7,
    "float16": 2.0**-10,
}

# A model that computes in float32 inside a float64 run repeats itself to 1e-7 only;
# one permutation of the batch samples that noise, it does not bound it.
FLOOR_FACTOR = 32.0

# In float64 arithmetic a permuted batch changes a gradient by some 1e-15 to 1e-13;
# optimizers may amplify that. More than this in the first step shows that part of the
# model computes in float32, whose own rounding (2**-24) then bounds what can be
# distinguished, however little one repetition showed.
_PURE_FLOAT64 = 1e-12
FLOAT32_EPSILON = 2.0**-23
_FLOAT32_RTOL = FLOOR_FACTOR * FLOAT32_EPSILON / 2

# A repeated run on a permuted batch that differs by more than this differs for another
# reason than rounding (the model looks at the order of the samples), and is no measure
# of noise.
LARGEST_FLOOR = {"float64": 1e-5, "float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}

# What float32 inside a float64 run rounds in the first step may grow with each update.
_LARGEST_GROWN = {**LARGEST_FLOOR, "float64": 1e-3}


def is_rounding(dtype: str, first: float, worst: float) -> bool:
    """Returns whether a permuted batch differs by no more than rounding can.

    Args:
        dtype: of the runs.
        first: relative difference of the first step.
        worst: of all steps.
    """
    return first <= LARGEST_FLOOR[dtype] and worst <= _LARGEST_GROWN[dtype]


def lower_precision(epsilon: float) -> str | None:
    """Returns the dtype of 16 bits with this epsilon, None for any other."""
    return {2.0**-7: "bfloat16", 2.0**-10: "float16"}.get(epsilon)


def default(dtype: str) -> Tolerance:
    """Returns the tolerance of a dtype before any noise was measured."""
    return Tolerance(rtol=DEFAULT_RTOL[dtype], origin=f"{dtype} default")


def chosen(rtol: float) -> Tolerance:
    """Returns a tolerance that the user set."""
    return Tolerance(rtol=rtol, origin="set by the user")


def check_chosen(rtol: float, dtype: str) -> None:
    """Raises for a tolerance that no correct training can meet.

    Raises:
        UsageError: option-value.
    """
    least = LEAST_RTOL[dtype]
    if rtol < least:
        raise usage_error(
            slug="option-value",
            message=f"a tolerance of {rtol:.3g} is below the resolution of {dtype}",
            expected=f"from {least:.3g}, one step of {dtype}, to {COARSEST_RTOL:g}",
            found=f"{rtol:.3g}",
            fix=f"leave the tolerance out: {dtype} has {DEFAULT_RTOL[dtype]:g}",
        )


def by_order(base: Tolerance, floor: float, *, permuted: str = "batch") -> Tolerance:
    """Returns the tolerance if the result depends on the order of the samples."""
    origin = (
        f"{base.origin}; the single-process run on a permuted {permuted} differs by "
        f"{floor:.3g}, too much for rounding: the order of the samples matters to this "
        "target"
    )
    return Tolerance(rtol=base.rtol, origin=origin, noise_floor=floor)


def inside(limit: Tolerance, dtype: str) -> Tolerance:
    """Returns the tolerance of a lower precision, and notes that it is inside."""
    origin = f"{limit.origin}; the model computes in {dtype} inside"
    return replace(limit, origin=origin)


def from_floor(
    dtype: str, floor: float, first: float, *, permuted: str = "batch"
) -> Tolerance:
    """Returns the tolerance after the noise floor was measured.

    Args:
        dtype: of the runs.
        floor: the smallest rtol at which the reference equals itself on a permuted
            batch.
        first: the same of the first step alone.
        permuted: what was: the batch, or the order of shards.
    """
    base = default(dtype)
    if not is_rounding(dtype, first, floor):
        return by_order(base, floor, permuted=permuted)
    rtol = floor * FLOOR_FACTOR
    origin = (
        f"{FLOOR_FACTOR:g} x the noise floor {floor:.3g}, measured: the single-process "
        f"run repeated on a permuted {permuted}"
    )
    if dtype == "float64" and first > _PURE_FLOAT64 and rtol < _FLOAT32_RTOL:
        rtol = _FLOAT32_RTOL
        origin = (
            f"{FLOOR_FACTOR:g} x the rounding of float32: the model computes in "
            f"float32 inside (the single-process run repeated on a permuted "
            f"{permuted} differs by {floor:.3g})"
        )
    if rtol <= base.rtol:
        return Tolerance(rtol=base.rtol, origin=base.origin, noise_floor=floor)
    return Tolerance(rtol=rtol, origin=origin, noise_floor=floor)


def digests_agree(digests: Sequence[tuple[float, ...] | None], rtol: float) -> bool:
    """Returns whether digests are equal; None means equal to the reference."""
    known = [d for d in digests if d is not None]
    if not known:
        return True
    if len(known) < len(digests):
        # One rank is within tolerance of the reference and another is not: they would
        # agree only if the difference were at the threshold.
        return False
    first = known[0]
    for other in known[1:]:
        if len(other) != len(first):
            return False
        for start in range(0, len(first), 3):
            bound = 8 * rtol * max(first[start + 2], other[start + 2])
            for a, b in zip(
                first[start : start + 2], other[start : start + 2], strict=True
            ):
                if not abs(a - b) <= bound:
                    return False
    return True
