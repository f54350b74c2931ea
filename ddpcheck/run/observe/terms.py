"""Terms of a loss that no data reach: penalties, priors, regularizers.

What is computed from parameters, buffers, what modules keep in attributes and numbers
alone is such a term, whichever module computes it. Where one is added to a number that
data reach, `scaled_terms` scales its gradient.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ddpcheck.compare import tree
from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.observe.beside import tensors_in_attributes
from ddpcheck.run.observe.direct import scaled_gradient

# Names of torch's functions that add their operands, or lay them side by side to be
# added; `+=` is the method add_.
_ADDS = {"add", "sub", "__rsub__", "add_", "sub_", "stack", "cat"}
# What makes tensors of constants: the moments of a standard normal, for one.
_CONSTANT = {"zeros", "ones", "full", "eye", "arange", "linspace"}
_OUT_OF_PLACE = {"add_": torch.add, "sub_": torch.sub}


class _Terms(TorchFunctionMode):
    """Follows what is computed without data through every function of torch."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self._known: dict[int, weakref.ref[Tensor]] = {}
        kept = tensors_in_attributes(model)  # the moments of a prior, for one
        for tensor in (*contents.tensors(model), *kept):
            self._add(tensor)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        operands = tree.held((args, kwargs))
        free = [t for t in operands if self._is_free(t)]
        if len(free) < len(operands):
            if free and self._adds_numbers(func, operands):
                if self._is_free(args[0]) and args[0].requires_grad:
                    # What `+=` returns takes the old one's place.
                    func = _OUT_OF_PLACE.get(func.__name__, func)
                args = tree.replace(args, self._scaled)
            result = func(*args, **kwargs)
            for made in tree.held(result):  # what was written into, too
                self._known.pop(id(made), None)
            return result
        result = func(*args, **kwargs)
        for made in tree.held(result):
            # A number from none is where a sum begins; anything larger may be data.
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


@contextlib.contextmanager
def scaled_terms(model: nn.Module, factor: float) -> Iterator[None]:
    """Scales the gradient of numbers without data where they are added to others."""
    with _Terms(model, factor):
        yield
