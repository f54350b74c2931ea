"""The calls of a script's model: where its batches are, if no loader draws them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ddpcheck.run.model import contents
from ddpcheck.run.script.driver import Driver

LOADER = -1  # the number that stands for calls in the keys of batches


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
    """Calls `given` before each training call of the model, or of its wrapper.

    `given` takes (args, kwargs) and returns what the model gets instead, or None.
    """

    def __init__(
        self,
        driver: Driver,
        like: tuple[str, tuple[str, ...]] | None,
        given: Callable[[Any, Any], tuple[Any, Any] | None],
    ) -> None:
        self._driver, self._like, self._given = driver, like, given
        self._hooked: list[nn.Module] = []
        self._handles: list[Any] = []
        driver.on_optimizer = self._watch_model
        driver.on_wrapped = self._watch

    def _watch_model(self) -> None:
        found = model_of(self._driver.optimizers, self._like)
        if found is not None:
            self._watch(found)

    def _watch(self, module: nn.Module) -> None:
        if not any(module is one for one in self._hooked):
            self._hooked.append(module)
            self._hook(module)

    def _hook(self, module: nn.Module) -> None:
        # A function, which a deep copy of the module shares: with a bound method it
        # would copy the run of the script, and the wrapper. The copy is not watched.
        def before(called: Any, args: Any, kwargs: Any) -> Any:
            return self._before(called, args, kwargs) if called is module else None

        hook = module.register_forward_pre_hook(before, with_kwargs=True)
        self._handles.append(hook)

    def remove(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def attach_again(self) -> None:
        """Attaches the hooks again, where the attributes of the modules have changed.

        A probe makes the wrapper another module in place, which has no hooks.
        """
        self.remove()
        for module in self._hooked:
            self._hook(module)

    def _before(self, module: Any, args: Any, kwargs: Any) -> Any:
        wrapper = self._driver.wrapped
        is_inside = wrapper is not None and module is not wrapper
        if is_inside or not torch.is_grad_enabled():
            return None
        return self._given(args, kwargs)
