"""Interventions that build DDP anew: with other settings, or as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.intervention import Interventions, Switch
from ddpcheck.run.interventions import hooks_on_means
from ddpcheck.run.interventions.hands_on import handing_on
from ddpcheck.run.interventions.plain_output import with_plain_output
from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import is_ddp

# What a DDP object is built anew with.
_SETTINGS: dict[Switch, dict[str, Any]] = {
    Switch.FIND_UNUSED: {"find_unused_parameters": True},
    Switch.STATIC_GRAPH_OFF: {"static_graph": False},
    Switch.STATIC_GRAPH_ON: {"static_graph": True},
    Switch.BUFFER_BROADCAST_OFF: {"broadcast_buffers": False},
    Switch.BUFFER_BROADCAST_ON: {"broadcast_buffers": True},
    Switch.BUCKET_VIEW_OFF: {"gradient_as_bucket_view": False},
    Switch.REWRAP_TRAINABLE: {"find_unused_parameters": True},
    Switch.NO_COMM_HOOKS: {"hooks": ()},
}


def rewrapped(model: nn.Module, fixes: Interventions) -> nn.Module:
    """Returns the model with the DDP objects in it as the interventions want them."""
    settings: dict[str, Any] = {}
    for switch, setting in _SETTINGS.items():
        if switch in fixes:
            settings |= setting
    if Switch.EXACT_COLLECTIVES in fixes:
        settings["process_group"] = dist.new_group(backend="gloo")
    if Switch.COMM_HOOKS_ON_MEANS in fixes:
        model = contents.replace(
            model, is_ddp, lambda ddp: _rebuilt(ddp, hooks_on_means.hooks_of(ddp))
        )
    if settings or Switch.REWRAP in fixes:
        trainable = Switch.REWRAP_TRAINABLE in fixes
        with _all_trainable(model) if trainable else contextlib.nullcontext():
            model = contents.replace(
                model, is_ddp, lambda ddp: _rebuilt(ddp, **settings)
            )
    if Switch.PLAIN_OUTPUT in fixes:
        model = contents.replace(model, is_ddp, with_plain_output)
    if Switch.CALLS_THROUGH_DDP in fixes:
        model = handing_on(model)
    return model


@contextlib.contextmanager
def _all_trainable(model: nn.Module) -> Iterator[None]:
    before = [(p, p.requires_grad) for p in contents.parameters(model)]
    for parameter, _ in before:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


def _rebuilt(
    ddp: DistributedDataParallel, hooks: Sequence[Any] | None = None, **changes: Any
) -> DistributedDataParallel:
    """Returns a new DDP around the same module, settings kept but for `changes`.

    `hooks` are (hook, state) pairs, by default those that were registered.
    """
    if hooks is None:
        hooks = getattr(ddp, "_comm_hooks", ())
    settings: dict[str, Any] = {
        "find_unused_parameters": ddp.find_unused_parameters,
        "static_graph": ddp.static_graph,
        "broadcast_buffers": ddp.broadcast_buffers,
        "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
        "process_group": ddp.process_group,
        **changes,
    }
    if settings["static_graph"] and "find_unused_parameters" in changes:
        settings["static_graph"] = False
    made = DistributedDataParallel(ddp.module, **settings)
    for hook, state in hooks:
        made.register_comm_hook(state, hook)
    return made
