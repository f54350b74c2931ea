"""Candidate against reference: the one definition of `excess`.

    excess = max |candidate - reference| / (atol + rtol * |reference|)
    atol   = rtol * scale,  scale = the largest |reference| of the model at this step

in float64, whatever the dtype of the run. `scale` is what a relative error of a
tensor whose true value is zero is measured against. Whole numbers have no rounding: any
difference is an infinite excess.

Legend: N names of a group, E elements of one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ddpcheck.compare.trace import as_dense, max_abs
from ddpcheck.report.data import Difference, Quantity

if TYPE_CHECKING:
    import numpy.typing as npt

_CHUNK = 1 << 17  # elements compared at once: 1 MiB of float64, a core's cache


def compare_group(
    candidates: Mapping[str, Tensor | None],
    references: Mapping[str, Tensor | None],
    *,
    rtol: float,
    scale: float | Mapping[str, float],
    step: int,
    rank: int | None = None,
) -> Quantity:
    """Returns how all tensors of one quantity and step differ.

    `scale` is one for all, or by name, 0 for names that it lacks. Every name of either
    side is in the result: one that only one side has is a mismatch. Names that are None
    on both sides are not counted as compared.
    """
    names = [n for n in references if references[n] is not None]
    extra = [n for n in candidates if candidates[n] is not None and n not in references]
    rows = []
    compared = len(names) + len(extra)
    for name, reference in references.items():
        candidate = candidates.get(name)
        if reference is None and candidate is None:
            continue
        if reference is None:
            compared += 1
        own = scale.get(name, 0.0) if isinstance(scale, Mapping) else scale
        rows.append(_row(name, candidate, reference, rtol, own, step, rank))
    rows += [
        missing(n, "missing in the reference", step=step, rank=rank) for n in extra
    ]
    return quantity(rows, compared=compared)


def _row(
    name: str,
    candidate: Tensor | None,
    reference: Tensor | None,
    rtol: float,
    scale: float,
    step: int,
    rank: int | None,
) -> Difference:
    if candidate is None:
        return missing(name, "missing in the candidate", step=step, rank=rank)
    if reference is None:
        return missing(name, "missing in the reference", step=step, rank=rank)
    return difference(
        candidate, reference, rtol=rtol, scale=scale, name=name, step=step, rank=rank
    )


def missing(name: str, why: str, *, step: int, rank: int | None) -> Difference:
    """Returns the row for a tensor that cannot be compared: always a mismatch."""
    return Difference(
        name=name,
        step=step,
        rank=rank,
        abs_diff=math.inf,
        rel_diff=math.inf,
        excess=math.inf,
        why=why,
    )


def difference(
    candidate: Tensor,
    reference: Tensor,
    *,
    rtol: float,
    scale: float,
    name: str = "",
    step: int = 0,
    rank: int | None = None,
) -> Difference:
    """Returns how two tensors of the same shape differ.

    Args:
        candidate: any shape.
        reference: the same shape; another one is a mismatch.
        rtol: relative tolerance.
        scale: max |reference| over the model; atol = rtol * scale.
        name: the tensor's dotted name.
        step: counted from 0.
        rank: of the candidate.
    """
    cand, ref = as_dense(candidate), as_dense(reference)
    if cand.shape != ref.shape:
        why = f"shape {tuple(cand.shape)}, expected {tuple(ref.shape)}"
        return missing(name, why, step=step, rank=rank)
    abs_diff, excess, dot, square = _numbers(cand, ref, rtol, scale)
    if _is_whole(ref) and not torch.equal(cand, ref):
        excess = math.inf
    why = None  # type: ignore[assignment]
    if math.isnan(abs_diff):
        abs_diff = excess = math.inf
        why = "NaN"
    largest = max_abs(ref)
    return Difference(
        name=name,
        step=step,
        rank=rank,
        abs_diff=abs_diff,
        rel_diff=_ratio(abs_diff, largest),
        excess=excess,
        ratio=dot / square if square > 0 else None,
        why=why,
    )


def _numbers(
    cand: Tensor, ref: Tensor, rtol: float, scale: float
) -> tuple[float, float, float, float]:
    """Returns max |c - r|, excess, <c, r> and <r, r>."""
    abs_diff = excess = dot = square = 0.0
    cand_E, ref_E = cand.reshape(-1), ref.reshape(-1)  # noqa: N806 (the legend)
    for start in range(0, max(1, len(cand_E)), _CHUNK):
        c = cand_E[start : start + _CHUNK].to(torch.float64)
        r = ref_E[start : start + _CHUNK].to(torch.float64)
        if not len(r):
            continue
        diff = (c - r).abs_()
        top = float(diff.max())
        if top != top:  # noqa: PLR0124 (NaN on one side or both, or twice infinity)
            diff = diff.masked_fill_((c == r) | (c.isnan() & r.isnan()), 0.0)
            top = float(diff.max())
            if top != top:  # noqa: PLR0124
                return math.nan, math.inf, 0.0, 0.0
        abs_diff = max(abs_diff, top)
        if top > 0:
            excess = max(excess, _largest_excess(diff, r, rtol, scale))
        finite_c, finite_r = (t.nan_to_num(0.0, 0.0, 0.0) for t in (c, r))
        dot += float(torch.dot(finite_c, finite_r))
        square += float(torch.dot(finite_r, finite_r))
    return abs_diff, excess, dot, square


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _largest_excess(diff: Tensor, ref: Tensor, rtol: float, scale: float) -> float:
    relative = diff / ref.abs().add_(scale)
    # 0 / 0 is no difference; an infinite one stays so where the bound is infinite too.
    relative = relative.masked_fill_(diff == 0, 0.0)
    relative = relative.masked_fill_(diff.isinf(), math.inf)
    return _ratio(float(relative.max()), rtol)


def _ratio(value: float, by: float) -> float:
    if value == 0:
        return 0.0
    return value / by if by > 0 else math.inf


def quantity(rows: list[Difference], *, compared: int | None = None) -> Quantity:
    """Returns the rows as one Quantity, worst first."""
    ranked = sorted(rows, key=lambda row: (-row.excess, row.step, row.name))
    return Quantity(
        compared=len(rows) if compared is None else compared,
        mismatched=sum(row.excess > 1 for row in rows),
        worst=ranked[0] if ranked else None,
        tensors=tuple(ranked),
        excess_by_step=(ranked[0].excess,) if ranked else (),
    )


def is_equal(
    candidates: Mapping[str, Tensor | None],
    references: Mapping[str, Tensor | None],
    *,
    rtol: float,
    scale: float,
) -> tuple[bool, float, str]:
    """Returns (all within tolerance, worst excess, its name), fast.

    All tensors are laid end to end, so that a sound step of a model with many small
    tensors costs a handful of operations. A difference in names, shapes or None is
    (False, inf, name).
    """
    cand, ref, names = [], [], []
    for name, reference in references.items():
        candidate = candidates.get(name)
        if candidate is None or reference is None:
            if candidate is not reference:
                return False, math.inf, name
            continue
        mine = as_dense(candidate).reshape(-1)
        theirs = as_dense(reference).reshape(-1)
        if mine.shape != theirs.shape:
            return False, math.inf, name
        cand.append(mine)
        ref.append(theirs)
        names.append(name)
    extra = [n for n, t in candidates.items() if t is not None and n not in references]
    if extra:
        return False, math.inf, extra[0]
    return _flat_equal(list(_chunks(cand, ref, names)), rtol, scale)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Neighbouring tensors, or a part of a large one: flat, at most _CHUNK elements."""

    names: list[str]
    cand: list[Tensor]
    ref: list[Tensor]

    def laid(self) -> tuple[Tensor, Tensor]:
        """Returns candidate and reference, each as one tensor."""
        c, r = (torch.cat(t) if len(t) > 1 else t[0] for t in (self.cand, self.ref))
        return c, r

    def name_at(self, position: int) -> str:
        """Returns the tensor to which an element of the flat chunk belongs."""
        for name, tensor in zip(self.names, self.ref, strict=True):
            if position < tensor.numel():
                return name
            position -= tensor.numel()
        return self.names[-1]


def _chunks(
    cand: list[Tensor], ref: list[Tensor], names: list[str]
) -> Iterator[_Chunk]:
    start = 0
    while start < len(names):
        if ref[start].numel() > _CHUNK:
            parts = zip(
                cand[start].split(_CHUNK), ref[start].split(_CHUNK), strict=True
            )
            yield from (_Chunk([names[start]], [c], [r]) for c, r in parts)
            start += 1
            continue
        end, size = start, 0
        while end < len(names) and size + ref[end].numel() <= _CHUNK:
            size += ref[end].numel()
            end += 1
        yield _Chunk(names[start:end], cand[start:end], ref[start:end])
        start = end


def _flat_equal(
    chunks: list[_Chunk], rtol: float, scale: float
) -> tuple[bool, float, str]:
    """Returns the same as `is_equal`.

    The excess takes eight passes over memory, a bound on it two: it is computed where
    the bound is largest, and where that leaves doubt.
    """
    worst, worst_name = 0.0, chunks[0].names[0] if chunks else ""
    only = len(chunks) == 1
    bounds = [math.inf if only else _bound(c, rtol, scale) for c in chunks]
    for i in sorted(range(len(chunks)), key=lambda i: -bounds[i]):
        if bounds[i] <= worst:
            break
        excess, position = _worst_element(*chunks[i].laid(), rtol, scale)
        if not excess <= 1:  # NaN too
            return False, excess, chunks[i].name_at(position)
        if excess > worst:
            worst, worst_name = excess, chunks[i].name_at(position)
    return True, worst, worst_name


def _bound(chunk: _Chunk, rtol: float, scale: float) -> float:
    """Returns an upper bound of all excesses of the chunk; infinity if unknown.

    excess <= |c - r| / (rtol * scale). A difference in float32 is off by 2**-24 of
    itself.
    """
    c, r = chunk.laid()
    if c.dtype != r.dtype or r.dtype not in (torch.float32, torch.float64):
        return math.inf
    if not r.numel():
        return 0.0
    low, high = torch.aminmax(c - r)
    largest = max(-float(low), float(high)) * (1 + 1e-6)
    if largest == 0:
        return 0.0
    return largest / (rtol * scale) if largest < math.inf and scale > 0 else math.inf


def _worst_element(
    cand: Tensor, ref: Tensor, rtol: float, scale: float
) -> tuple[float, int]:
    """Returns the largest excess of two flat tensors, and its position."""
    if not ref.numel():
        return 0.0, 0
    c, r = (t.to(torch.float64).numpy() for t in (cand, ref))
    bound = bounds(r, scale)
    excess, position = worst_of(c, r, bound, rtol)
    if math.isfinite(excess):
        return excess, position
    # 0 / 0, or NaN on both sides: no difference. Or a real one, which is seen so too.
    abs_diff, excess, _, _ = _numbers(cand, ref, rtol, scale)
    with np.errstate(all="ignore"):
        position = int(np.nan_to_num(np.abs(c - r) / bound).argmax())
    return (math.nan if math.isnan(abs_diff) else excess), position


def bounds(
    ref_E: npt.NDArray[np.float64],  # noqa: N803 (the legend)
    scale: float,
) -> npt.NDArray[np.float64]:
    """Returns the error bounds, |r| + scale of every element."""
    measure: npt.NDArray[np.float64] = np.abs(ref_E) + scale
    return measure


def worst_of(
    cand_E: npt.NDArray[np.float64],  # noqa: N803 (the legend)
    ref_E: npt.NDArray[np.float64],  # noqa: N803
    bounds_E: npt.NDArray[np.float64],  # noqa: N803
    rtol: float,
) -> tuple[float, int]:
    """Returns the largest excess and its position; not finite if undecided.

    In numpy: of a small model an operation of torch takes longer than its numbers do.
    """
    with np.errstate(all="ignore"):
        relative = np.abs(cand_E - ref_E) / bounds_E
    position = int(relative.argmax())
    return _ratio(float(relative[position]), rtol), position
