"""Switch.STATISTICS_OF_ALL_RANKS: samples of all ranks are reduced to numbers.

A mean, a deviation, a quantile or an extreme over samples, of what carries no gradient:
the numbers by which a loss is normalised, weighed or cut off. Each is computed of the
rows of all ranks, by the function that the target calls. Losses, one or one of each
task, that the target detaches are means over ranks from there. All ranks have to call
these as often.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ddpcheck.run import private
from ddpcheck.run.interventions import backwards
from ddpcheck.run.interventions.gather import gathered, mean_over_ranks, rows_of_ranks
from ddpcheck.run.model import contents

# Functions that reduce rows, and where among their arguments the dimension stands.
_REDUCE = {
    "all": 1,
    "amax": 1,
    "amin": 1,
    "any": 1,
    "max": 1,
    "mean": 1,
    "median": 1,
    "min": 1,
    "nanmean": 1,
    "nanquantile": 2,
    "norm": 2,
    "quantile": 2,
    "std": 1,
    "std_mean": 1,
    "sum": 1,
    "var": 1,
    "var_mean": 1,
}
_TAKEN = {*_REDUCE, "detach"}
_MOST_LOSSES = 64  # of as many tasks, or parts


class _OfAllRows(TorchFunctionMode):
    """Reduces the rows of all ranks, but within a backward: DDP is at work there."""

    def __init__(self, rows: Callable[[], int], model: nn.Module) -> None:
        super().__init__()
        self._rows, self._model = rows, model
        self._is_backward = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _TAKEN and not self._is_backward and args:
            with private.no_torch_function():
                if name == "detach":
                    return self._detached(args[0])
                if self._is_of_samples(name, args, kwargs):
                    args = (self._of_all(args[0]), *args[1:])
        return func(*args, **kwargs)

    def run(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs a backward, in which nothing is asked of other ranks."""
        self._is_backward = True
        try:
            backward(*args, **kwargs)
        finally:
            self._is_backward = False

    def _detached(self, value: Tensor) -> Tensor:
        """Returns losses without their gradient: means over ranks."""
        if not value.requires_grad or value.dim() > 1 or value.numel() > _MOST_LOSSES:
            return value.detach()
        is_of_rows = bool(value.dim()) and len(value) % (self._rows() or 1) == 0
        if is_of_rows or self._is_models(value):
            return value.detach()
        return mean_over_ranks(value.detach())

    def _is_of_samples(self, name: str, args: Any, kwargs: Any) -> bool:
        """Returns whether what is reduced are rows without a gradient, of samples."""
        value, at = args[0], _REDUCE[name]
        if not isinstance(value, Tensor) or value.requires_grad or not value.dim():
            return False
        given = args[at] if len(args) > at else kwargs.get("dim", kwargs.get("axis"))
        if isinstance(given, Tensor):
            return False  # the larger of two
        dims = (given,) if isinstance(given, int) else given or range(value.dim())
        if not any(dim % value.dim() == 0 for dim in dims):
            return False
        rows = self._rows()
        return bool(rows) and len(value) % rows == 0 and not self._is_models(value)

    def _is_models(self, value: Tensor) -> bool:
        """Returns whether it is a weight, a gradient or a buffer, whole or in part."""
        place = value.untyped_storage().data_ptr()
        own = [*contents.tensors(self._model)]
        own += [p.grad for p in contents.parameters(self._model) if p.grad is not None]
        return any(t.untyped_storage().data_ptr() == place for t in own)

    def _of_all(self, value: Tensor) -> Tensor:
        times = len(value) // self._rows()
        sizes = tuple(n * times for n in rows_of_ranks(self._rows()))
        return gathered(value, 0, sizes)


@contextlib.contextmanager
def statistics_together(rows: Callable[[], int], model: nn.Module) -> Iterator[None]:
    """Makes what samples are reduced to without gradient that of all ranks.

    Args:
        rows: gives the number of this rank's samples in the current step.
        model: as wrapped; its own tensors hold no samples.
    """
    mode = _OfAllRows(rows, model)
    with backwards.outermost(mode.run), mode:
        yield
