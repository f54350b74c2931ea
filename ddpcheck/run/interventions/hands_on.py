"""Switch.CALLS_THROUGH_DDP: what DDP lacks and the model inside has is found.

A method is called through DDP's forward, as the forward of the model: the reducer is
armed, and the method's gradients are reduced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.model import contents

_FORWARD = "forward"


def handing_on(model: nn.Module) -> nn.Module:
    """Returns the model, whose DDP objects have the attributes of what they wrap."""
    return contents.replace(model, _is_wrapper, _extended)


def _is_wrapper(module: nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel)  # or what stands for one


def _extended(wrapper: Any) -> nn.Module:
    # By the slot of `object`: a stand-in answers for its class itself.
    object.__dict__["__class__"].__set__(wrapper, _kind(type(wrapper)))
    extended: nn.Module = wrapper
    return extended


def _kind(kind: type[Any]) -> type[Any]:
    """Returns a class as this one, whose objects hand on what they lack."""

    def find(self: Any, name: str) -> Any:
        try:
            return kind.__getattr__(self, name)
        except AttributeError:
            inner = vars(self)["_modules"].get("module")
            if inner is None or name.startswith("__") or not hasattr(inner, name):
                raise
        return _through(self, inner, getattr(inner, name))

    return type(kind.__name__, (kind,), {"__getattr__": find})


def _through(wrapper: nn.Module, inner: nn.Module, found: Any) -> Any:
    """Returns an attribute of the model; its calls go through the wrapper."""
    if isinstance(found, nn.Module):
        return _Part(wrapper, inner, found)
    if not callable(found) or isinstance(found, type):
        return found
    return functools.wraps(found)(functools.partial(_called, wrapper, inner, found))


def _called(
    wrapper: nn.Module,
    inner: nn.Module,
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    held = vars(inner)
    before = held.get(_FORWARD)

    def put_back() -> None:
        if before is None:
            held.pop(_FORWARD, None)
        else:
            held[_FORWARD] = before

    def once(*args: Any, **kwargs: Any) -> Any:
        put_back()  # what is called may call the model itself
        return function(*args, **kwargs)

    held[_FORWARD] = once
    try:
        return wrapper(*args, **kwargs)
    finally:
        put_back()


class _Part:
    """A part of the model, as the wrapper's user sees it: calls go through both."""

    def __init__(self, wrapper: nn.Module, inner: nn.Module, part: nn.Module) -> None:
        self._given = wrapper, inner, part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the part within the wrapper's forward."""
        return _called(*self._given, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Returns the part's own attribute."""
        return getattr(self._given[2], name)
