"""External state: what training code keeps outside parameters and buffers.

For example a centre in a criterion, an average in a trainer, counts in a plain
attribute of a module. DDP does not send it and no run is judged by it, but gradients of
later steps depend on it, so it may be why they differ. The single-process run writes
what changes in a step; a rank notes what differs, and an intervention can set it to the
single-process values.

An average of the weights is often a dict by parameter name or a list in their order. It
is recognized by its values, unlike gradients or their squares.

Of generators of numpy and Python, whose draws cannot be observed, the state is
compared.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpcheck.compare.trace import Reader
from ddpcheck.run.facts import KeptOtherwise
from ddpcheck.run.intervention import substituted
from ddpcheck.run.model import contents
from ddpcheck.run.observe import used_names
from ddpcheck.run.private import version
from ddpcheck.run.process import fingerprint, modules
from ddpcheck.run.spec import FEW, RunSpec
from ddpcheck.target.target import Target

QUANTITY = "beside"

_MOST = 2_000  # objects that are visited
_MOST_ENTRIES = 64  # of a list, or a dict
_MOST_BYTES = (
    1 << 26
)  # of what changed in a step, and of an array that may have changed
MODULES_OWN = set(vars(nn.Module()))  # attributes of torch: hooks, parameters, ...
_OPTIMIZERS_OWN = {"defaults", "state", "param_groups"}
_CONTAINERS: tuple[type, ...] = (list, tuple, dict)
_ITEM = re.compile(r"\[\d+\]$")


@dataclass(frozen=True, slots=True)
class Place:
    """A number or tensor of the external state, and how to write it.

    `mark` changes when the value is written or replaced. `is_weight`: it is a parameter
    of some module, or a copy of one of the model's; `is_buffer`: a buffer.
    """

    value: Tensor
    write: Callable[[Tensor], object]
    mark: tuple[Any, ...]
    is_weight: bool = False
    is_buffer: bool = False


class ExternalState:
    """The state that a target's functions and model can reach, without the model's own.

    Args:
        target: its loss and training step are searched.
        model: bare, built from the target.
        optimizer: its attributes that training code has set are searched.
    """

    def __init__(self, target: Target, model: nn.Module, optimizer: Any) -> None:
        self._roots = (target.loss, target.train_step)
        self._optimizer = optimizer
        self._model = model
        self._marks: dict[str, tuple[Any, ...]] = {}
        self._moving: set[str] = set()  # places that changed in some step

    def begin(self) -> None:
        """Notes the state before the first step."""
        self._marks = {name: place.mark for name, place in self.places().items()}

    def moved(self) -> dict[str, Tensor]:
        """Returns the state created, replaced or written since, by name, up to a size.

        Small values that changed in an earlier step are included: those of ranks may
        have changed in this one.
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
        held = getattr(self._roots[1], "held", dict)  # of a script
        for name, value in held().items():
            walk.visit(name, value, None)
        return walk.found


def weights_held(model: nn.Module, held: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns weights that variables hold and the model does not, by name.

    Parameters of other modules, and copies or averages of the model's weights.
    """
    walk = _Walk(model)
    for name, value in held.items():
        walk.visit(name, value, None)
    return {n: place.value for n, place in walk.found.items() if place.is_weight}


def tensors_in_attributes(model: nn.Module) -> list[Tensor]:
    """Returns the tensors in plain attributes of the model's modules."""
    return [place.value for place in _walk_through(model).found.values()]


def compare_state(
    kept: ExternalState,
    reader: Reader,
    spec: RunSpec,
    step: int,
    noted: dict[str, KeptOtherwise],
) -> None:
    """Notes which external state of a rank differs from the single-process run.

    What fixes substitute of it is then set to the single-process values.
    """
    written = reader.names(QUANTITY, step)
    if not written:
        return
    places = kept.places()
    # All items of a list that grows are set.
    substituted_names = {
        _collection(n) for n in substituted(spec.fixes, "beside") or ()
    }
    for name in written.keys() & places.keys():
        reference, place = reader.get(QUANTITY, step, name), places[name]
        if reference is None:
            continue
        if place.value.shape != reference.shape:
            if _has_fewer_rows(place.value, reference):
                difference = KeptOtherwise(step=step, has_fewer_rows=True)
                noted.setdefault(name, difference)
            continue
        apart = _apart(place.value, reference)
        if apart:
            difference = KeptOtherwise(
                step=step,
                rel_diff=apart,
                mean_diff=_apart_on_average(place.value, reference),
                is_weight=place.is_weight,
                is_trained=place.value.grad is not None,
                is_buffer=place.is_buffer,
                size=reference.numel(),
            )
            noted.setdefault(name, difference)
        if _collection(name) in substituted_names:
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
    return float(_differences(value, reference).abs().max())


def _apart_on_average(value: Tensor, reference: Tensor) -> float:
    """Returns the mean difference: other rows may be as far apart at most."""
    return float(_differences(value, reference).mean())


def _differences(value: Tensor, reference: Tensor) -> Tensor:
    mine, theirs = value.detach().double(), reference.double()
    return (mine - theirs) / (float(theirs.abs().max()) or 1.0)


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
        """Visits a value and what can be reached from it.

        `write` replaces it by another object; None where that is impossible.
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
            # A repr with a memory address differs on a rank.
            shown = repr(key) if isinstance(key, str | int) else f"#{number}"
            inner = f"{path}[{shown}]"
            self.visit(inner, held, _writer(container, key))
            if key in copies and inner in self.found:
                self.found[inner] = replace(self.found[inner], is_weight=True)

    def _function(self, function: Any) -> None:
        """Visits the closure of a function, and the globals that it uses."""
        if not isinstance(function, types.FunctionType) or used_names.is_of_torch(
            function
        ):
            return
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not assigned yet
                self.visit(name, cell.cell_contents, None)
        if not used_names.is_of_library(function):
            held, used = (
                function.__globals__,
                sorted(used_names.names_in(function.__code__)),
            )
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
        """Visits the plain attributes of a module, which are in no state_dict."""
        held = vars(module)
        own = {n: v for n, v in held.items() if n not in MODULES_OWN}
        self._held(path, own, held, type(module))

    def _hung_on(self, path: str, optimizer: torch.optim.Optimizer) -> None:
        """Visits attributes set on the optimizer; its state follows from gradients."""
        for name, value in list(vars(optimizer).items()):
            if not name.startswith("_") and name not in _OPTIMIZERS_OWN:
                write = _writer(vars(optimizer), name)
                self.visit(f"{path}.{name}", value, write)

    def _held(
        self, path: str, named: dict[str, Any], holder: dict[str, Any], kind: type
    ) -> None:
        if used_names.is_of_torch(kind):
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
    # Both: writing to `.data` counts no version, and checksums of large tensors are
    # slow.
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
    """Returns a checksum of the tensor's bytes, at about a gigabyte per second."""
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


_WRAPPERS = "module."  # prefix of the names in a wrapper
_LONG = 4  # times as many entries at most: an average may include buffers and steps
_NEAR = 0.25  # relative squared distance of an average from the weights


def keys_of_weights(container: Any, weights: dict[str, nn.Parameter]) -> set[Any]:
    """Returns the keys, or the positions in a list, of copies of weights.

    Args:
        container: a dict, a list or a tuple; skipped if much longer than `weights`.
        weights: of the model, by name.
    """
    if not 0 < len(container) <= _LONG * len(weights):
        return set()
    if isinstance(container, dict):
        pairs = list(_by_name(container, weights))
    else:
        pairs = list(_by_place(container, list(weights.values())))
    held = [(tensor, weight) for _, tensor, weight in pairs]
    return {key for key, _, _ in pairs} if _are_near(held) else set()


def _by_name(
    held: dict[Any, Any], weights: dict[str, nn.Parameter]
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    for key, value in held.items():
        weight = weights.get(key.removeprefix(_WRAPPERS)) if type(key) is str else None
        if weight is not None and _has_shape_of(value, weight):
            yield key, value, weight


def _by_place(
    held: Iterable[Any], weights: list[nn.Parameter]
) -> Iterator[tuple[Any, Tensor, Tensor]]:
    values = list(held)
    if len(values) != len(weights):
        weights = [w for w in weights if w.requires_grad]
    alike = len(values) == len(weights) and all(map(_has_shape_of, values, weights))
    if alike:
        yield from zip(range(len(values)), values, weights, strict=True)


def _has_shape_of(value: Any, weight: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value is not weight
        and value.shape == weight.shape
        and value.is_floating_point()
    )


def _are_near(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    """Returns whether the tensors are close to the weights; False for zero weights."""
    apart = total = 0.0
    with torch.no_grad():
        for tensor, weight in pairs:
            apart += float((tensor.to(weight) - weight).square().sum())
            total += float(weight.square().sum())
    return total > 0 and apart <= _NEAR * total


_KINDS = (np.random.Generator, np.random.RandomState, random.Random)


def generators_held(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yields (attributes or globals, name, generator), live."""
    owners = [vars(module) for module in contents.modules(model)]
    owners += [vars(sys.modules[name]) for name in modules.users()]
    for names in owners:
        for name, value in list(names.items()):
            if isinstance(value, _KINDS):
                yield names, name, value


def generator_kind(generator: Any) -> type:
    """Returns the class of numpy or Python of a generator."""
    return next(kind for kind in _KINDS if isinstance(generator, kind))


def generator_states(model: nn.Module) -> int:
    """Returns a hash of the states of all generators; 0 if there is none."""
    found = [
        fingerprint.own_state(generator) for _, _, generator in generators_held(model)
    ]
    return hash(repr(found)) if found else 0
