"""Facts of a rank's run: how its start compares to the reference, what user code did.

Also aligns a start that differs by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import digests
from ddpcheck.compare.trace import Reader, as_dense
from ddpcheck.run.facts import RankFacts
from ddpcheck.run.model import contents
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names, shortener
from ddpcheck.run.model.whole import is_part, set_whole, wholes
from ddpcheck.run.observe import patches, wrapping
from ddpcheck.run.observe.observe import Observed
from ddpcheck.run.observe.wrapping import Wrapped
from ddpcheck.run.process import compiling
from ddpcheck.run.record import flattened
from ddpcheck.run.record.optimizers import ComparedStates
from ddpcheck.run.spec import ReducedOver, Unlike
from ddpcheck.run.steps import Training
from ddpcheck.target.target import Target


def _differing(reader: Reader, quantity: str, named: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of tensors that differ from the single-process start."""
    references = flattened.cached(
        reader, (quantity, 0), lambda: flattened.group(reader, quantity, 0)
    )
    if references is not None and references.is_same(named):
        return []  # nearly always
    return [n for n, tensor in named.items() if reader.differs(quantity, 0, n, tensor)]


def align_start(
    target: Target, reader: Reader, names: Names, model: nn.Module, *, checks: bool
) -> dict[str, float]:
    """Sets values of a model that differ by rounding to those of the reference.

    A solver in `model` may round differently in another process; see `rounding`. With
    `checks`, set on the first rank only, larger differences of weights raise; the
    weights of other ranks may be overwritten by DDP. Frozen weights may be
    uninitialised memory: they are set to the reference, too.

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
        for name in _differing(reader, quantity, wholes(named)):
            if is_part(named[name]):
                # Drawn after it was sharded: each number of parts draws others.
                set_whole(named[name], reader.get(quantity, 0, name))
                continue
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
    """Returns the relative difference of two tensors, None if it is no rounding.

    It is rounding if half of the digits agree: the difference is below the square root
    of the dtype's epsilon, relative to the largest value. The dtype is the one in which
    the values were computed: float32 for float64 values that float32 represents.
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


def at_start(reader: Reader, names: Names, wrapped: nn.Module) -> RankFacts:
    """Returns the weights and buffers that differ before the first step, as facts."""
    parameters = wholes(names.parameters(wrapped))
    held = wholes(names.buffers(wrapped))
    differ = _differing(reader, "initial", parameters)
    buffers = _differing(reader, "initial_buffers", held)
    short = shortener(wrapped)
    found: RankFacts = {
        "start_differs": differ,
        "start_buffers_differ": buffers,
        "order": [short(name) for name, _ in contents.named_parameters(wrapped)],
    }
    if differ:
        found["start"] = digests.digest(parameters)
    if buffers:
        found["start_buffers"] = digests.digest(held)
    return found


def reference_start(reader: Reader, names: Names) -> dict[str, Tensor]:
    """Returns the initial weights and buffers of the single-process run by name."""
    return {
        names.short(name): tensor
        for quantity in ("initial", "initial_buffers")
        for name in reader.names(quantity, 0)
        if (tensor := reader.get(quantity, 0, name)) is not None
    }


def at_end(seen: Observed, training: Training, bare: nn.Module) -> RankFacts:
    """Returns what user code did in the run; `bare` is the model in the wrapper."""
    ddp = [w.module for w in seen.wrapped]
    parameters = training.parameters()
    in_use = wrapping.in_use(seen.wrapped, training.model, parameters)
    found: RankFacts = {
        "collectives": len(seen.collectives),
        "collectives_in_backward": seen.in_backward,
        "asks_rank": seen.asks_rank,
        "events": "".join(seen.events),
        "callers": seen.callers,
        "updates_in_backward": seen.updates_in_backward,
        "schedule": training.schedule,
        "members": training.members,
        "backwards_in_forward": seen.backwards_in_forward,
        "clips": seen.clips,
        "early_clips": seen.early_clips,
        "reduced_after_clip": seen.reduced_after_clip,
        "early_changes": seen.written.early,
        "changes_alone": seen.written.alone,
        "late_changes": seen.written.late,
        "hooks_on_the_way": patches.hooks_on_the_way(bare, seen.hooked_others),
        "hooked": patches.hooked_parameters(bare, seen.hooked),
        "late_hooks": seen.late_hooks,
        "static_graph": any(module.static_graph for module in ddp),
        "bucket_view": any(module.gradient_as_bucket_view for module in ddp),
        "find_unused": any(module.find_unused_parameters for module in ddp),
        "comm_hooks": seen.comm_hooks,
        "hook_sketches": seen.hook_sketches,
        "nested_backwards": seen.nested_backwards,
        "slopes": seen.slopes,
        "opaque_output": seen.opaque_output,
        "forwards": [(w.forwards, _names_in(w, parameters)) for w in in_use],
        "applied_after_wrap": seen.applied_after_wrap,
        "broadcast_buffers": wrapping.broadcast_buffers(training.model),
        "joins": seen.joins,
        "parts": sorted(seen.parts),
        "set_on_wrapper": wrapping.set_on_wrappers(in_use),
    }
    return found | compiling.facts()


def unlike(seen: Observed, training: Training, states: ComparedStates) -> Unlike:
    """Returns how optimizers and wrappers differ from the single-process run."""
    parameters = training.parameters()
    in_use = wrapping.in_use(seen.wrapped, training.model, parameters)
    return Unlike(
        states=tuple(states.apart.values()),
        held=states.unlike(),
        reduced_over=tuple(
            ReducedOver(ranks=ranks, names=tuple(_names_in(w, parameters)))
            for w in in_use
            if (ranks := wrapping.part_of_ranks(w)) is not None
        ),
    )


def _names_in(wrapped: Wrapped, parameters: dict[str, Tensor]) -> list[str]:
    held = {id(entry.tensor) for entry in wrapped.parameters}
    return [name for name, p in parameters.items() if id(p) in held]
