"""Observes what the target does with torch.distributed and DDP during a run.

It patches classes and module functions, inside a rank and for one run.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddpcheck.run import private
from ddpcheck.run.facts import HookSketch
from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import AS_BUILT
from ddpcheck.run.observe import patches, wrapping
from ddpcheck.run.observe.sketches import sketching
from ddpcheck.run.observe.wrapping import Wrapped
from ddpcheck.run.process import callers
from ddpcheck.run.process.replacing import all_replaced
from ddpcheck.run.spec import (
    IDLE,
    BackwardCount,
    CollectiveCount,
    CollectiveEnd,
    ForwardCount,
)


@dataclass(slots=True)
class Written:
    """Counts writes of a step into gradients that are incomplete or local.

    `early`: writes between two backwards of an update, into a partial sum. `alone`:
    writes between a backward and the first exchange after it, into the gradients of the
    rank alone. `late`: writes before an update without any exchange.
    """

    parameters: Callable[[], Mapping[str, Tensor]] = dict
    early: int = 0
    alone: int = 0
    late: int = 0
    left: int = 0  # version counters when the last backward ended
    grads: list[Tensor] = field(default_factory=list)  # at that moment
    is_own: bool = False  # nothing was exchanged since then

    def before_backward(self, *, is_first: bool) -> None:
        """Checks the gradients to which a backward adds; the first adds to none."""
        if not is_first and self._times() > self.left:
            self.early += 1

    def after_backward(self) -> None:
        """Notes the gradients after a backward."""
        self.left, self.grads = self._times(), self._now()
        self.is_own = True

    def before_exchange(self) -> None:
        """Checks the gradients before the first exchange after a backward."""
        if self.is_own and self._times() > self.left:
            self.alone += 1
        self.is_own = False

    def updated(self) -> None:
        """Checks the gradients that an update uses."""
        if self.is_own and (self._times() > self.left or self._has_others()):
            self.late += 1
        self.grads = []
        self.is_own = False

    def _times(self) -> int:
        return sum(map(private.version, self._now()))

    def _has_others(self) -> bool:
        """Returns whether the gradient of a parameter was replaced since then."""
        known = set(map(id, self.grads))
        return any(id(grad) not in known for grad in self._now())

    def _now(self) -> list[Tensor]:
        grads = (p.grad for p in self.parameters().values())
        return [grad for grad in grads if grad is not None]


_MAX_FRAMES = 40


def collective_call(
    name: str, count: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CollectiveCount:
    """Returns the event of a collective called with these arguments.

    Its tensor is the first that is passed directly, else the first of a list.
    """
    values = [*args, *kwargs.values()]
    tensor = next(_tensors(values), None)
    groups = [v for v in values if isinstance(v, dist.ProcessGroup)]
    return CollectiveCount(
        count=count,
        name=name,
        shape=None if tensor is None else tuple(tensor.shape),
        dtype="" if tensor is None else str(tensor.dtype).removeprefix("torch."),
        where=_where(),
        of_all=all(group is dist.group.WORLD for group in groups),
    )


def with_step(
    event: CollectiveCount | CollectiveEnd, step: int
) -> CollectiveCount | CollectiveEnd:
    """Returns the event with the step, if it has one."""
    return replace(event, step=step) if isinstance(event, CollectiveCount) else event


def _tensors(values: list[Any]) -> Iterator[torch.Tensor]:
    yield from (v for v in values if isinstance(v, torch.Tensor))
    for value in values:
        if isinstance(value, list | tuple):
            yield from (v for v in value if isinstance(v, torch.Tensor))


def _where() -> str:
    """Returns the innermost frame of user code: "file.py:12"."""
    frame = callers.frame(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if not callers.module_of(frame).startswith(("torch.", "ddpcheck.")):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


_ASKED = ("is_initialized", "get_world_size", "get_rank", "is_available")
_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "barrier",
)
# Point-to-point. Not isend and irecv: torch compares them by identity in a batch.
_PAIRWISE = ("batch_isend_irecv", "send", "recv")
# Those whose result depends on the values of several ranks.
_REDUCING = frozenset(_COLLECTIVES) - {
    "broadcast",
    "broadcast_object_list",
    "scatter",
    "barrier",
}

# Functions that take a timeout for exchanges.
_TIMED = ("init_process_group", "monitored_barrier", "new_group", "new_subgroups")


@dataclass(slots=True)
class Observed:
    """Facts of one run."""

    asks_distributed: bool = False
    asks_rank: int = 0  # calls of get_rank by user code outside of a forward
    collectives: list[str] = field(default_factory=list)
    passed: int = 0  # point-to-point exchanges
    in_backward: int = 0  # collectives called by hooks or autograd functions
    wrapped: list[Wrapped] = field(default_factory=list)
    # In order: F a DDP forward, B a backward, G autograd.grad of parameters called by
    # user code, [ ] no_sync entered and left, S an optimizer step.
    events: list[str] = field(default_factory=list)
    callers: list[int] = field(default_factory=list)  # which DDP object, for each F
    nested_backwards: int = 0
    comm_hooks: int = 0
    hook_sketches: list[HookSketch] = field(default_factory=list)  # of the first calls
    loads: int = 0  # times that a DataLoader was iterated
    parts: set[str] = field(default_factory=set)  # of a training loop, see patches.py
    # For each join(): whether it divides by the initial world size.
    joins: list[bool] = field(default_factory=list)
    in_forward: bool = False  # of DDP
    backwards_in_forward: int = 0
    slopes: int = 0  # calls of autograd.grad for other tensors, as an input
    opaque_output: str = ""  # type of an output in which DDP finds no tensors
    # Whether Module.to, .half, .cuda, ... was called after a DDP object was built, on a
    # module that shares parameters with it or is now of another precision than the run.
    applied_after_wrap: bool = False
    on_forward: Callable[[], None] | None = None
    on_backward: Callable[[int], None] | None = None
    on_roots: Callable[[Any], None] | None = None  # of a backward: tensors
    on_timeout: Callable[[], None] | None = (
        None  # called when a group or a barrier has its own timeout
    )
    on_collective: Callable[[CollectiveCount | CollectiveEnd], None] | None = None
    depth: int = 0
    updates_in_backward: bool = False  # weights were written while backward ran
    early_clips: int = 0  # clippings that a backward of the same step followed
    reduced_after_clip: bool = False  # any tensor
    has_clipped: bool = False
    clips: int = 0  # how often gradients were clipped by norm
    hooked: set[int] = field(default_factory=set)  # ids of parameters, by user code
    hooked_others: int = 0  # tensor hooks on other tensors, by user code
    late_hooks: int = 0  # post-accumulate hooks by user code
    written: Written = field(default_factory=Written)  # gradients, by the step
    before_update: int = 0  # collectives before the last optimizer step began

    def clipped(self) -> None:
        """Notes that gradients were clipped by norm."""
        self.has_clipped = True
        self.clips += 1

    def updated(self) -> None:
        """Notes the beginning of an optimizer step."""
        self.events.append("S")
        self.has_clipped = False
        self.written.updated()
        self.before_update = len(self.collectives)

    @property
    def exchanges(self) -> int:
        """The number of collectives and point-to-point exchanges."""
        return len(self.collectives) + self.passed

    @property
    def is_accumulating(self) -> bool:
        """Whether there was a backward since the last optimizer step, if any."""
        return next((e for e in reversed(self.events) if e in "BS"), "S") == "B"

    @property
    def reduces_in_update(self) -> bool:
        """Whether an optimizer step that ends now has combined values of ranks.

        A broadcast of the weights that one rank has updated does not count.
        """
        return any(name in _REDUCING for name in self.collectives[self.before_update :])


@contextlib.contextmanager
def observing() -> Iterator[Observed]:
    """Records into the yielded object within the context."""
    seen = Observed()
    observed = {
        (owner, name): observer(seen, getattr(owner, name))
        for owner, name, observer in _OBSERVED
    }
    with (
        all_replaced(observed),
        patches.clips_noticed(seen.clipped),
        patches.sync_flag_watched(seen.events.append),
        patches.parts_noticed(seen.parts),
    ):
        yield seen


def _is_users(depth: int = 2) -> bool:
    """Returns whether the caller is neither torch nor ddpcheck."""
    name = callers.module_of(callers.frame(depth))
    return not name.startswith(("torch.", "ddpcheck."))


def _asking(seen: Observed, function: Any, *, name: str) -> Any:
    def ask(*args: Any, **kwargs: Any) -> Any:
        if _is_users():
            seen.asks_distributed = True
            seen.asks_rank += name == "get_rank" and not seen.in_forward
        return function(*args, **kwargs)

    return ask


def _noting(seen: Observed, function: Any, *, name: str) -> Any:
    def note(*args: Any, **kwargs: Any) -> Any:
        seen.asks_distributed = True
        if _is_ours():
            return function(*args, **kwargs)
        if name == "all_reduce":
            seen.reduced_after_clip |= seen.has_clipped
        if name in _REDUCING:
            seen.written.before_exchange()
        seen.in_backward += seen.depth > 0
        seen.collectives.append(name)
        count = len(seen.collectives)
        if not seen.on_collective:
            return function(*args, **kwargs)
        seen.on_collective(collective_call(name, count, args, kwargs))
        result = function(*args, **kwargs)
        if not isinstance(result, dist.Work):  # what async_op=True returns
            seen.on_collective(CollectiveEnd(count=count))
        return result

    return note


def _passing(seen: Observed, function: Any) -> Any:
    def note(*args: Any, **kwargs: Any) -> Any:
        seen.asks_distributed = True
        seen.passed += 1
        return function(*args, **kwargs)

    return note


def _timing(seen: Observed, function: Any) -> Any:
    def timed(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if seen.on_timeout and any(isinstance(value, timedelta) for value in given):
            seen.on_timeout()
        return function(*args, **kwargs)

    return timed


def _building(seen: Observed, function: Any) -> Any:
    def build(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        before = wrapping.held_parameters(module)
        function(self, module, *args, **kwargs)
        vars(self)[AS_BUILT] = frozenset(vars(self))
        seen.wrapped.append(Wrapped(module=self, parameters=before))

    return build


def _forwarding(seen: Observed, function: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.events.append("F")
        if seen.on_forward:
            seen.on_forward()
        seen.callers.append(-1)
        for number, wrapped in enumerate(seen.wrapped):
            if wrapped.module is self:
                wrapped.forwards += 1
                seen.callers[-1] = number if torch.is_grad_enabled() else IDLE
        seen.in_forward = True
        try:
            output = function(self, *args, **kwargs)
        finally:
            seen.in_forward = False
        if not _has_visible_tensors(output):
            seen.opaque_output = type(output).__name__
        return output

    return forward


def _running_backward(seen: Observed, function: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        if seen.depth:
            seen.nested_backwards += 1
            return function(*args, **kwargs)
        seen.written.before_backward(is_first=not seen.is_accumulating)
        seen.events.append("B")
        seen.backwards_in_forward += seen.in_forward
        seen.early_clips += seen.has_clipped
        seen.has_clipped = False
        if seen.on_backward:
            seen.on_backward(seen.events.count("B"))
        if seen.on_roots:
            seen.on_roots(args[0] if args else kwargs.get("tensors"))
        seen.depth += 1
        before = _versions(seen)
        try:
            return function(*args, **kwargs)
        finally:
            seen.depth -= 1
            seen.updates_in_backward |= _versions(seen) != before
            seen.written.after_backward()

    return backward


def _versions(seen: Observed) -> int:
    """Returns the sum of version counters of all wrapped parameters."""
    tensors = [h.tensor for wrapped in seen.wrapped for h in wrapped.parameters]
    return sum(map(private.version, tensors))


def _grading(seen: Observed, function: Any) -> Any:
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, Iterator):  # model.parameters()
            inputs = tuple(inputs)
        if _is_users():
            if _asks_for_parameters(inputs):
                seen.events.append("G")
            else:
                seen.slopes += 1
        return function(outputs, inputs, *args, **kwargs)

    return grad


def _asks_for_parameters(inputs: Any) -> bool:
    """Returns whether the inputs of autograd.grad are parameters.

    Gradients at the model's input are part of a loss: a penalty, or a force.
    """
    if isinstance(inputs, Mapping):
        inputs = inputs.values()
    given = [inputs] if isinstance(inputs, Tensor) else inputs
    return any(isinstance(tensor, nn.Parameter) for tensor in given)


def _registering(seen: Observed, function: Any) -> Any:
    def register_hook(self: Any, hook: Any) -> Any:
        if _is_users():
            if isinstance(self, nn.Parameter):
                seen.hooked.add(id(self))
            else:
                seen.hooked_others += 1
        return function(self, hook)

    return register_hook


def _registering_late(seen: Observed, function: Any) -> Any:
    def register_post_accumulate_grad_hook(self: Any, hook: Any) -> Any:
        seen.late_hooks += _is_users()
        return function(self, hook)

    return register_post_accumulate_grad_hook


def _hooking(seen: Observed, function: Any) -> Any:
    def register(self: Any, state: Any, hook: Any) -> Any:
        seen.comm_hooks += 1
        return function(self, state, sketching(hook, seen.hook_sketches))

    return register


def _loading(seen: Observed, function: Any) -> Any:
    def load(self: Any) -> Any:
        seen.loads += 1
        return function(self)

    return load


def _joining(seen: Observed, function: Any) -> Any:
    def join_hook(self: Any, **kwargs: Any) -> Any:
        seen.joins.append(bool(kwargs.get("divide_by_initial_world_size", True)))
        return function(self, **kwargs)

    return join_hook


def _applying(seen: Observed, function: Any) -> Any:
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not seen.wrapped or seen.applied_after_wrap:
            return function(self, *args, **kwargs)
        before = _ids(self)  # a conversion may create new parameters
        converted = function(self, *args, **kwargs)
        if _is_wrapped(seen, before) or _has_other_precision(self):
            seen.applied_after_wrap = True
        return converted

    return apply


def _ids(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in contents.parameters(module)}


def _is_wrapped(seen: Observed, ids: set[int]) -> bool:
    """Returns whether DDP holds any of the parameters."""
    every = (parameter for wrapped in seen.wrapped for parameter in wrapped.parameters)
    return any(id(parameter.tensor) in ids for parameter in every)


def _has_other_precision(module: nn.Module) -> bool:
    """Returns whether a floating point tensor has another dtype than the run."""
    tensors = contents.tensors(module)
    return any(
        tensor.is_floating_point() and tensor.dtype != torch.get_default_dtype()
        for tensor in tensors
    )


def _has_visible_tensors(output: Any) -> bool:
    """Returns whether torch's pytree, which DDP uses, finds a tensor."""
    return any(isinstance(leaf, torch.Tensor) for leaf in private.leaves(output))


def _is_ours() -> bool:
    """Returns whether ddpcheck itself calls the collective."""
    return callers.module_of(callers.frame(2)).startswith("ddpcheck.run.")


# Patches during a run: owner, name, factory of the replacement.
_OBSERVED: tuple[tuple[Any, str, Callable[[Observed, Any], Any]], ...] = (
    *((dist, name, functools.partial(_asking, name=name)) for name in _ASKED),
    *(
        (dist, name, functools.partial(_noting, name=name))
        for name in _COLLECTIVES
        if hasattr(dist, name)
    ),
    *((dist, name, _passing) for name in _PAIRWISE if hasattr(dist, name)),
    *((dist, name, _timing) for name in _TIMED if hasattr(dist, name)),
    (DistributedDataParallel, "__init__", _building),
    (DistributedDataParallel, "forward", _forwarding),
    (DistributedDataParallel, "register_comm_hook", _hooking),
    (DistributedDataParallel, "join_hook", _joining),
    (DataLoader, "__iter__", _loading),
    *((nn.Module, name, _applying) for name in private.CONVERSIONS),
    (torch.autograd, "backward", _running_backward),
    (torch.autograd, "grad", _grading),
    (torch.Tensor, "register_hook", _registering),
    (torch.Tensor, "register_post_accumulate_grad_hook", _registering_late),
)


def report_calls(
    seen: Observed, emit: Callable[[Any], None], step: Callable[[], int]
) -> None:
    """Emits events of backwards as they begin, and of further DDP forwards of a step.

    Not of the first forward, which every step has: an event costs time.

    Args:
        seen: observes the run.
        emit: sends an event.
        step: returns the step of the rank.
    """
    forwards: Counter[int] = Counter()

    def forward() -> None:
        # torch.compile around DDP traces this function too, where the counts become
        # symbols that some versions of torch cannot handle.
        if torch.compiler.is_compiling():
            return
        forwards[step()] += 1
        count, trains = forwards[step()], torch.is_grad_enabled()
        if count > 1:
            emit(ForwardCount(count=count, step=step(), trains=trains))

    seen.on_forward = forward
    seen.on_backward = lambda count: emit(BackwardCount(count=count, step=step()))
