"""The calls of a script's model: where its batches are, if no loader draws them."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddpcheck.compare import tree
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
    return _holder_of(_trained(optimizers), like)


def _trained(optimizers: Iterable[Optimizer]) -> set[int]:
    """Returns the ids of the parameters that optimizers train."""
    groups = (group for one in optimizers for group in one.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}


def _holder_of(
    trained: set[int], like: tuple[str, tuple[str, ...]] | None
) -> nn.Module | None:
    """Returns the smallest module that holds most of the parameters with these ids."""
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
    """Calls `given` before each training call that gives data to a model.

    Of a wrapper, of what it wraps, or of any other model that is trained; of calls
    within each other the outermost. `given` takes (args, kwargs) and returns what the
    model gets instead, or None. What was computed of weights, as the output of another
    model, is no data: `given` sees its number of rows alone, and it stays as it is. A
    call that has nothing else is none.

    `given` is called before the hooks of the module: a script that stands still there
    has not begun the call, so hooks that a probe attaches meanwhile see all of it.
    """

    def __init__(
        self,
        driver: Driver,
        like: tuple[str, tuple[str, ...]] | None,
        given: Callable[[Any, Any], tuple[Any, Any] | None],
    ) -> None:
        self._driver, self._like, self._given = driver, like, given
        self._models: list[nn.Module] = []
        self._wrapped: list[nn.Module] = []  # wrappers, and what they wrap
        self._is_within = False  # a call of one of these
        self._has_given = False  # data, in any call so far
        driver.on_optimizer = self._watch_models
        driver.on_wrapped = self._watch_wrapper
        _current[:] = [self]
        _see_calls()

    def _watch_wrapper(self, wrapper: nn.Module) -> None:
        self._wrapped.append(wrapper)
        if isinstance(wrapper, DistributedDataParallel):
            self._wrapped.append(wrapper.module)

    def _watch_models(self) -> None:
        """Watches the model that all optimizers train, and that of the newest.

        Where they train several that no module holds, all of these.
        """
        optimizers = self._driver.optimizers
        for trained in (_trained(optimizers), _trained(optimizers[-1:])):
            left = trained
            while left and (found := _holder_of(left, self._like)) is not None:
                if not _is_among(found, self._models):
                    self._models.append(found)
                left = left - {id(p) for p in contents.parameters(found)}

    @property
    def is_within(self) -> bool:
        """Whether a model that is trained is being called."""
        return self._is_within

    def call(
        self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Returns what a call of a module returns, of what it is to be given."""
        if torch.is_grad_enabled() and self._is_model(module):
            self._driver.passes("forward")
        if self._is_within or not torch.is_grad_enabled() or not self._gives(module):
            return call(module, *args, **kwargs)
        if _has_data((args, kwargs)):
            self._has_given = True
            args, kwargs = self._replaced(args, kwargs)
        elif not self._has_given:
            self._driver.before_draw()  # no other call ends the steps of this script
        self._is_within = True
        try:
            return call(module, *args, **kwargs)
        finally:
            self._is_within = False

    def _replaced(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        given = self._given(*tree.replace((args, kwargs), lambda _, t: _data(t)))
        if given is None:
            return args, kwargs
        replaced: tuple[Any, Any] = _with_computed((args, kwargs), given)
        return replaced

    def _gives(self, module: nn.Module) -> bool:
        return _is_among(module, self._wrapped) or _is_among(module, self._models)

    def _is_model(self, module: nn.Module) -> bool:
        return module is self._driver.wrapping or _is_among(module, self._models)


def _has_data(value: Any) -> bool:
    """Returns whether not all that a model is given is computed of weights."""
    tensors = tree.held(value)
    return not tensors or any(one.grad_fn is None for one in tensors)


def _data(tensor: Tensor) -> Tensor:
    """Returns a tensor of data as it is; without numbers if it is computed."""
    if tensor.grad_fn is None:
        return tensor
    return tensor.new_zeros((len(tensor), 0) if tensor.dim() else ())


def _with_computed(own: Any, given: Any) -> Any:
    """Returns what is given, with what the process has computed itself."""
    if isinstance(own, Tensor):
        return given if own.grad_fn is None else own
    if all(tensor.grad_fn is None for tensor in tree.held(own)):
        return given
    return tree.zipped([own, given], lambda pair: _with_computed(*pair))


_current: list[Calls] = []  # of the run of the script in progress


def _is_among(module: nn.Module, modules: list[nn.Module]) -> bool:
    return any(module is one for one in modules)


@functools.cache
def _see_calls() -> None:
    """Lets `Calls` of this process see the calls of modules, once for all runs."""
    call = nn.Module.__call__

    @functools.wraps(call)
    def calling(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not _current:
            return call(module, *args, **kwargs)
        return _current[0].call(call, module, args, kwargs)

    nn.Module.__call__ = calling  # type: ignore[method-assign]
