"""The state of a target and its model, put back before every pass of a probe.

A loss, a step or a module may keep state from call to call: a normaliser smoothed over
iterations, an adaptive coefficient, centres of classes. If a second pass found what the
first one left, the loss would look as if samples depended on each other.

Put back are parameters, buffers and plain data of objects that the target reaches.
Files, iterators and threads are left alone, and so are flags and containers of networks
from a library: these record hooks and methods that the library has replaced, which
stay replaced.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import random
import types
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpcheck.run.model import contents
from ddpcheck.run.observe import used_names
from ddpcheck.run.observe.external_state import MODULES_OWN
from ddpcheck.target.target import Target

Undo = Callable[[], object]
_MOST = 20_000  # objects that are visited
_MOST_BYTES = 1 << 28  # of tensors and arrays that are copied
_NUMBERS: tuple[type, ...] = (bool, int, float, complex, Tensor, np.ndarray)
_CONTAINERS: tuple[type, ...] = (tuple, list, dict, set, collections.deque)
_FLAGS = (bool, int, float, str, type(None))
_PLAIN = (*_NUMBERS, *_CONTAINERS, str, bytes, type(None))
_CELL = "cell_contents"


class Kept:
    """The state of a target and its model when this object is made."""

    def __init__(self, target: Target, model: nn.Module) -> None:
        self._model = model
        self._tensors = {n: t.detach().clone() for n, t in _state(model)}
        self._undo: list[Undo] = []
        # Objects that are not visited (again), by id; held, since ids are reused.
        self._seen: dict[int, Any] = {id(v): v for v in (target.model, target.batch)}
        self._left, self._bytes = _MOST, _MOST_BYTES
        for module in contents.modules(model):
            self._note_module(module, is_models=True)
        for function in (target.loss, target.train_step):
            self._note(function)

    def put_back(self) -> None:
        """Restores the state."""
        with torch.no_grad():
            for name, tensor in _state(self._model):
                if name in self._tensors:
                    _restore(tensor, self._tensors[name])
        for undo in self._undo:
            undo()

    def _note(self, value: Any) -> None:
        if isinstance(value, type) or id(value) in self._seen or self._left <= 0:
            return
        self._seen[id(value)] = value
        self._left -= 1
        with contextlib.suppress(Exception):  # a lazy module, a tensor without data
            self._note_new(value)

    def _note_new(self, value: Any) -> None:
        if isinstance(value, Tensor | np.ndarray):
            self._note_numbers(value)
        elif isinstance(value, torch.Generator):
            self._undo.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._undo.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, nn.Module):
            self._note_module(value)
        elif isinstance(value, dict | list | set | collections.deque):
            self._note_container(value)
        elif isinstance(value, tuple):
            self._note_all(value)
        elif isinstance(value, types.FunctionType):
            self._note_function(value)
        elif isinstance(value, types.MethodType):
            self._note_all((value.__self__, value.__func__))
        elif not isinstance(value, types.ModuleType) and hasattr(value, "__dict__"):
            self._note_attributes(vars(value))

    def _note_all(self, values: Iterable[Any]) -> None:
        for value in list(values):
            self._note(value)

    def _note_function(self, function: types.FunctionType) -> None:
        """Notes the closure of a user's function, and the globals that it names."""
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # not assigned yet
                content = cell.cell_contents
                if isinstance(content, _PLAIN):
                    self._undo.append(functools.partial(setattr, cell, _CELL, content))
                self._note(content)
        self._note_all((function.__dict__, function.__defaults__ or ()))
        if not used_names.is_of_torch(function) and not used_names.is_of_library(
            function
        ):
            self._note_attributes(
                function.__globals__, used_names.names_in(function.__code__)
            )

    def _note_module(self, module: nn.Module, *, is_models: bool = False) -> None:
        """Notes a module's attributes, and tensors that are not the model's own."""
        self._seen[id(module)] = module
        if used_names.is_of_torch(type(module)):
            # A step may mark a module of torch.
            self._put_back_names(vars(module), _is_flag)
        elif used_names.is_of_library(type(module)) and (
            is_models or any(contents.own_modules(module))
        ):
            self._put_back_names(vars(module), _is_figure, removes=False)
        else:
            self._note_attributes(vars(module), but=MODULES_OWN)
        if not is_models:
            for held in ("_parameters", "_buffers", "_modules"):
                self._note(vars(module)[held])

    def _note_attributes(
        self,
        held: dict[str, Any] | types.MappingProxyType[str, Any],
        only: AbstractSet[str] | None = None,
        but: AbstractSet[str] = frozenset(),
    ) -> None:
        """Notes the values of named attributes."""
        if not isinstance(held, dict):
            return  # a read-only view

        def is_named(name: str) -> bool:
            is_wanted = only is None or name in only
            return is_wanted and name not in but and not name.startswith("__")

        self._put_back_names(held, lambda n, v: is_named(n) and isinstance(v, _PLAIN))
        self._note_all([value for name, value in held.items() if is_named(name)])

    def _put_back_names(
        self,
        held: dict[str, Any],
        choose: Callable[[str, Any], bool],
        *,
        removes: bool = True,
    ) -> None:
        """Notes the chosen values; `removes`: new ones are removed later."""
        names = set(held)
        before = {n: v for n, v in held.items() if choose(n, v)}

        def undo() -> None:
            if removes:
                for name, value in list(held.items()):
                    if name not in names and choose(name, value):
                        del held[name]
            held.update(before)

        self._undo.append(undo)

    def _note_container(self, value: Any) -> None:
        before = value.copy()

        def undo() -> None:
            if _is_as_before(value, before):
                return  # a container may refuse to be written
            if isinstance(value, dict | set):
                value.clear()
                value.update(before)
            elif isinstance(value, list):
                value[:] = before
            else:
                value.clear()
                value.extend(before)

        self._undo.append(undo)
        self._note_all(value.values() if isinstance(value, dict) else value)

    def _note_numbers(self, value: Tensor | np.ndarray[Any, Any]) -> None:
        """Notes the numbers of an array or of a leaf tensor."""
        self._bytes -= value.nbytes
        if self._bytes < 0 or (isinstance(value, Tensor) and not value.is_leaf):
            return
        if isinstance(value, np.ndarray):
            array = value.copy()
            self._undo.append(lambda: np.copyto(value, array))
            return
        copy = value.detach().clone()

        def undo() -> None:
            with torch.no_grad():
                if value.shape != copy.shape or not torch.equal(value, copy):
                    _restore(value, copy)

        self._undo.append(undo)


def _state(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*contents.named_parameters(model), *contents.named_buffers(model)]


def _restore(tensor: Tensor, copy: Tensor) -> None:
    if tensor.shape == copy.shape:
        tensor.copy_(copy)
    else:  # a hidden state gets a row per sample in the first forward
        tensor.data = copy.clone()


def _is_flag(name: str, value: Any) -> bool:
    return isinstance(value, _FLAGS) and name not in MODULES_OWN


def _is_figure(_: str, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_as_before(container: Any, before: Any) -> bool:
    """Returns whether a container holds the same objects as before."""
    if len(container) != len(before):
        return False
    if isinstance(container, set):
        return bool(container == before)
    if isinstance(container, dict):
        return all(k in container and container[k] is v for k, v in before.items())
    return all(a is b for a, b in zip(container, before, strict=True))
