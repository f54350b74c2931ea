"""State beside the model: what training code keeps outside parameters and buffers.

The centre in a criterion, an average in a trainer, counts in a plain attribute of a
module. DDP sends none of it and no run is judged by it, but gradients of later steps
are made with it: where they differ, it may be why. One process writes what moved in a
step; a rank says what differs, and, for an intervention, takes one process's.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import types
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader
from ddpcheck.run.intervention import substituted
from ddpcheck.run.model import contents
from ddpcheck.run.observe import sight
from ddpcheck.run.observe.weight_copies import keys_of_weights
from ddpcheck.run.private import version
from ddpcheck.run.spec import FEW, KeptOtherwise, RunSpec
from ddpcheck.target.target import Target

QUANTITY = "beside"

_MOST = 2_000  # things that are looked at
_MOST_ENTRIES = 64  # of a list, or a dict
_MOST_BYTES = 1 << 26  # of what moved in a step, and of an array that may have moved
MODULES_OWN = set(vars(nn.Module()))  # hooks and what torch keeps: not the user's
_OPTIMIZERS_OWN = {"defaults", "state", "param_groups"}
_CONTAINERS: tuple[type, ...] = (list, tuple, dict)
_ITEM = re.compile(r"\[\d+\]$")


@dataclass(frozen=True, slots=True)
class Place:
    """A number or tensor that is kept somewhere, and how it is written.

    `mark` is another one when the value has been written or replaced. `is_weight`: it
    is a parameter of some module, or a copy of the model's; `is_buffer`: a buffer.
    """

    value: Tensor
    write: Callable[[Tensor], object]
    mark: tuple[Any, ...]
    is_weight: bool = False
    is_buffer: bool = False


class Beside:
    """What is in sight of a target's functions and its model, but for the model's own.

    Args:
        target: whose loss and training step are looked at.
        model: bare, built from the target.
        optimizer: that trains it; what training code hangs on it is looked at.
    """

    def __init__(self, target: Target, model: nn.Module, optimizer: Any) -> None:
        self._roots = (target.loss, target.train_step)
        self._optimizer = optimizer
        self._model = model
        self._marks: dict[str, tuple[Any, ...]] = {}
        self._moving: set[str] = set()  # what has moved in some step

    def begin(self) -> None:
        """Notes what there is before the first step."""
        self._marks = {name: place.mark for name, place in self.places().items()}

    def moved(self) -> dict[str, Tensor]:
        """Returns what was made, replaced or written since, by name, up to a size.

        And a few numbers that stay this time, as those of ranks may not.
        """
        found: dict[str, Tensor] = {}
        room, marks = _MOST_BYTES, dict[str, tuple[Any, ...]]()
        for name, place in self.places().items():
            marks[name] = place.mark
            is_moving = name in self._moving and place.value.numel() <= FEW
            if self._marks.get(name) == place.mark and not is_moving:
                continue
            self._moving.add(name)
            room -= place.value.nbytes
            if room > 0:
                found[name] = place.value
        self._marks = marks
        return found

    def places(self) -> dict[str, Place]:
        """Returns all places by name: "criterion.center", "model.head.counts"."""
        walk = _walk_through(self._model)
        walk.visit("optimizer", self._optimizer, None)
        for root in self._roots:
            walk.visit("loss" if root is self._roots[0] else "train_step", root, None)
        return walk.found


def tensors_in_attributes(model: nn.Module) -> list[Tensor]:
    """Returns what the model's modules keep in plain attributes, and further inside."""
    return [place.value for place in _walk_through(model).found.values()]


def look(
    kept: Beside,
    reader: Reader,
    spec: RunSpec,
    step: int,
    noted: dict[str, KeptOtherwise],
) -> None:
    """Notes what a rank keeps otherwise than one process after a step.

    What fixes substitute beside the model has one process's values afterwards.
    """
    written = reader.names(QUANTITY, step)
    if not written:
        return
    places = kept.places()
    # Of a history that grows all that is added, too.
    asked = {_collection(n) for n in substituted(spec.fixes, "beside") or ()}
    for name in written.keys() & places.keys():
        reference, place = reader.get(QUANTITY, step, name), places[name]
        if reference is None:
            continue
        if place.value.shape != reference.shape:
            if _has_fewer_rows(place.value, reference):
                told = KeptOtherwise(step=step, has_fewer_rows=True)
                noted.setdefault(name, told)
            continue
        apart = _apart(place.value, reference)
        if apart:
            told = KeptOtherwise(
                step=step,
                rel_diff=apart,
                is_weight=place.is_weight,
                is_trained=place.value.grad is not None,
                is_buffer=place.is_buffer,
                size=reference.numel(),
            )
            noted.setdefault(name, told)
        if _collection(name) in asked:
            place.write(reference)


def _collection(name: str) -> str:
    """Returns the name of the list that an item is in, any other name as it is.

    >>> _collection("model.losses[3]"), _collection("model.scale")
    ('model.losses', 'model.scale')
    """
    return _ITEM.sub("", name)


def _has_fewer_rows(value: Tensor, reference: Tensor) -> bool:
    if not value.dim() or value.shape[1:] != reference.shape[1:]:
        return False
    return 0 < len(value) < len(reference)


def _apart(value: Tensor, reference: Tensor) -> float:
    mine, theirs = value.detach().double(), reference.double()
    return float((mine - theirs).abs().max()) / (float(theirs.abs().max()) or 1.0)


class _Walk:
    def __init__(self, model: nn.Module) -> None:
        self.found: dict[str, Place] = {}
        self._weights = dict(contents.named_parameters(model))
        own: list[Any] = [
            *contents.modules(model),
            *contents.parameters(model),
            *contents.buffers(model),
        ]
        self._seen: dict[int, Any] = {id(value): value for value in own}
        self._left = _MOST

    def visit(
        self, path: str, value: Any, write: Callable[[Any], object] | None
    ) -> None:
        """Takes in a value and what can be reached from it.

        `write` puts another object in its place; None where nothing can.
        """
        if type(value) is float:
            if write is not None:
                self.found[path] = _of_float(value, write)
            return
        if isinstance(value, type) or id(value) in self._seen:
            return
        self._left -= 1
        if self._left < 0:
            return
        self._seen[id(value)] = value
        with contextlib.suppress(Exception):  # a lazy module, a property that raises
            self._enter(path, value)

    def _enter(self, path: str, value: Any) -> None:
        if isinstance(value, Tensor | np.ndarray):
            place = _of_tensor(value) if isinstance(value, Tensor) else _of_array(value)
            if place is not None:
                self.found[path] = place
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif isinstance(value, torch.optim.Optimizer):
            self._hung_on(path, value)
        elif isinstance(value, _CONTAINERS):
            self._container(path, value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.visit("self", value.__self__, None)
            self._function(value.__func__)
        elif not isinstance(value, types.ModuleType) and hasattr(value, "__dict__"):
            self._held(path, vars(value), vars(value), type(value))

    def _container(self, path: str, container: Any) -> None:
        copies = keys_of_weights(container, self._weights)
        for number, (key, held) in enumerate(_entries(container)):
            # What shows where it lies in memory has another name on a rank.
            shown = repr(key) if isinstance(key, str | int) else f"#{number}"
            inner = f"{path}[{shown}]"
            self.visit(inner, held, _writer(container, key))
            if key in copies and inner in self.found:
                self.found[inner] = replace(self.found[inner], is_weight=True)

    def _function(self, function: Any) -> None:
        """Visits what a function closes over, and the globals that it names."""
        if not isinstance(function, types.FunctionType) or sight.is_torchs(function):
            return
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                self.visit(name, cell.cell_contents, None)
        if not sight.is_librarys(function):
            held, used = function.__globals__, sorted(sight.names_in(function.__code__))
            for name in used:
                if name in held:
                    self.visit(name, held[name], _writer(held, name))

    def _module(self, path: str, module: nn.Module) -> None:
        own: list[tuple[str, Tensor]] = [
            *contents.own_parameters(module),
            *contents.own_buffers(module),
        ]
        for name, tensor in own:
            inner = f"{path}.{name}"
            self.visit(inner, tensor, None)
            if not isinstance(tensor, nn.Parameter) and inner in self.found:
                self.found[inner] = replace(self.found[inner], is_buffer=True)
        for name, child in contents.own_modules(module):
            self.visit(f"{path}.{name}", child, None)
        self.attributes(path, module)

    def attributes(self, path: str, module: nn.Module) -> None:
        """Visits the plain attributes of a module, which no state_dict has."""
        held = vars(module)
        own = {n: v for n, v in held.items() if n not in MODULES_OWN}
        self._held(path, own, held, type(module))

    def _hung_on(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        """Visits what is not the optimizer's: its state follows from gradients."""
        for name, value in list(vars(optimizer).items()):
            if not name.startswith("_") and name not in _OPTIMIZERS_OWN:
                write = _writer(vars(optimizer), name)
                self.visit(f"{path}.{name}", value, write)

    def _held(
        self, path: str, named: dict[str, Any], holder: dict[str, Any], kind: type
    ) -> None:
        if sight.is_torchs(kind):
            return
        for name, value in list(named.items()):
            self.visit(f"{path}.{name}", value, _writer(holder, name))


def _walk_through(model: nn.Module) -> _Walk:
    walk = _Walk(model)
    for path, module in contents.named_modules(model):
        walk.attributes("model" + (f".{path}" if path else ""), module)
    return walk


def _of_tensor(tensor: Tensor) -> Place | None:
    is_plain = tensor.layout == torch.strided and not tensor.is_complex()
    if not is_plain or not tensor.numel():
        return None

    def write(reference: Tensor) -> None:
        with torch.no_grad():
            tensor.data.copy_(reference)

    is_weight = isinstance(tensor, nn.Parameter)
    # Both: writing to `.data` counts no version, and large tensors take their time.
    is_small = tensor.nbytes <= _MOST_BYTES
    content = _checksum(tensor.detach()) if is_small else 0
    return Place(tensor, write, (id(tensor), version(tensor), content), is_weight)


def _of_array(array: np.ndarray[Any, Any]) -> Place | None:
    if array.dtype.kind not in "fiu" or not 0 < array.nbytes <= _MOST_BYTES:
        return None
    value = torch.from_numpy(array.astype(np.float64))

    def write(reference: Tensor) -> None:
        np.copyto(array, reference.numpy(), casting="unsafe")

    return Place(value, write, (id(array), _checksum(value)))


def _checksum(tensor: Tensor) -> int:
    """Returns a number of the tensor's bytes; at a gigabyte per second, or so."""
    flat = tensor.reshape(-1).contiguous().cpu()
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


def _of_float(number: float, write: Callable[[Any], object]) -> Place:
    value = torch.tensor(number, dtype=torch.float64)
    return Place(value, lambda reference: write(float(reference)), (number,))


def _entries(container: Any) -> Iterable[tuple[Any, Any]]:
    """Returns the first entries with their keys."""
    is_dict = isinstance(container, dict)
    pairs = container.items() if is_dict else enumerate(container)
    return list(itertools.islice(pairs, _MOST_ENTRIES))


def _writer(container: Any, key: Any) -> Callable[[Any], object] | None:
    if isinstance(container, tuple):
        return None

    def write(value: Any) -> None:
        container[key] = value

    return write
