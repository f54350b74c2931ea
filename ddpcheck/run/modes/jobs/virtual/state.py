"""The state at the beginning of a training step, from which every rank starts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.modes.jobs.virtual.ddp import State, Wrapper
from ddpcheck.run.modes.jobs.virtual.group import NotSimulatedError
from ddpcheck.run.process import isolation
from ddpcheck.run.steps import Training

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A buffer of a module, which forward may write or replace."""

    module: nn.Module
    name: str
    path: str
    tensor: Tensor
    value: Tensor

    def now(self) -> Tensor | None:
        """Returns the module's buffer of this name, None if it was removed."""
        return private.buffers(self.module).get(self.name)

    def restore(self) -> None:
        """Restores the tensor and its value in the module."""
        self.tensor.data.copy_(self.value)
        private.buffers(self.module)[self.name] = self.tensor

    def was_written(self) -> bool:
        """Returns whether the module has another value now, or none."""
        now = self.now()
        return now is None or not torch.equal(now, self.value)


@dataclass(slots=True)
class _Optimizer:
    """An optimizer, the settings of its groups, and its state."""

    optimizer: Any
    groups: list[dict[str, Any]]
    state: list[tuple[Any, dict[str, Any]]] | None = None  # None: not about to change

    @classmethod
    def of(cls, optimizer: Any) -> _Optimizer:
        """Returns the optimizer with its numbers as they are now."""
        return cls(optimizer, [_without_parameters(g) for g in _groups(optimizer)])

    def before_update(self) -> None:
        """Copies the state, of which there may be much, when it first changes."""
        if self.state is None:
            state = getattr(self.optimizer, "state", {})
            self.state = [
                (key, {k: _copied(v) for k, v in entry.items()})
                for key, entry in state.items()
                if isinstance(entry, dict)
            ]

    def restore(self) -> None:
        """Restores settings and state."""
        for group, known in zip(_groups(self.optimizer), self.groups, strict=False):
            group.update(_copied(known))
        if self.state is None:
            return
        state = getattr(self.optimizer, "state", {})
        state.clear()
        for key, entry in self.state:
            state[key] = {k: _copied(v) for k, v in entry.items()}


@dataclass(slots=True)
class StepStart:
    """The state of model, optimizers and wrappers before a step.

    `users_step`: a train_step, which may do anything in any order. Weights and
    optimizer state are then copied when they are about to change for the first time,
    as another reduction may follow. Otherwise zero_grad comes first, the update last.
    """

    training: Training
    wrappers: list[Wrapper]
    optimizers: list[Any]  # known ones; others are found when they step
    calls: dict[str, int]
    users_step: bool
    buffers: list[_Buffer] = field(default_factory=list)
    plain: list[tuple[nn.Module, dict[str, Any]]] = field(default_factory=list)
    grads: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    wrapped: list[State] = field(default_factory=list)
    schedule: int = 0
    random: tuple[Any, ...] = ()
    weights: list[Tensor] | None = None
    kept: dict[int, _Optimizer] = field(default_factory=dict)  # by identity

    def __post_init__(self) -> None:
        """Takes the state as it is now."""
        modules = list(contents.named_modules(self.training.model))
        self.plain = [(m, _plain(m)) for _, m in modules]
        self.buffers = [
            _Buffer(m, name, f"{path}.{name}".lstrip("."), b, b.detach().clone())
            for path, m in modules
            for name, b in contents.own_buffers(m)
        ]
        parameters = list(self.training.parameters().values())
        zeroed = set() if self.users_step else _held(self.training.optimizer)
        self.grads = [
            (p, None if id(p) in zeroed else _copied(p.grad)) for p in parameters
        ]
        self.kept = {id(o): _Optimizer.of(o) for o in self.optimizers}
        self.random = _random_state()
        self.counts = dict(self.calls)
        self.wrapped = [w.state() for w in self.wrappers]
        self.schedule = len(self.training.schedule)
        for wrapper in self.wrappers:
            wrapper.sent.clear()

    def before_update(self, optimizer: Any) -> None:
        """Copies what an optimizer is about to change."""
        if not self.users_step:
            return
        if self.weights is None:
            self.weights = [p.detach().clone() for p, _ in self.grads]
        if id(optimizer) not in self.kept:
            self.kept[id(optimizer)] = _Optimizer.of(optimizer)
            self.optimizers.append(optimizer)
        self.kept[id(optimizer)].before_update()

    def restore(self, *, seed: int | None = None) -> None:
        """Restores everything for the next rank.

        Generators continue from the state of rank 0, unless a seed is set.
        """
        training = self.training
        if seed is None:
            _set_random_state(self.random)
        else:
            isolation.seed_everything(seed)
        for buffer in self.buffers:
            buffer.restore()
        for module, values in self.plain:
            for name in _plain(module).keys() - values.keys():
                del vars(module)[name]
            vars(module).update(_copied(values))
        for kept in self.kept.values():
            kept.restore()
        for parameter, grad in self.grads:
            parameter.grad = _copied(grad)
        self.calls.clear()
        self.calls.update(self.counts)
        for wrapper, state in zip(self.wrappers, self.wrapped, strict=True):
            wrapper.begin(state)
        del training.schedule[self.schedule :]
        training.begin()
        if self.weights is not None:
            for (parameter, _), value in zip(self.grads, self.weights, strict=True):
                parameter.data.copy_(value)

    def check_own_state(self) -> None:
        """Refuses ranks with different buffers: only those of rank 0 are available.

        Raises:
            NotSimulatedError: a buffer that the step wrote was not broadcast in it.
        """
        shared = {
            id(buffer)
            for wrapper in self.wrappers
            if wrapper.synced_first
            for buffer in contents.buffers(wrapper.module)
        }
        for buffer in self.buffers:
            if id(buffer.now()) not in shared and buffer.was_written():
                name = shortener(self.training.model)(buffer.path)
                message = f"ranks have different values of a buffer: {name}"
                raise NotSimulatedError(message)


def _plain(module: nn.Module) -> dict[str, Any]:
    """Returns copies of the attributes that are plain data; containers only its own."""
    return {
        k: _copied(v)
        for k, v in vars(module).items()
        if isinstance(v, _PLAIN) or (not k.startswith("_") and _is_plain(v))
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a group's numbers: a step may change its learning rate."""
    return {k: _copied(v) for k, v in group.items() if k != "params"}


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    return list(getattr(optimizer, "param_groups", []))


def _held(optimizer: Any) -> set[int]:
    return {id(p) for group in _groups(optimizer) for p in group["params"]}


def _random_state() -> tuple[Any, ...]:
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    arrays = np.random.get_state()  # noqa: NPY002
    return random.getstate(), arrays, torch.get_rng_state(), gpu


def _set_random_state(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002
    torch.set_rng_state(state[2])
    if state[3] is not None:
        torch.cuda.set_rng_state(state[3])


def _copied(value: Any) -> Any:
    """Returns the value with all tensors, lists and dicts in it copied."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {k: _copied(v) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return value
