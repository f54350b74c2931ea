"""The calls of a script's model: where its batches are, if no loader draws them."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ddpcheck.run.model import contents
from ddpcheck.run.script.driver import Driver


def signature(module: nn.Module) -> tuple[str, tuple[str, ...]]:
    """Returns what tells a model from others: its class and its parameters' names."""
    names = (name for name, _ in contents.named_parameters(module))
    return type(module).__qualname__, tuple(names)


def model_of(
    optimizers: Iterable[Optimizer], like: tuple[str, tuple[str, ...]] | None
) -> nn.Module | None:
    """Returns the model that optimizers train, of a process that wraps none.

    It is one of the signature `like`, as the ranks wrap it; else the smallest that
    holds all that is trained.
    """
    trained = {
        id(p)
        for one in optimizers
        for group in one.param_groups
        for p in group["params"]
    }
    best: tuple[tuple[bool, int, int, int], nn.Module] | None = None
    for module in [m for m in gc.get_objects() if isinstance(m, nn.Module)]:
        own = {id(p) for p in contents.parameters(module)}
        if not own & trained:
            continue
        is_like = like == signature(module)
        size = sum(1 for _ in module.modules())
        rank = (not is_like, len(trained - own), len(own), size)
        if best is None or rank < best[0]:
            best = rank, module
    return best[1] if best is not None else None


class Calls:
    """Calls `given` before each training call of the model, or of a wrapper.

    `given` takes (args, kwargs) and returns what the model gets instead, or None. It is
    called before the hooks of the module: a script that stands still there has not
    begun the call, so hooks that a probe attaches meanwhile see all of it.
    """

    def __init__(
        self,
        driver: Driver,
        like: tuple[str, tuple[str, ...]] | None,
        given: Callable[[Any, Any], tuple[Any, Any] | None],
    ) -> None:
        self._driver, self._like, self._given = driver, like, given
        self._models: list[nn.Module] = []
        self._wrappers: list[nn.Module] = []
        driver.on_optimizer = self._watch_model
        driver.on_wrapped = self._wrappers.append
        _current[:] = [self]
        _see_calls()

    def _watch_model(self) -> None:
        found = model_of(self._driver.optimizers, self._like)
        if found is not None and not _is_among(found, self._models):
            self._models.append(found)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Returns what a module is called with."""
        if torch.is_grad_enabled() and self._is_model(module):
            self._driver.passes("forward")
        watched = self._wrappers or self._models  # inside a wrapper, its call counts
        if not torch.is_grad_enabled() or not _is_among(module, watched):
            return args, kwargs
        return self._given(args, kwargs) or (args, kwargs)

    def _is_model(self, module: nn.Module) -> bool:
        return module is self._driver.wrapping or _is_among(module, self._models)


_current: list[Calls] = []  # of the run of the script in progress


def _is_among(module: nn.Module, modules: list[nn.Module]) -> bool:
    return any(module is one for one in modules)


@functools.cache
def _see_calls() -> None:
    """Lets `Calls` of this process see the calls of modules, once for all runs."""
    call = nn.Module.__call__

    @functools.wraps(call)
    def calling(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for calls in _current:
            args, kwargs = calls.before(module, args, kwargs)
        return call(module, *args, **kwargs)

    nn.Module.__call__ = calling  # type: ignore[method-assign]
