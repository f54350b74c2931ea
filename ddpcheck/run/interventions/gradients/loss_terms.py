"""Scales the gradient of one part of a loss: penalties, terms without data, outputs.

`scaled_direct_use`: a parameter used while no module or another than its owner runs, as
in a penalty on the weights, gets part of its gradient from there. Only that is scaled.

`scaled_terms`: a number computed from parameters, buffers, attributes of modules and
constants alone is a term without data: a penalty, prior or regularizer. Its gradient is
scaled where it is added to a number that depends on data.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.observe.external_state import tensors_in_attributes
from ddpcheck.run.process.modes import FunctionMode
from ddpcheck.run.process.replacing import hooked

# Attribute access and bookkeeping need the parameter itself.
_NOT_USES = frozenset(
    {"__get__", "__set__", "__delete__", "__repr__", "__hash__", "backward", "detach"}
    | {"register_hook", "requires_grad_", "register_post_accumulate_grad_hook"}
)


class _ScaleGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None


def scaled_gradient(value: Tensor, factor: float) -> Tensor:
    """Returns the same values; their gradient is multiplied by `factor`."""
    return _ScaleGrad.apply(value, factor)  # type: ignore[no-untyped-call,no-any-return]


@contextlib.contextmanager
def scaled_parameters(
    model: nn.Module, factor: float, names: Collection[str] = ()
) -> Iterator[None]:
    """Multiplies the gradients of parameters by `factor` in every backward.

    Of the parameters of these names, or of all.
    """
    short = shortener(model)
    trained = [
        p
        for path, p in contents.named_parameters(model)
        if p.requires_grad and (not names or short(path) in names)
    ]
    with hooked(*(p.register_hook(lambda grad: grad * factor) for p in trained)):
        yield


class _DirectUse(FunctionMode):
    def __init__(self, owners: dict[int, nn.Module], factor: float) -> None:
        super().__init__()
        self.owners, self.factor = owners, factor
        self.running: list[nn.Module] = []

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        if getattr(func, "__name__", "") in _NOT_USES:
            return func(*args, **kwargs)
        new = [self._scaled(a) for a in args]
        return func(*new, **kwargs)

    def _scaled(self, value: Any) -> Any:
        owner = self.owners.get(id(value))
        if owner is None or (self.running and self.running[-1] is owner):
            return value
        if not torch.is_grad_enabled():
            return value
        with private.no_torch_function():
            return scaled_gradient(value, self.factor)


@contextlib.contextmanager
def scaled_direct_use(model: nn.Module, factor: float) -> Iterator[None]:
    """Scales the gradient that parameters get from uses outside their own module."""
    owners = {
        id(p): module
        for module in contents.modules(model)
        for _, p in contents.own_parameters(module)
    }
    mode = _DirectUse(owners, factor)

    def enter(module: nn.Module, _: Any) -> None:
        mode.running.append(module)

    def leave(*_: Any) -> None:
        mode.running.pop()

    handles = []
    for module in contents.modules(model):
        handles.append(nn.Module.register_forward_pre_hook(module, enter))
        handles.append(nn.Module.register_forward_hook(module, leave, always_call=True))
    with hooked(*handles), mode:
        yield


@contextlib.contextmanager
def scaled_outputs(
    model: nn.Module, factor: float, paths: Collection[str]
) -> Iterator[None]:
    """Scales the gradient of the loss at these tensors of the model's output."""

    def scale(path: str, value: Tensor) -> Tensor:
        is_meant = value.requires_grad and (path or "output") in paths
        return scaled_gradient(value, factor) if is_meant else value

    with nn.Module.register_forward_hook(
        model, lambda _, __, output: tree.replace(output, scale)
    ):
        yield


# torch functions that add their operands, or stack them before a sum; `+=` calls add_.
_ADDS = {"add", "sub", "__rsub__", "add_", "sub_", "stack", "cat"}
# Functions that create constants, as the moments of a standard normal.
_CONSTANT = {"zeros", "ones", "full", "eye", "arange", "linspace"}
_OUT_OF_PLACE = {"add_": torch.add, "sub_": torch.sub}


class _Terms(FunctionMode):
    """Tracks the tensors that are computed without data, in all torch functions."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self._known: dict[int, weakref.ref[Tensor]] = {}
        kept = tensors_in_attributes(model)  # for example the moments of a prior
        for tensor in (*contents.tensors(model), *kept):
            self._add(tensor)

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        operands = tree.held((args, kwargs))
        free = [t for t in operands if self._is_free(t)]
        if len(free) < len(operands):
            if free and self._adds_numbers(func, operands):
                if self._is_free(args[0]) and args[0].requires_grad:
                    # Out of place; the result of `+=` replaces the old tensor anyway.
                    func = _OUT_OF_PLACE.get(func.__name__, func)
                args = tree.replace(args, self._scaled)
            result = func(*args, **kwargs)
            for made in tree.held(result):  # also if written in place
                self._known.pop(id(made), None)
            return result
        result = func(*args, **kwargs)
        for made in tree.held(result):
            # A number without operands starts a sum; a larger tensor may be data.
            if operands or made.numel() == 1 or _is_constant(func):
                self._add(made)
        return result

    def _adds_numbers(self, func: Any, operands: list[Tensor]) -> bool:
        return (
            getattr(func, "__name__", "") in _ADDS
            and torch.is_grad_enabled()
            and all(t.numel() == 1 for t in operands)
        )

    def _scaled(self, _: str, value: Tensor) -> Tensor:
        if not self._is_free(value) or not value.requires_grad:
            return value
        with private.no_torch_function():
            return scaled_gradient(value, self.factor)

    def _is_free(self, value: Any) -> bool:
        known = self._known.get(id(value))
        return known is not None and known() is value

    def _add(self, value: Tensor) -> None:
        self._known[id(value)] = weakref.ref(value)


def _is_constant(func: Any) -> bool:
    return getattr(func, "__name__", "") in _CONSTANT


def scaled_terms(
    model: nn.Module, factor: float
) -> contextlib.AbstractContextManager[Any]:
    """Scales the gradient of data-free terms where they are added to a loss."""
    return _Terms(model, factor)
