"""The scale of each buffer, against which its difference is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from ddpcheck.compare.trace import Writer, max_abs
from ddpcheck.run import private
from ddpcheck.run.facts import BufferKind
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener

_UNKNOWN = BufferKind("", changes=True)


def kinds(writer: Writer, model: nn.Module, steps: int) -> dict[str, BufferKind]:
    """Returns the kind of each buffer in the trace of the single-process run."""
    initial = ("initial_buffers", 0)
    waiting, changed = dict(writer.index.groups[initial]), set[str]()
    for step in range(steps):
        changed |= set(writer.differing(initial, ("buffers", step), waiting))
        waiting = {
            name: entry for name, entry in waiting.items() if name not in changed
        }
    short = shortener(model)
    return {
        name: BufferKind(f"{kind.__module__}.{kind.__qualname__}", changes)
        for path, module in contents.named_modules(model)
        for kind in [type(module)]
        for leaf in private.buffers(module)
        for name in [f"{short(path)}.{leaf}".lstrip(".")]
        for changes in [name in changed]
    }


def of_buffers(
    references: Mapping[str, Tensor | None], known: Mapping[str, BufferKind]
) -> dict[str, float]:
    """Returns the scale of each floating point buffer.

    Buffers have no common scale (a mean, a count of batches), but those of one name in
    modules of one class have: a mean that is zero by construction differs by rounding
    alone. Constants are no scale for buffers that change.
    """
    tensors = {n: t for n, t in references.items() if t is not None and t.numel()}
    sizes = {n: max_abs(t) for n, t in tensors.items() if t.is_floating_point()}
    largest: dict[tuple[str, str], float] = {}
    for name, size in sizes.items():
        if known.get(name, _UNKNOWN).changes:
            group = _group(name, known)
            largest[group] = max(largest.get(group, 0.0), size)
    scales = {n: max(s, largest.get(_group(n, known), 0.0)) for n, s in sizes.items()}
    for name, scale in scales.items():
        owner, _, leaf = name.rpartition("running_mean")
        spread = sizes.get(f"{owner}running_var")
        if not leaf and spread is not None:
            scales[name] = max(scale, math.sqrt(spread))
    return {n: s if math.isfinite(s) else 0.0 for n, s in scales.items()}


def _group(name: str, known: Mapping[str, BufferKind]) -> tuple[str, str]:
    return known.get(name, _UNKNOWN).owner, name.rpartition(".")[2]
