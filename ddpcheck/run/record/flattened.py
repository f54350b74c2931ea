"""Groups of reference tensors flattened into one array, cached across runs.

Warm ranks compare many jobs with the same small trace. The flattened numbers and their
error bounds are computed once; comparing a matching step then costs one torch operation
per tensor, and four of numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ddpcheck.compare import comparison as compare
from ddpcheck.compare.trace import Reader

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Flattened:
    """References of one floating point dtype, E elements in all."""

    shapes: dict[str, torch.Size]
    dtype: torch.dtype
    numbers_E: npt.NDArray[np.float64]  # noqa: N815 (the legend)
    bounds_E: npt.NDArray[np.float64]  # noqa: N815 (as compare.bounds has them)

    def worst(
        self, candidates: Mapping[str, Tensor | None], rtol: float
    ) -> tuple[float, str] | None:
        """Returns the largest excess and its tensor's name if all are within tolerance.

        None if they are not, or if this cannot decide: other names, shapes or dtypes, a
        gradient that is None, NaN.
        """
        flat_E = self._flat(candidates)  # noqa: N806 (the legend)
        if flat_E is None:
            return None
        excess, position = compare.worst_of(flat_E, self.numbers_E, self.bounds_E, rtol)
        return (excess, self._name_at(position)) if excess <= 1 else None

    def is_same(self, candidates: Mapping[str, Tensor | None]) -> bool:
        """Returns whether all numbers are equal; False if it cannot be decided."""
        flat_E = self._flat(candidates)  # noqa: N806
        return flat_E is not None and np.array_equal(flat_E, self.numbers_E)

    def _flat(
        self, candidates: Mapping[str, Tensor | None]
    ) -> npt.NDArray[np.float64] | None:
        """Returns the candidates as one array, None if they are of another kind."""
        if candidates.keys() != self.shapes.keys():
            return None
        parts = []
        for name, shape in self.shapes.items():
            tensor = candidates[name]
            if tensor is None or not self._is_like(tensor, shape):
                return None
            parts.append(tensor.detach().reshape(-1))
        flat: npt.NDArray[np.float64] = torch.cat(parts).to(torch.float64).numpy()
        return flat

    def _is_like(self, tensor: Tensor, shape: torch.Size) -> bool:
        return (
            tensor.dtype is self.dtype
            and tensor.shape == shape
            and tensor.is_cpu
            and tensor.layout is torch.strided
        )

    def _name_at(self, position: int) -> str:
        end = 0
        for name, shape in self.shapes.items():
            end += shape.numel()
            if position < end:
                return name
        return ""


def cached(
    reader: Reader,
    key: tuple[Any, ...],
    references: Callable[[], Mapping[str, Tensor | None]],
    scale: float = 0.0,
) -> Flattened | None:
    """Returns the flattened group of this key, cached; None for a large trace."""
    if not reader.is_small:
        return None
    if key not in reader.kept:
        reader.kept[key] = flatten(references(), scale)
    made: Flattened | None = reader.kept[key]
    return made


def group(reader: Reader, quantity: str, step: int) -> dict[str, Tensor | None]:
    """Returns all tensors of a group by name."""
    names = reader.names(quantity, step)
    return {name: reader.get(quantity, step, name) for name in names}


def flatten(references: Mapping[str, Tensor | None], scale: float) -> Flattened | None:
    """Returns the references as one array; None if dtypes differ or it is empty."""
    tensors = [t for t in references.values() if t is not None]
    dtypes = {t.dtype for t in tensors}
    if len(tensors) < len(references) or len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    if not dtype.is_floating_point or not any(t.numel() for t in tensors):
        return None
    flat_E = torch.cat([t.reshape(-1) for t in tensors])  # noqa: N806
    numbers_E = flat_E.to(torch.float64).numpy()  # noqa: N806
    return Flattened(
        shapes={name: t.shape for name, t in references.items() if t is not None},
        dtype=dtype,
        numbers_E=numbers_E,
        bounds_E=compare.bounds(numbers_E, scale),
    )
