"""Modes that see what torch computes: each calls what it sees in `called`."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

from ddpcheck.run import private


class FunctionMode(TorchFunctionMode):
    """Sees every torch function within the context."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Returns what `called` returns."""
        del types
        return self.called(func, args, kwargs or {})

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the result of a function."""
        raise NotImplementedError


class DispatchMode(private.DispatchMode):
    """Sees every operation within the context, those of torch's own functions too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Returns what `called` returns."""
        del types
        return self.called(func, args, kwargs or {})

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Returns the result of an operation."""
        raise NotImplementedError
