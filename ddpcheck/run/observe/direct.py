"""Parameters used outside their own module: penalties on the weights in a loss.

A parameter used while another module runs than the one that owns it, or none, gets
its gradient from there directly. `scaled_direct_use` scales just this part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ddpcheck.compare import tree
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener

# Attribute access and bookkeeping: the parameter itself is wanted.
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
    """Returns the same values, whose gradient is `factor` times what arrives."""
    return _ScaleGrad.apply(value, factor)  # type: ignore[no-untyped-call,no-any-return]


@contextlib.contextmanager
def scaled_parameters(
    model: nn.Module, factor: float, names: Collection[str] = ()
) -> Iterator[None]:
    """Gives parameters `factor` times the gradient of every backward.

    Those of these names, or all.
    """
    short = shortener(model)
    trained = [
        p
        for path, p in contents.named_parameters(model)
        if p.requires_grad and (not names or short(path) in names)
    ]
    hooks = [p.register_hook(lambda grad: grad * factor) for p in trained]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _DirectUse(TorchFunctionMode):
    def __init__(self, owners: dict[int, nn.Module], factor: float) -> None:
        super().__init__()
        self.owners, self.factor = owners, factor
        self.running: list[nn.Module] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        if getattr(func, "__name__", "") in _NOT_USES:
            return func(*args, **(kwargs or {}))
        new = [self._scaled(a) for a in args]
        return func(*new, **(kwargs or {}))

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
    handles = []
    for module in contents.modules(model):
        handles.append(
            nn.Module.register_forward_pre_hook(
                module, lambda m, _: mode.running.append(m)
            )
        )
        handles.append(
            nn.Module.register_forward_hook(
                module, lambda *_: mode.running.pop() and None, always_call=True
            )
        )
    try:
        with mode:
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def scaled_outputs(
    model: nn.Module, factor: float, paths: Collection[str]
) -> Iterator[None]:
    """Scales the gradient that these tensors of the model's output get from a loss."""

    def scale(path: str, value: Tensor) -> Tensor:
        is_meant = value.requires_grad and (path or "output") in paths
        return scaled_gradient(value, factor) if is_meant else value

    handle = nn.Module.register_forward_hook(
        model, lambda _, __, output: tree.replace(output, scale)
    )
    try:
        yield
    finally:
        handle.remove()
