"""DistributedDataParallel in a process that plays its ranks one after another.

While `installed`, the class itself builds stand-ins: `isinstance` holds, and settings
of the wrapper (no_sync, find_unused_parameters, broadcast_buffers) work as in
torch/nn/parallel/distributed.py. Rank 0 is first in every round; the stand-in stores
the buffers that it would broadcast, for the other ranks.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.modes.jobs.virtual.group import NotSimulatedError, World
from ddpcheck.run.observe.wrapping import accumulator

_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new "
    "one: parameters got no gradient, and find_unused_parameters is False"
)
# What changes the reduction itself, with its value where it does not.
_PLAIN = {
    "process_group": None,
    "init_sync": True,
    "mixed_precision": None,
    "device_mesh": None,
    "delay_all_reduce_named_params": None,
    "param_to_hook_all_reduce": None,
    "skip_all_reduce_unused_params": False,
}

# Armed, synchronising, unfinished; the parameters that are ready.
State = tuple[bool, bool, bool, frozenset[int]]


@dataclass(slots=True)
class Wrapper:
    """The state of one stand-in, on the rank that is played."""

    module: nn.Module
    parameters: list[nn.Parameter]  # that its reducer would hold
    finds_unused: bool  # or need not
    broadcasts: bool
    is_armed: bool = False  # the next backward reduces
    syncs_forward: bool = True  # the next forward broadcasts
    is_unfinished: bool = False
    ready: set[int] = field(default_factory=set)  # parameters by place, since armed
    forwards: int = 0  # in this step
    sent: list[list[Tensor]] = field(default_factory=list)  # rank 0's buffers, by them
    synced_first: bool = False  # the first forward of the step had rank 0's buffers

    def state(self) -> State:
        """Returns what lives on from step to step."""
        ready = frozenset(self.ready)
        return self.is_armed, self.syncs_forward, self.is_unfinished, ready

    def begin(self, state: State) -> None:
        """Goes back to the beginning of a step."""
        self.is_armed, self.syncs_forward, self.is_unfinished, ready = state
        self.ready = set(ready)
        self.forwards = 0

    def before_forward(self, rank: int) -> None:
        """Does what DDP does with buffers before a forward."""
        if self.is_unfinished and torch.is_grad_enabled():
            raise RuntimeError(_UNFINISHED)
        syncs = self.syncs_forward and self.broadcasts
        if not self.forwards:
            self.synced_first = syncs
        buffers = list(self.module.buffers()) if syncs else []
        if rank == 0 and self.forwards == len(self.sent):
            self.sent.append([b.detach().clone() for b in buffers])
        elif self.forwards >= len(self.sent):
            message = f"rank {rank} calls the model more often than rank 0: DDP hangs"
            raise RuntimeError(message)
        for buffer, value in zip(buffers, self.sent[self.forwards], strict=True):
            buffer.data.copy_(value)
        self.forwards += 1

    def after_forward(self, *, syncs: bool) -> None:
        """Arms the reducer, unless in no_sync or without gradients."""
        self.syncs_forward = torch.is_grad_enabled() and syncs
        if self.syncs_forward:
            self.is_armed = True
            self.ready.clear()

    def note(self, place: int) -> None:
        """Records that a backward reaches a parameter."""
        if self.is_armed:
            self.ready.add(place)

    def reduced(self) -> bool:
        """Returns whether the prepared reduction is complete at the end of a backward.

        A backward that reaches none of its parameters belongs to another wrapper: the
        reducer waits for its own. It also waits for remaining parameters, including
        those that were frozen after it was built.
        """
        if not self.ready:
            return False
        lacks = len(self.ready) < len(self.parameters)
        self.is_armed = self.is_unfinished = lacks and not self.finds_unused
        return not self.is_unfinished


@contextlib.contextmanager
def installed(world: World) -> Iterator[list[Wrapper]]:
    """Makes DistributedDataParallel build stand-ins; yields their states."""
    cls, wrappers, noting = DistributedDataParallel, list[Wrapper](), list[Any]()
    replaced: dict[str, Callable[..., Any]] = {
        "__init__": functools.partial(_build, wrappers, noting),
        "forward": functools.partial(_forward, world),
        "register_comm_hook": _refuse_hook,
        "_register_builtin_comm_hook": _refuse_hook,
        "_set_static_graph": _set_static_graph,
        "join": _join,
        "__getstate__": _state_of_copy,
        "__setstate__": nn.Module.__setstate__,
    }
    with contextlib.ExitStack() as stack:
        for name, function in replaced.items():
            if hasattr(cls, name):  # torch may remove private attributes
                stack.enter_context(mock.patch.object(cls, name, _as_method(function)))
        yield wrappers


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a plain function: a partial would not be bound to the instance."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


_SIGNATURE = inspect.signature(DistributedDataParallel.__init__)


def _build(
    wrappers: list[Wrapper], noting: list[Any], self: Any, *args: Any, **kwargs: Any
) -> None:
    bound = _SIGNATURE.bind(self, *args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    for name, usual in _PLAIN.items():
        if given.get(name, usual) is not usual:
            raise NotSimulatedError(f"DistributedDataParallel is given {name}")
    module = given["module"]
    nn.Module.__init__(self)
    self.module = module
    self.device_ids = None
    self.broadcast_buffers = self.forward_sync_buffers = _broadcasts(given)
    self.find_unused_parameters = bool(given["find_unused_parameters"])
    self.static_graph = bool(given["static_graph"])
    self.gradient_as_bucket_view = bool(given["gradient_as_bucket_view"])
    self.require_backward_grad_sync = True
    self.parameters_to_ignore = set(
        getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    )
    if self.parameters_to_ignore:
        message = "the target makes DistributedDataParallel ignore parameters"
        raise NotSimulatedError(message)
    held = [p for p in module.parameters() if p.requires_grad]
    if not held:
        message = "DistributedDataParallel is not needed: no parameter requires_grad"
        raise RuntimeError(message)
    wrapper = Wrapper(
        module=module,
        parameters=held,
        finds_unused=self.find_unused_parameters or self.static_graph,
        broadcasts=self.broadcast_buffers,
    )
    wrappers.append(wrapper)
    noting.extend(_noting(wrapper))
    self.__dict__["_ddpcheck_wrapper"] = wrapper


def _noting(wrapper: Wrapper) -> Iterator[Any]:
    """Notifies the wrapper of parameters that backward reaches, by hooks as DDP's.

    Yields the nodes with the hooks: references keep torch from creating new nodes.
    """
    for place, parameter in enumerate(wrapper.parameters):
        node = accumulator(parameter)
        node.register_hook(functools.partial(_note, wrapper, place))
        yield node


def _note(wrapper: Wrapper, place: int, *_: Any) -> None:
    wrapper.note(place)


def _broadcasts(given: dict[str, Any]) -> bool:
    """Returns whether forwards broadcast; two names since torch 2.13, both True."""
    chosen = [given.get(name) for name in ("forward_sync_buffers", "broadcast_buffers")]
    return bool(next((value for value in chosen if value is not None), True))


def _forward(world: World, self: Any, *args: Any, **kwargs: Any) -> Any:
    wrapper: Wrapper | None = self.__dict__.get("_ddpcheck_wrapper")
    if wrapper is None:
        return _forward_of_copy(self, *args, **kwargs)
    wrapper.before_forward(world.rank)
    output = self.module(*args, **kwargs)
    wrapper.after_forward(syncs=self.require_backward_grad_sync)
    return output


def _state_of_copy(self: Any) -> dict[str, Any]:
    """A copy, for example an average, is not a wrapper that trains."""
    return {k: v for k, v in self.__dict__.items() if k != "_ddpcheck_wrapper"}


def _forward_of_copy(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.broadcast_buffers and any(True for _ in self.module.buffers()):
        raise NotSimulatedError("a copy of DistributedDataParallel sends its buffers")
    if torch.is_grad_enabled():
        message = "a copy of DistributedDataParallel is called with gradients"
        raise NotSimulatedError(message)
    return self.module(*args, **kwargs)


def _refuse_hook(*_: Any, **__: Any) -> None:
    raise NotSimulatedError("a communication hook changes what DDP reduces")


def _set_static_graph(self: Any) -> None:
    self.static_graph = True
    self.__dict__["_ddpcheck_wrapper"].finds_unused = True


@contextlib.contextmanager
def _join(*_: Any, **__: Any) -> Iterator[None]:
    """As DDP's on ranks with as many steps as the others."""
    yield
