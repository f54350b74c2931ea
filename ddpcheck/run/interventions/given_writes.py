"""Substitutes "writes": what is written to buffers, as one process ends.

It answers whether what ranks write differently is all that is wrong, even where the
same step goes on to read it: the loss or the forward may then be right as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader
from ddpcheck.run import private
from ddpcheck.run.model.names import Names


@contextlib.contextmanager
def given(
    model: nn.Module, reader: Reader, step: Callable[[], int], modules: Container[str]
) -> Iterator[None]:
    """Makes every write to a buffer of these modules write one process's value.

    That is the one at the end of the step. `step` asks for the current one, from 0.
    What changes nothing, as DDP's broadcast of equal buffers does, stays as it is.
    """
    writes = _Writes(model, reader, step, modules)
    assign = nn.Module.__setattr__

    def assigning(module: nn.Module, name: str, value: Any) -> None:
        assign(module, name, value)
        if isinstance(value, Tensor) and name in module.__dict__.get("_buffers", ()):
            writes.written(value)

    with writes:
        nn.Module.__setattr__ = assigning  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            nn.Module.__setattr__ = assign  # type: ignore[method-assign]


class _Writes(private.DispatchMode):
    """Gives a buffer one process's value after each operation that writes to it."""

    def __init__(
        self,
        model: nn.Module,
        reader: Reader,
        step: Callable[[], int],
        modules: Container[str],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model, self._names = model, Names(model)
        self._reader, self._step, self._modules = reader, step, modules
        self._first = {n: b.clone() for n, b in self._buffers().items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the operation; looks at what its schema says it writes to."""
        del types
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        schema = getattr(func, "_schema", None)
        for place, argument in enumerate(getattr(schema, "arguments", ())):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = kwargs.get(argument.name)
                self.written(args[place] if place < len(args) else value)
        return made

    def written(self, value: Any) -> None:
        """Gives what shares memory with the tensor, or tensors, one process's value."""
        if isinstance(value, (list, tuple)):
            for each in value:
                self.written(each)
            return
        if not isinstance(value, Tensor):
            return
        for name, buffer in self._buffers().items():
            is_same = _memory(buffer) == _memory(value)
            if is_same and not self._is_as_before(name, buffer):
                told = self._reader.find("buffers", self._step(), name)
                if told is not None and told.shape == buffer.shape:
                    buffer.data.copy_(told)

    def _buffers(self) -> dict[str, Tensor]:
        found = self._names.buffers(self._model)
        return {n: b for n, b in found.items() if n.rpartition(".")[0] in self._modules}

    def _is_as_before(self, name: str, buffer: Tensor) -> bool:
        step = self._step()
        before = self._reader.find("buffers", step - 1, name) if step else None
        before = self._first.get(name) if before is None else before
        return before is not None and torch.equal(before.to(buffer), buffer)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
