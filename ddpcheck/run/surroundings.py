"""Contexts of a step: noise bound to samples, draws, calls of modules with buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ddpcheck.ranks import devices
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.model.noise import SampleNoise
from ddpcheck.run.spec import (
    RunSpec,
)
from ddpcheck.target.target import Target


@contextlib.contextmanager
def bound_noise(
    spec: RunSpec, total: int, start: int = 0, rows: int | None = None
) -> Iterator[SampleNoise | None]:
    """Binds the noise of a probe's single step to samples if the run does so.

    A probe does not know the reference's shapes: a draw whose first dimension is a
    multiple of the shard's samples counts as per sample.
    """
    if spec.noise != "sample":
        yield None
        return
    size = total if rows is None else rows
    noise = SampleNoise(
        seed=spec.seed, step=0, shapes=None, start=start, size=size, total=total
    )
    noise.guess = size != total
    with noise:
        yield noise


@contextlib.contextmanager
def noticing_draws(device: str, call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` at exit if random numbers were drawn in the context."""
    before = devices.random_state(device)
    yield
    if not torch.equal(before, devices.random_state(device)):
        call()


# In the module's __dict__, which a replacement that copies its hooks copies too.
_COUNTED = "counted_by_ddpcheck"


def count_calls(model: nn.Module) -> dict[str, int]:
    """Counts forward calls of the modules that own buffers.

    Not those of batch norms in eval mode: these change nothing, and a script evaluates
    as often as it has batches for that.
    """
    calls: dict[str, int] = {}
    for name, module in contents.named_modules(model):
        if private.buffers(module):
            _count(module, name, calls)
    return calls


def count_new_calls(wrapped: nn.Module, calls: dict[str, int]) -> None:
    """Counts calls of modules that replaced counted ones during wrapping."""
    short = shortener(wrapped)
    for path, module in contents.named_modules(wrapped):
        is_new = private.buffers(module) and not vars(module).get(_COUNTED)
        if is_new and short(path) in calls:
            _count(module, short(path), calls)


def _count(module: nn.Module, name: str, calls: dict[str, int]) -> None:
    calls[name] = 0
    vars(module)[_COUNTED] = True

    def count(called: nn.Module, _: Any) -> None:
        calls[name] += called.training or not isinstance(called, private.BatchNorm)

    nn.Module.register_forward_pre_hook(module, count)


def unlike_calls(
    expected: dict[str, int],
    calls: dict[str, int],
    *,
    steps: int,
    done: int,
    replicas: int = 1,
) -> dict[str, tuple[float, float]]:
    """Returns (expected, found) calls per step, by module, where they differ.

    A running average of four updates is not comparable with one of two; that happens
    if a module is called per chunk of samples (ghost batch norm).

    Args:
        expected: calls of `count_calls` in `steps` single-process steps.
        calls: in `done` steps.
        steps: of the reference.
        done: of the run.
        replicas: that all call the module in a step.
    """
    found = {}
    for name, total in expected.items():
        wanted, mine = total / steps, calls.get(name, 0) / done / replicas
        if mine != wanted:
            found[name] = (wanted, mine)
    return found


def loss_function(target: Target, spec: RunSpec) -> Callable[[Any, Any], Any] | None:
    """Returns the loss of a run: the target's own, or the built-in that replaces it."""
    if spec.loss == "asis":
        return target.loss
    from ddpcheck.target import losses  # noqa: PLC0415 (only where asked for)

    builtin: Callable[[Any, Any], Any] = losses.BUILTIN[spec.loss]
    return builtin
