"""torch.compile with DDP: the settings that a run uses, and those that a fix sets.

Settings are looked up by name, and only if something has been compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.facts import RankFacts
from ddpcheck.run.process import dynamo
from ddpcheck.run.process.replacing import replaced

# Defaults by name.
_DEFAULTS: dict[str, Any] = {
    "optimize_ddp": True,  # whether, or how, compiled graphs are split at DDP's buckets
    "compiled_autograd": False,  # whether the backward is compiled as well
    "disable": False,  # whether nothing is compiled at all
}


def settings() -> dict[str, Any]:
    """Returns torch._dynamo's settings that matter to DDP, by name."""
    if dynamo.is_stood_in():
        return dict(_DEFAULTS)
    config = dynamo.real().config
    return {name: getattr(config, name, value) for name, value in _DEFAULTS.items()}


def put(wanted: dict[str, Any]) -> None:
    """Sets the settings that differ from `wanted`."""
    for name, value in settings().items():
        if name in wanted and value != wanted[name]:
            setattr(dynamo.real().config, name, wanted[name])


def facts() -> RankFacts:
    """Returns the number of frames that this process has compiled, and the settings."""
    if dynamo.is_stood_in():
        return {"compiled": 0}
    counters = getattr(dynamo.real().utils, "counters", {})
    known = settings()
    return {
        "compiled": counters.get("frames", {}).get("total", 0),
        "compiled_autograd": known["compiled_autograd"],
        "optimize_ddp": known["optimize_ddp"],
    }


@contextlib.contextmanager
def with_settings(**wanted: Any) -> Iterator[None]:
    """Sets these within the context."""
    before = settings()
    put(wanted)
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Disables the compiler, also for functions passed to torch.compile before."""
    is_there = not dynamo.is_stood_in()

    def compile_(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda function: function

    settings_off = with_settings(disable=True) if is_there else contextlib.nullcontext()
    with replaced(torch, compile=compile_), settings_off:
        yield


def built_with(**wanted: Any) -> contextlib.AbstractContextManager[None]:
    """Sets these while a DDP object is built, overriding user code."""
    plain: Any = DistributedDataParallel.__init__

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        with with_settings(**wanted):
            plain(self, *args, **kwargs)

    return replaced(DistributedDataParallel, __init__=build)
