"""What a rank says of a run when it is over: facts of what user code did."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ddpcheck.run.observe import clipping, wrapping
from ddpcheck.run.observe.held import Wrapped
from ddpcheck.run.observe.observe import Observed
from ddpcheck.run.process import compiling
from ddpcheck.run.steps import Training


def facts(seen: Observed, training: Training, bare: nn.Module) -> dict[str, Any]:
    """Returns facts by name; `bare` is the model inside the wrapper."""
    ddp = [w.module for w in seen.wrapped]
    parameters = training.parameters()
    in_use = wrapping.in_use(seen.wrapped, training.model, parameters)
    return {
        "collectives": len(seen.collectives),
        "collectives_in_backward": seen.in_backward,
        "asks_distributed": seen.asks_distributed,
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
        "hooks_on_the_way": clipping.hooks_on_the_way(bare, seen.hooked_others),
        "hooked": clipping.hooked_parameters(bare, seen.hooked),
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
    } | compiling.facts()


def _names_in(wrapped: Wrapped, parameters: dict[str, Tensor]) -> list[str]:
    held = {id(entry.tensor) for entry in wrapped.parameters}
    return [name for name, p in parameters.items() if id(p) in held]
