"""torch.compile beside DDP: what of it a run uses, and how a fix sets it.

Its settings are looked up by name, and only where something has been compiled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.process import dynamo

# By name: what they are where nobody has set them.
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
    """Sets those that are not as wanted."""
    for name, value in settings().items():
        if name in wanted and value != wanted[name]:
            setattr(dynamo.real().config, name, wanted[name])


def facts() -> dict[str, Any]:
    """Returns `compiled`, how much was so far in this process, and settings.

    That is the number of functions that the compiler looked at.
    """
    if dynamo.is_stood_in():
        return {"compiled": 0}
    counters = getattr(dynamo.real().utils, "counters", {})
    return {"compiled": counters.get("frames", {}).get("total", 0)} | settings()


@contextlib.contextmanager
def with_settings(**wanted: Any) -> Iterator[None]:
    """Sets these for the length of a run."""
    before = settings()
    put(wanted)
    try:
        yield
    finally:
        put(before)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """Nothing is compiled: neither from now on, nor what has been asked for before.

    Where the compiler has not been imported, nobody has asked for anything.
    """
    plain = torch.compile
    is_there = not dynamo.is_stood_in()

    def compile_(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda function: function

    torch.compile = compile_
    try:
        with with_settings(disable=True) if is_there else contextlib.nullcontext():
            yield
    finally:
        torch.compile = plain


@contextlib.contextmanager
def built_with(**wanted: Any) -> Iterator[None]:
    """Sets these whenever a DDP object is built, whatever its builder has set."""
    cls = DistributedDataParallel
    plain: Any = cls.__init__

    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        with with_settings(**wanted):
            plain(self, *args, **kwargs)

    cls.__init__ = build  # type: ignore[method-assign]
    try:
        yield
    finally:
        cls.__init__ = plain  # type: ignore[method-assign]
