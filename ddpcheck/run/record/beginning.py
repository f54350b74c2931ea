"""What a rank begins with, against what one process began with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import summing
from ddpcheck.compare.trace import Reader, as_dense
from ddpcheck.run.model import contents
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names, shortener
from ddpcheck.run.record import laid
from ddpcheck.target.target import Target


def _differing(reader: Reader, quantity: str, named: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of those that are not what one process began with."""
    references = laid.kept(
        reader, (quantity, 0), lambda: laid.group(reader, quantity, 0)
    )
    if references is not None and references.is_same(named):
        return []  # as nearly always
    return [n for n, tensor in named.items() if reader.differs(quantity, 0, n, tensor)]


def start_alike(
    target: Target, reader: Reader, names: Names, model: nn.Module, *, checks: bool
) -> dict[str, float]:
    """Gives a model the reference's values where its own differ by rounding.

    A solver in `model` may round otherwise in another process; see `rounding`. With
    `checks`, which only the first rank does, larger differences of weights are refused;
    those of other ranks may be overwritten. Its weights that are not trained may be
    memory that nothing has initialised: they become the reference's, too.

    Returns:
        The relative difference of each trained weight and each buffer that differed by
        rounding, by name.

    Raises:
        UsageError: target-unseeded.
    """
    found: dict[str, float] = {}
    for quantity, named in (
        ("initial", names.parameters(model)),
        ("initial_buffers", names.buffers(model)),
    ):
        is_weight = quantity == "initial"
        is_checked = checks and is_weight
        for name in _differing(reader, quantity, named):
            reference: Any = reader.get(quantity, 0, name)
            mine = named[name]
            is_like = reference is not None and reference.shape == mine.shape
            rounded = rounding(reference, mine) if is_like else None
            if rounded is None and not is_checked:
                continue
            if rounded is None and (mine.requires_grad or not is_like):
                raise models.unseeded(target, name)
            if rounded is not None and (mine.requires_grad or not is_weight):
                found[name] = rounded
            mine.data.copy_(reference)
    return found


def rounding(reference: Tensor, mine: Tensor) -> float | None:
    """Returns how much two tensors of a shape differ, None if that is no rounding.

    It is rounding where half of the digits are the same: the difference is below the
    square root of the dtype's epsilon, relative to the largest value. The dtype is the
    one in which the values were made: numbers that float32 holds are of float32.
    """
    if not mine.is_floating_point():
        return None
    values, others = as_dense(reference).double(), as_dense(mine).double()
    largest = float(values.abs().max())
    difference = float((values - others).abs().max())
    dtype = mine.dtype
    if dtype is torch.float64 and all(_is_float32(v) for v in (values, others)):
        dtype = torch.float32
    limit = math.sqrt(torch.finfo(dtype).eps) * largest
    return difference / largest if 0 < difference <= limit < math.inf else None


def _is_float32(values: Tensor) -> bool:
    return torch.equal(values, values.float().double())


def facts(reader: Reader, names: Names, wrapped: nn.Module) -> dict[str, Any]:
    """Returns which weights and buffers differ before the first step, as facts."""
    differ = _differing(reader, "initial", names.parameters(wrapped))
    buffers = _differing(reader, "initial_buffers", names.buffers(wrapped))
    short = shortener(wrapped)
    found: dict[str, Any] = {
        "start_differs": differ,
        "start_buffers_differ": buffers,
        "order": [short(name) for name, _ in contents.named_parameters(wrapped)],
    }
    if differ:
        found["start"] = summing.digest(dict(names.parameters(wrapped)))
    if buffers:
        found["start_buffers"] = summing.digest(dict(names.buffers(wrapped)))
    return found


def of_one_process(reader: Reader, names: Names) -> dict[str, Tensor]:
    """Returns one process's first weights and buffers by name."""
    return {
        names.short(name): tensor
        for quantity in ("initial", "initial_buffers")
        for name in reader.names(quantity, 0)
        if (tensor := reader.get(quantity, 0, name)) is not None
    }
