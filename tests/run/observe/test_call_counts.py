"""Calls of modules with buffers are counted, also if wrapping replaces the modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddpcheck.run import surroundings


class Wrapper(nn.Module):
    """Names its model as DistributedDataParallel does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Returns the model's output."""
        result: Tensor = self.module(x)
        return result


class Owner(nn.Module):
    """A model with its own buffer and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        """Calls the norm twice."""
        result: Tensor = self.norm(self.norm(x))
        return result


def test_module_that_wrapping_made_is_counted_and_the_wrapper_is_not() -> None:
    model = Owner()
    calls = surroundings.count_calls(model)
    model.norm = nn.BatchNorm1d(2)  # a conversion of the user's own
    wrapped = Wrapper(model)
    surroundings.count_new_calls(wrapped, calls)
    wrapped(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)))
    assert calls == {"": 1, "norm": 2}


def test_what_takes_over_the_hooks_is_counted_once() -> None:
    model = Owner()
    calls = surroundings.count_calls(model)
    taken = nn.BatchNorm1d.__new__(nn.BatchNorm1d)
    vars(taken).update(vars(model.norm))
    model.norm = taken
    surroundings.count_new_calls(Wrapper(model), calls)
    model(torch.ones(3, 2))
    assert calls == {"": 1, "norm": 2}


def test_batch_norm_that_evaluates_is_not_counted_and_other_modules_are() -> None:
    model = Owner()
    calls = surroundings.count_calls(model)
    model.eval()(torch.ones(3, 2))
    assert calls == {"": 1, "norm": 0}
    model.train()(torch.ones(3, 2))
    assert calls == {"": 2, "norm": 2}
