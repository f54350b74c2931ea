"""What a loss, a step or a module remembers from call to call, put back for every pass.

A normaliser smoothed over iterations, a coefficient that adapts, centres of classes:
the second pass of a probe would find what the first one left, and what follows from
that would look like samples that depend on each other. Plain data are put back, in
objects of any class within sight; files, iterators and threads are left alone. So are
flags and containers of networks that come from a library: they tell of hooks and
methods that it has replaced, which stay.
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
_MOST = 20_000  # things that are looked at
_MOST_BYTES = 1 << 28  # of tensors and arrays that are copied
_NUMBERS: tuple[type, ...] = (bool, int, float, complex, Tensor, np.ndarray)
_CONTAINERS: tuple[type, ...] = (tuple, list, dict, set, collections.deque)
_FLAGS = (bool, int, float, str, type(None))
_PLAIN = (*_NUMBERS, *_CONTAINERS, str, bytes, type(None))
_CELL = "cell_contents"


class Kept:
    """The plain data within sight of a target and its model, as they are now."""

    def __init__(self, target: Target, model: nn.Module) -> None:
        self._undo: list[Undo] = []
        # What is not to be looked into, by its id; held, so that no id is used again.
        self._seen: dict[int, Any] = {id(v): v for v in (target.model, target.batch)}
        self._left, self._bytes = _MOST, _MOST_BYTES
        for module in contents.modules(model):
            self._note_module(module, is_models=True)
        for function in (target.loss, target.train_step):
            self._note(function)

    def put_back(self) -> None:
        """Makes everything what it was."""
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
        """Notes what a function of the user's closes over, and the globals it names."""
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
            self._note_flags(vars(module))  # a step may mark what it has done with it
        elif used_names.is_of_library(type(module)) and (
            is_models or any(contents.own_modules(module))
        ):
            self._note_figures(vars(module))
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
        """Notes the plain values among named ones; new ones are taken away again."""
        if not isinstance(held, dict):
            return  # only shown: nothing can be put back there

        def mine() -> dict[str, Any]:
            names = set(held if only is None else only) - but
            return {n: held[n] for n in names if n in held and not n.startswith("__")}

        before = mine()
        plain = {name: v for name, v in before.items() if isinstance(v, _PLAIN)}

        def undo() -> None:
            for name, value in mine().items():
                if name not in before and isinstance(value, _PLAIN):
                    del held[name]
            held.update(plain)

        self._undo.append(undo)
        self._note_all(before.values())

    def _note_flags(self, held: dict[str, Any]) -> None:
        def mine() -> dict[str, Any]:
            return {
                name: value
                for name, value in held.items()
                if isinstance(value, _FLAGS) and name not in MODULES_OWN
            }

        before = mine()

        def undo() -> None:
            for name in mine().keys() - before.keys():
                del held[name]
            held.update(before)

        self._undo.append(undo)

    def _note_figures(self, held: dict[str, Any]) -> None:
        figures = {
            name: value
            for name, value in held.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._undo.append(functools.partial(held.update, figures))

    def _note_container(self, value: Any) -> None:
        before = value.copy()

        def undo() -> None:
            if _is_as_before(value, before):
                return  # it may refuse to be written
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
        """Notes the numbers of an array, or of a tensor at the root of its graph."""
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
                if value.shape != copy.shape:
                    value.data = copy.clone()
                elif not torch.equal(value, copy):
                    value.copy_(copy)

        self._undo.append(undo)


def _is_as_before(container: Any, before: Any) -> bool:
    """Returns whether a container holds the very things that it held."""
    if len(container) != len(before):
        return False
    if isinstance(container, set):
        return bool(container == before)
    if isinstance(container, dict):
        return all(k in container and container[k] is v for k, v in before.items())
    return all(a is b for a, b in zip(container, before, strict=True))


def restore(tensors: dict[str, Tensor], model: nn.Module) -> None:
    """Puts parameters and buffers back to what `snapshot` saw."""
    with torch.no_grad():
        for name, tensor in [
            *contents.named_parameters(model),
            *contents.named_buffers(model),
        ]:
            if name not in tensors:
                continue
            if tensor.shape == tensors[name].shape:
                tensor.copy_(tensors[name])
            else:  # a hidden state has a row per sample once it is there
                tensor.data = tensors[name].clone()


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Returns copies of all parameters and buffers."""
    return {
        name: t.detach().clone()
        for name, t in [
            *contents.named_parameters(model),
            *contents.named_buffers(model),
        ]
    }
