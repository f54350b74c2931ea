"""Numbers that every rank computes of its own samples, made equal on all ranks.

STATISTICS_OF_ALL_RANKS: a mean, deviation, quantile or extreme over samples, without a
gradient: numbers that normalize, weight or cut off a loss. Each is computed on the rows
of all ranks, by the function that the target calls. Losses that the target detaches,
one or one per task, become means over ranks.

MEAN_OF_NUMBERS, SUM_OF_NUMBERS: `item()`, `float()` and comparisons of a tensor with
one number return the mean over ranks, a condition (`if`) whether it holds on any rank.
A loss is the mean over ranks as soon as its backward has ended, as optimizers get the
tensor itself. In SUM_OF_NUMBERS integers are counts, and the sum over ranks is read.

All ranks must call these equally often, as with collectives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.run import private
from ddpcheck.run.intervention import Switch
from ddpcheck.run.interventions.acts import Acts
from ddpcheck.run.interventions.gradients import backwards
from ddpcheck.run.interventions.rows.gather import (
    gathered,
    mean_over_ranks,
    rows_of_ranks,
)
from ddpcheck.run.model import contents
from ddpcheck.run.process.modes import FunctionMode

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


class _OfAllRows(FunctionMode):
    """Reduces the rows of all ranks, except during backward, where DDP communicates."""

    def __init__(self, rows: Callable[[], int], model: nn.Module, acts: Acts) -> None:
        super().__init__()
        self._rows, self._model, self._acts = rows, model, acts
        self._is_backward = False

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        name = getattr(func, "__name__", "")
        if name in _TAKEN and not self._is_backward and args:
            with private.no_torch_function():
                if name == "detach":
                    return self._detached(args[0])
                if self._is_of_samples(name, args, kwargs):
                    self._acts.note(Switch.STATISTICS_OF_ALL_RANKS)
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
        self._acts.note(Switch.STATISTICS_OF_ALL_RANKS)
        return mean_over_ranks(value.detach())

    def _is_of_samples(self, name: str, args: Any, kwargs: Any) -> bool:
        """Returns whether the function reduces rows of samples without a gradient."""
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
def statistics_together(
    rows: Callable[[], int], model: nn.Module, acts: Acts
) -> Iterator[None]:
    """Makes statistics of samples, without gradient, those of all ranks' samples.

    Args:
        rows: gives the number of this rank's samples in the current step.
        model: as wrapped; its own tensors hold no samples.
        acts: notes the lines that compute them.
    """
    mode = _OfAllRows(rows, model, acts)
    with backwards.outermost(mode.run), mode:
        yield


_READS = {"item", "bool", "float", "int"}
_COMPARES = {"lt", "le", "gt", "ge", "eq", "ne"}


class _SharedNumbers(FunctionMode):
    """Returns numbers of all ranks, except during backward, where DDP communicates."""

    def __init__(self, acts: Acts, *, sums: bool) -> None:
        super().__init__()
        self.acts, self.sums = acts, sums
        self.by = Switch.SUM_OF_NUMBERS if sums else Switch.MEAN_OF_NUMBERS
        self.is_backward = False
        # Losses that are the mean over ranks since their backward: (mean, the rank's
        # own value) by place in memory.
        self.means: dict[int, tuple[float, float]] = {}

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        name = getattr(func, "__name__", "").strip("_")
        asks = name in _READS | _COMPARES and not self.is_backward
        if not asks or not all(map(_is_a_number, args)):
            return func(*args, **kwargs)
        with private.no_torch_function():
            of_all = _sum_or_mean if self.sums and name != "bool" else _of_all
            told = [of_all(value, is_condition=name == "bool") for value in args]
            for mine, value in zip(args, told, strict=True):
                self._note(mine, value)
            return func(*told, **kwargs)

    def _note(self, mine: Any, value: Any) -> None:
        """Notes what this rank would have read, if it is another number."""
        if not isinstance(mine, Tensor):
            return
        mean, own = self.means.get(mine.data_ptr(), (None, 0.0))
        if value is not mine:  # the ranks have other numbers
            self.acts.note(self.by, float(mine))
        elif mean is not None and float(mine) == mean != own:
            self.acts.note(self.by, own)

    def run(self, backward: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Runs a backward; then the tensors it started from are the mean over ranks."""
        self.is_backward = True
        try:
            backward(*args, **kwargs)
        finally:
            self.is_backward = False
        with torch.no_grad(), private.no_torch_function():
            losses = _numbers((*args, *kwargs.values()))
            own = [float(loss) for loss in losses]
            for loss in losses:
                loss.data.copy_(_of_all(loss.data, is_condition=False))
            self.means = {
                loss.data_ptr(): (float(loss), value)
                for loss, value in zip(losses, own, strict=True)
            }


@contextlib.contextmanager
def numbers_together(acts: Acts, *, sums: bool = False) -> Iterator[None]:
    """Makes the ranks read the same numbers; `sums`: of whole ones their sum."""
    together = _SharedNumbers(acts, sums=sums)
    with backwards.outermost(together.run), together:
        yield


def _numbers(arguments: tuple[Any, ...]) -> list[Tensor]:
    first = next(iter(arguments), None)
    tensors = [first] if isinstance(first, Tensor) else list(first or ())
    return [t for t in tensors if isinstance(t, Tensor) and _is_a_number(t)]


def _is_a_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, int | float)


def _sum_or_mean(value: Any, *, is_condition: bool) -> Any:
    """Returns the sum over ranks where all have whole numbers, else as `_of_all`."""
    if not isinstance(value, Tensor) or value.dtype == torch.bool:
        return _of_all(value, is_condition=is_condition)
    mine = value.detach().double()
    told = torch.stack([mine, (mine != mine.round()).double()])
    dist.all_reduce(told)
    if told[1]:
        return _of_all(value, is_condition=is_condition)
    return told[0].to(value.dtype)


def _of_all(value: Any, *, is_condition: bool) -> Any:
    """Returns the number for all ranks, the rank's own where they have the same."""
    if not isinstance(value, Tensor):
        return value
    mine = value.detach().double()
    if is_condition:
        mine = (mine != 0).double()
    ends = torch.stack([mine, -mine])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    if bool(ends[0] == -ends[1]):
        return value
    if is_condition or value.dtype == torch.bool:
        return torch.ones_like(value)
    total = mine.clone()
    dist.all_reduce(total)
    mean = total / dist.get_world_size()
    return (mean if value.is_floating_point() else mean.round()).to(value.dtype)
