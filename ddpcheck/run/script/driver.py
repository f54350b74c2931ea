"""Runs a script in a coroutine, and stops it where the check has to act.

The script keeps its own stack: wherever it is, it stands still while the check works,
in the same thread, and goes on when it is resumed. It stops

- before it builds a wrapper (DistributedDataParallel), or shards its model
  (`fully_shard`), and after that;
- before it draws a batch, if it has updated weights since the last stop: here a step
  ends. Loaders that fetch ahead draw the next batch before they hand out this one, so
  batches are known by their number, never by when they are drawn;
- before an update, where a recording asks for it;
- at its end.

A script that is not resumed any more stays where it is: its process ends without it.
One that does not start a second time beside it makes it leave: see `Driver.leave`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import random
from collections.abc import Callable, Iterator
from typing import Any, Literal

import greenlet
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddpcheck.errors import code_origin
from ddpcheck.ranks.messages import Seat
from ddpcheck.ranks.server import preload
from ddpcheck.run.model import batch_norm
from ddpcheck.run.model.whole import is_part
from ddpcheck.run.process import callers, isolation
from ddpcheck.run.script import (
    cuda_as_cpu,
    launch,
    launching,
    sharded,
    spawning,
    traces,
)
from ddpcheck.target.script import USAGE_CODE, Script

Stop = Literal["wrapping", "wrapped", "draw", "update", "ended"]

# Of a script that seeds nothing itself: rank 0 draws as a single process does.
_SEED = 0
_STATIC = "_set_static_graph"  # DistributedDataParallel calls it for static_graph=True
_kept: list[Any] = []  # a coroutine that is collected would be made to end


class ScriptInterrupt(Exception):  # noqa: N818 (its name is shown to users)
    """The script raised KeyboardInterrupt; no signal did."""


class Driver:
    """A script that is run from stop to stop.

    `optimizers` are those that it has built, in order. `wrapping` is the module that
    it is about to wrap, `wrapped` the wrapper; `shards`: it calls `fully_shard`.
    `updates`: steps of optimizers since the last stop at a draw; it is for the caller
    to set back. With `keeps_whole` it shards nothing: see `sharded`. `places`: the line
    of the script, as "train.py:40", at which something first happens: "wrap",
    "forward", "backward" and "optimizer" (a step of one).
    """

    # Whether a script has made the group of this process, which is of one: it stays
    # when the script is started again.
    has_own_group = False

    def __init__(
        self, script: Script, seat: Seat, *, keeps_whole: bool = False
    ) -> None:
        self.script, self.seat, self.keeps_whole = script, seat, keeps_whole
        self.shards = False
        self.optimizers: list[Optimizer] = []
        self.wrapping: nn.Module | None = None
        self.wrapped: nn.Module | None = None
        self.updates = 0
        self.places: dict[str, str] = {}
        self.on_optimizer: Callable[[], None] = lambda: None
        self.on_wrapped: Callable[[nn.Module], None] = lambda _: None
        self.stops_at_draws = True  # also at those without an update before
        self.stopped: Stop | None = None
        self._coroutine = greenlet.greenlet(self.script_main)
        self._patches = contextlib.ExitStack()
        self._mode: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if script.cuda_as_cpu:
            self._mode = cuda_as_cpu.Mode()  # of the script's own calls alone
        self._wraps = False
        self._has_joined = False  # its process group
        self._fixes: dict[int, Callable[..., None]] = {}  # by the wrapper's id
        _kept.append(self)

    def resume(self) -> Stop:
        """Runs the script to its next stop.

        Whatever the script raises is raised here.
        """
        assert self.stopped != "ended"
        self._coroutine.parent = greenlet.getcurrent()
        if not self._coroutine:
            launch.set_environment(self.seat)
            isolation.seed_everything(_SEED + self.seat.rank)
            if self.script.cuda_as_cpu:
                self._patches.enter_context(cuda_as_cpu.mapped(self.script.devices))
            on_device = batch_norm.sync_batch_norm_on(self.seat.device)
            self._patches.enter_context(on_device)
            self._patches.enter_context(self._patched())
            self._patches.enter_context(self._without_traces())
        try:
            with self._mode:
                self.stopped = self._coroutine.switch()
        except BaseException:
            self.stopped = "ended"
            raise
        return self.stopped

    def leave(self) -> None:
        """Makes the script leave its blocks, from where it stands, as if it were ended.

        What it has taken of its process, as a library that runs once at a time, it may
        give back there. One that stops again in such a block stays where it is.
        """
        self._coroutine.parent = greenlet.getcurrent()
        # Whatever a block raises, and its exit code, are of a run that is over.
        with contextlib.suppress(Exception, SystemExit, ScriptInterrupt), self._mode:
            self._coroutine.throw()
        self.stopped = "ended"

    def script_main(self) -> Stop:
        """Runs the script to its end; stacks name it, see errors/frames.py."""
        failed: BaseException
        try:
            launch.run(self.script, self.seat)
        except SystemExit as error:
            if error.code in (None, 0):
                return "ended"
            failed = _reason(error)
        except KeyboardInterrupt as error:
            raise ScriptInterrupt(str(error)) from error
        else:
            return "ended"
        raise failed

    def stop(self, reason: Stop) -> None:
        """Hands over to the caller of `resume`; called where the script runs."""
        if greenlet.getcurrent() is not self._coroutine:
            return  # a thread of the script's own
        grad, states = torch.is_grad_enabled(), random_states()
        torch.set_grad_enabled(True)
        caller = self._coroutine.parent
        assert caller is not None
        caller.switch(reason)
        torch.set_grad_enabled(grad)
        set_random_states(states)

    def enter(self, patch: contextlib.AbstractContextManager[Any]) -> None:
        """Enters a context that lasts as long as the script."""
        self._patches.enter_context(patch)

    @contextlib.contextmanager
    def as_in_script(self) -> Iterator[None]:
        """Context for calls of the script's functions while the script stands still."""
        states = random_states()
        try:
            with self._mode:
                yield
        finally:
            set_random_states(states)

    def variables(self) -> dict[str, Any]:
        """Returns the variables of the script's functions that are running, by name."""
        found: dict[str, Any] = {}
        is_current = greenlet.getcurrent() is self._coroutine
        frame = inspect.currentframe() if is_current else self._coroutine.gr_frame
        while frame is not None:
            if code_origin.is_users(frame.f_code.co_filename):
                found = {**frame.f_locals, **found}
            frame = frame.f_back
        return found

    def line(self) -> str:
        """Returns the line of the script that runs, "" where none does."""
        found = callers.line_of_user()
        if found is None:
            return ""
        return f"{os.path.relpath(found[0], self.script.folder)}:{found[1]}"

    def passes(self, what: str) -> None:
        """Notes the line that does `what`, where it is the first."""
        if what not in self.places and (line := self.line()):
            self.places[what] = line

    def before_draw(self) -> None:
        """Stops where the script draws a batch, if a step ends there."""
        if self.stops_at_draws or self.updates:
            self.stop("draw")

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        own = {
            (DistributedDataParallel, "__init__"): self._ddp_init,
            (DistributedDataParallel, "register_comm_hook"): self._register_hook,
            (DistributedDataParallel, _STATIC): self._set_static_graph,
            (Optimizer, "__init__"): self._optimizer_init,
            (dist, "init_process_group"): self._init_process_group,
            (dist, "destroy_process_group"): self._destroy_process_group,
        }
        with contextlib.ExitStack() as stack:
            for (owner, name), make in own.items():
                stack.enter_context(_replaced(owner, name, make))
            stack.enter_context(sharded.watched(self._fully_shard))
            stack.enter_context(sharded.factors_noted())
            if self.keeps_whole:
                stack.enter_context(sharded.wholes_as_parts())
            for starts in (spawning, launching):
                stack.enter_context(
                    starts.in_place(self.seat, lambda: self._has_joined)
                )
            hook = register_optimizer_step_post_hook(self._stepped)
            stack.callback(hook.remove)
            yield

    def _without_traces(self) -> contextlib.AbstractContextManager[None]:
        script = self.script
        own = script.folder, os.path.dirname(script.path)  # noqa: PTH120
        size = self.seat.world_size
        return traces.watched(
            self.seat.folder,
            script.shares or (preload.CREW if size else f"single-{os.getpid()}"),
            own,
            allows_writes=script.allows_writes,
        )

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        is_update = not is_empty(optimizer)
        self.updates += is_update
        if is_update:
            self.passes("optimizer")

    def _optimizer_init(self, init: Callable[..., None]) -> Callable[..., None]:
        def noticing(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.optimizers.append(optimizer)
            self.on_optimizer()

        return noticing

    def _ddp_init(self, init: Callable[..., None]) -> Callable[..., None]:
        def stopping(wrapper: Any, module: nn.Module, *args: Any, **kw: Any) -> None:
            if self.wrapping is not None:
                init(wrapper, module, *args, **kw)
                self._built(wrapper)
                return
            self.wrapping = module
            self.passes("wrap")
            self.stop("wrapping")
            # The check may have put something around it: the current one is called.
            DistributedDataParallel.__init__(wrapper, module, *args, **kw)
            self.wrapped = wrapper
            self._built(wrapper)
            self.stop("wrapped")

        return stopping

    def _built(self, wrapper: Any) -> None:
        """Lets the wrapper of a single process reduce nothing, as it has no other rank.

        Else its reducer would raise there, too, where the model is not what it needs:
        one that uses all parameters, each once. A hook of the script's on it may change
        gradients; then it is called.
        """
        if not self.seat.world_size:
            wrapper.require_backward_grad_sync = False
        self.on_wrapped(wrapper)

    def _register_hook(self, register: Callable[..., None]) -> Callable[..., None]:
        def registering(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            wrapper.require_backward_grad_sync = True
            if fix := self._fixes.pop(id(wrapper), None):
                fix(wrapper)  # now it reduces
            register(wrapper, *args, **kwargs)

        return registering

    def _set_static_graph(self, fix: Callable[..., None]) -> Callable[..., None]:
        def fixing(wrapper: Any) -> None:
            """Lets a wrapper that reduces nothing see each graph by itself.

            One with a fixed graph waits, in its first backward, for its reducer.
            """
            if self.seat.world_size:
                fix(wrapper)
            else:
                self._fixes[id(wrapper)] = fix

        return fixing

    def _fully_shard(self, shard: sharded.Shard) -> sharded.Shard:
        def stopping(module: Any, **kwargs: Any) -> Any:
            self.shards, first = True, sharded.first_of(module)
            if self.wrapping is None:
                model = sharded.root_of(first)
                if sharded.has_values(model):  # else it is known when it is trained
                    self.wrapping = model
                    self.passes("wrap")
                    self.stop("wrapping")
            make = sharded.keep_whole if self.keeps_whole else shard
            made = make(module, **sharded.options(kwargs))
            sharded.as_gloo_can(made)
            if self.wrapped is None and first is self.wrapping:
                self.wrapped = sharded.wrapped(first) if self.keeps_whole else first
                self.on_wrapped(self.wrapped)
                self.stop("wrapped")
            return made

        return stopping

    def _init_process_group(self, init: Callable[..., None]) -> Callable[..., None]:
        def joining(*_: Any, **__: Any) -> None:
            """Joins the group of this process's seat, whatever the script names."""
            self._has_joined = True
            if self.seat.world_size or dist.is_initialized():
                return  # the rank joined it when it was started
            path = f"{self.seat.folder}/{self.seat.name}.store"
            store = dist.FileStore(path, 1)
            init("gloo", store=store, rank=0, world_size=1)
            Driver.has_own_group = True

        return joining

    def _destroy_process_group(self, _: Callable[..., None]) -> Callable[..., None]:
        def leaving(*_: Any, **__: Any) -> None:
            """Leaves nothing: the process ends with its group."""

        return leaving


def _reason(end: SystemExit) -> BaseException:
    """Returns why a script exits: the exception that it caught, if it exits for that.

    Command-line libraries turn each exception into an exit code. Where the check itself
    causes one, to see what the script does then, it has to know which it was. An exit
    with a text, or for wrong arguments, says more than what was caught.
    """
    caught = end.__cause__ or (None if end.__suppress_context__ else end.__context__)
    if isinstance(caught, Exception) and isinstance(end.code, int):
        return end if end.code == USAGE_CODE else caught
    return end


def is_empty(optimizer: Optimizer) -> bool:
    """Returns whether a step makes the optimizer's state and trains nothing.

    torch.distributed.checkpoint makes such a step before it loads a state.
    """
    groups = optimizer.param_groups
    if any(group.get("lr") != 0 for group in groups):  # None: it finds its own
        return False
    grads = (p.grad for group in groups for p in group["params"])
    return not any(_has_values(grad) for grad in grads if grad is not None)


def _has_values(grad: Any) -> bool:
    if is_part(grad):
        grad = grad.to_local()
    return grad.layout != torch.strided or bool(grad.any())


@contextlib.contextmanager
def _replaced(
    owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]
) -> Iterator[None]:
    before = getattr(owner, name)
    # Libraries look at the signatures of what they call.
    setattr(owner, name, functools.wraps(before)(make(before)))
    try:
        yield
    finally:
        setattr(owner, name, before)


def random_states() -> tuple[Any, ...]:
    """Returns the states of the generators of torch, numpy and Python."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def set_random_states(states: tuple[Any, ...]) -> None:
    """Sets what `random_states` has returned."""
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
