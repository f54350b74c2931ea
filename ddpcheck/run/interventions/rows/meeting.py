"""The lines of a loss at which samples meet: what no mean over ranks can make good.

A mean or sum over samples may be computed in each rank, and averaged. What is not
linear in one, as a clamp, a quotient or a root, may not; neither may the largest of all
samples, or the product of all with all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from ddpcheck.run import private
from ddpcheck.run.intervention import GlobalLoss
from ddpcheck.run.interventions.acts import Acts
from ddpcheck.run.model import contents
from ddpcheck.run.process.modes import FunctionMode

_SUMS = {"sum", "mean", "nansum", "nanmean"}
# Functions that are not linear in the samples, and where `dim` stands.
_OF_ALL = {
    "amax": 1,
    "amin": 1,
    "argsort": 1,
    "logsumexp": 1,
    "max": 1,
    "median": 1,
    "min": 1,
    "norm": 2,
    "prod": 1,
    "quantile": 2,
    "sort": 1,
    "std": 1,
    "topk": 2,
    "var": 1,
}
_PRODUCTS = {"bmm", "cdist", "einsum", "matmul", "mm", "rmatmul"}
_KEEP = {  # linear functions of one tensor, and of several that are alike
    *_SUMS,
    "add",
    "cat",
    "clone",
    "contiguous",
    "detach",
    "double",
    "expand",
    "flatten",
    "float",
    "getitem",
    "neg",
    "permute",
    "radd",
    "reshape",
    "rsub",
    "select",
    "squeeze",
    "stack",
    "sub",
    "t",
    "to",
    "transpose",
    "unsqueeze",
    "view",
}
_SCALE = {"div", "mul", "rmul", "truediv"}  # linear if the other is a constant
_READ = {"backward", "item", "tolist", "size", "dim", "numel", "get", "len", "format"}


class _Meeting(FunctionMode):
    """Notes the lines that compute anything but a sum over samples.

    Args:
        rows: returns the number of samples that the loss has.
        model: its weights are no samples.
        acts: notes the lines.
    """

    def __init__(self, rows: Callable[[], int], model: nn.Module, acts: Acts) -> None:
        super().__init__()
        self._rows, self._model, self._acts = rows, model, acts
        self.depth = 0  # of forwards of the model, which mix nothing
        # Sums over samples, and linear functions of these.
        self._sums: Any = WeakTensorKeyDictionary()

    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the function."""
        result = func(*args, **kwargs)
        if not self.depth:
            name = getattr(func, "__name__", "").strip("_")
            with private.no_torch_function(), contextlib.suppress(Exception):
                self._see(name, list(_tensors(args)), (args, kwargs), result)
        return result

    def _see(self, name: str, tensors: list[Tensor], given: Any, result: Any) -> None:
        sums = [t for t in tensors if t in self._sums]
        if self._meet(name, tensors, sums, given):
            self._acts.note(GlobalLoss.__name__)
        elif isinstance(result, Tensor) and (
            sums or (name in _SUMS and self._is_of_rows(tensors[0], given, 1))
        ):
            self._sums[result] = True

    def _meet(
        self, name: str, tensors: list[Tensor], sums: list[Tensor], given: Any
    ) -> bool:
        """Returns whether the function is not linear in the samples."""
        if not tensors or name in _READ:
            return False
        if name in _PRODUCTS:
            mixed = [t for t in tensors if self._has_rows(t) and not self._is_weight(t)]
            return len(mixed) > 1 and any(t.requires_grad for t in mixed)
        if name in _OF_ALL and self._is_of_rows(tensors[0], given, _OF_ALL[name]):
            return tensors[0].requires_grad
        if not sums or not any(t.requires_grad for t in tensors):
            return False
        if name in _SCALE:
            is_divisor = name.endswith("div") and any(
                t in self._sums for t in tensors[1:]
            )
            others = [t for t in tensors if t not in self._sums and t.requires_grad]
            return is_divisor or len(sums) > 1 or bool(others)
        return name not in _KEEP

    def _is_of_rows(self, value: Tensor, given: Any, at: int) -> bool:
        """Returns whether a reduction is over the samples."""
        args, kwargs = given
        if value in self._sums or not self._has_rows(value):
            return False
        dim = args[at] if len(args) > at else kwargs.get("dim", kwargs.get("axis"))
        if isinstance(dim, Tensor):
            return False  # the larger of two
        dims = (dim,) if isinstance(dim, int) else dim or range(value.dim())
        return any(d % value.dim() == 0 for d in dims)

    def _is_weight(self, value: Tensor) -> bool:
        place = value.untyped_storage().data_ptr()
        held = contents.tensors(self._model)
        return any(t.untyped_storage().data_ptr() == place for t in held)

    def _has_rows(self, value: Tensor) -> bool:
        rows = self._rows()
        return bool(rows) and any(size and size % rows == 0 for size in value.shape)


@contextlib.contextmanager
def noted(rows: Callable[[], int], model: nn.Module, acts: Acts) -> Iterator[None]:
    """Notes the lines at which samples meet, outside of the model's forward."""
    mode = _Meeting(rows, model, acts)

    def enter(*_: object) -> None:
        mode.depth += 1

    def leave(*_: object) -> None:
        mode.depth -= 1

    with (
        nn.Module.register_forward_pre_hook(model, enter),
        nn.Module.register_forward_hook(model, leave, always_call=True),
        mode,
    ):
        yield


def _tensors(args: Any) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
