"""Modes of torch call what they see in `called`."""

from __future__ import annotations

from typing import Any

import torch

from ddpcheck.run.process.modes import DispatchMode, FunctionMode


class Functions(FunctionMode):
    """Notes the names of torch functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        self.names.append(func.__name__)
        return func(*args, **kwargs)


class Operations(DispatchMode):
    """Notes the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the operation."""
        self.names.append(str(func))
        return func(*args, **kwargs)


def test_a_function_mode_sees_functions_with_their_arguments() -> None:
    x = torch.ones(2, 2)
    with Functions() as mode:
        y = torch.sum(x, dim=0)
    assert (mode.names, y.tolist()) == (["sum"], [2.0, 2.0])
    torch.sum(x)
    assert mode.names == ["sum"]


def test_a_dispatch_mode_sees_what_functions_are_made_of() -> None:
    x = torch.ones(2, 2)
    with Operations() as mode:
        y = torch.square(x)
    assert mode.names == ["aten.pow.Tensor_Scalar"]
    assert y.tolist() == [[1.0, 1.0], [1.0, 1.0]]
