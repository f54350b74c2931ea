"""A synchronous parameter server: workers push gradients and pull weights.

Real processes: W workers, each with a shard of the batch and a process group of the W,
and a server with a model and an optimizer of its own. The target's step runs in every
worker as it is. Before `optimizer.step()` the worker pushes its gradients and pulls the
reduced ones; after it, the worker replaces the weights of its own optimizer by the
server's. Gradients that are None on all workers stay None; buffers stay each worker's
own.

Workers and server exchange by torch.distributed.rpc, where torch was built with it, on
the interface that gloo uses. Else collectives in a group of all W + 1 do the same.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddpcheck.ranks.messages import Seat
from ddpcheck.run.facts import REFUSED, REMARKS, RankFacts, Sizes
from ddpcheck.run.modes.mode import InRank, Mode
from ddpcheck.run.spec import RankResult, RefusedError, RunSpec
from ddpcheck.target.target import Target, TargetRef

if TYPE_CHECKING:
    from torch import Tensor

    from ddpcheck.ranks.worker import Context
    from ddpcheck.run.steps import Training

_SERVER = "server"
_SPARE_THREADS = 4  # of the server, in addition to those that wait for the last worker
WITHOUT_RPC = (
    "this build of torch has no torch.distributed.rpc: workers and parameter server "
    "exchanged by collectives"
)
_ON_SEVERAL_MACHINES = "the parameter server runs on one machine, outside of torchrun"

Nested = list[list["Tensor | None"]]  # by parameter group and parameter
_seats: list[Seat] = []  # of this process in the workers' group, once it is connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What a worker sends before an update.

    `numbers` are the settings of its parameter groups, which schedules may change.
    """

    gradients: Nested
    numbers: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The server's reduced gradients, and its weights after the update."""

    gradients: Nested
    weights: Nested


def _entered(context: Context, ref: TargetRef, spec: RunSpec) -> Context | RankResult:
    """Returns a worker's context, in a group of the workers; the server's result.

    The last process is the server. Processes that are connected stay so: the next run
    of this crew needs no new ones, if they are clean and it has a server, too.
    """
    seat = context.seat
    if seat.meeting is not None:
        facts: RankFacts = {REFUSED: _ON_SEVERAL_MACHINES}
        return RankResult(rank=seat.rank, facts=facts, is_clean=False)
    is_server = seat.rank == spec.world_size
    if not _seats:
        _seats.append(_connected(seat, spec.world_size, is_server=is_server))
        context.keep()
    seat = _seats[0]
    return _serve(seat, ref, spec) if is_server else replace(context, seat=seat)


def has_rpc() -> bool:
    """Returns whether this build of torch has torch.distributed.rpc."""
    import torch.distributed as dist  # noqa: PLC0415

    return dist.is_available() and dist.rpc.is_available()


def _connected(seat: Seat, workers: int, *, is_server: bool) -> Seat:
    """Joins the workers' group and the server; returns the seat in that group."""
    import torch.distributed as dist  # noqa: PLC0415

    from ddpcheck.ranks.worker import join_group, leave_group  # noqa: PLC0415

    gc.collect()  # a DDP object has to go before the group that it uses
    dist.barrier()
    leave_group()
    crew = seat.name.rsplit("-", 1)[0]
    if not is_server:
        name = f"{crew}.workers-{seat.rank}"
        seat = replace(seat, world_size=workers, name=name)
        join_group(seat)
    path = Path(seat.folder) / f"{crew}.all"
    (_join_rpc if has_rpc() else _join_all)(path, seat, workers)
    return seat


def _join_rpc(path: Path, seat: Seat, workers: int) -> None:
    from torch.distributed import rpc  # noqa: PLC0415

    from ddpcheck.ranks.worker import group_s  # noqa: PLC0415

    if interface := os.environ.get("GLOO_SOCKET_IFNAME"):
        os.environ["TP_SOCKET_IFNAME"] = interface
    make: Any = rpc.TensorPipeRpcBackendOptions
    more = {}
    if "_transports" in inspect.signature(make).parameters:
        more = {"_transports": ["uv"]}  # sockets: shared memory is polled, for ever
    options = make(
        init_method=path.absolute().as_uri(),
        rpc_timeout=group_s(seat),
        num_worker_threads=workers + _SPARE_THREADS,
        **more,
    )
    with warnings.catch_warnings():
        # torch's own: it passes a backend where it wants a group.
        warnings.simplefilter("ignore")
        rpc.init_rpc(
            _SERVER if seat.rank == workers else f"worker{seat.rank}",
            rank=seat.rank,
            world_size=workers + 1,
            rpc_backend_options=options,
        )


def _join_all(path: Path, seat: Seat, workers: int) -> None:
    import torch.distributed as dist  # noqa: PLC0415

    from ddpcheck.ranks.worker import group_s  # noqa: PLC0415

    store = dist.FileStore(str(path), workers + 1)
    timeout = timedelta(seconds=group_s(seat))
    _groups.append(dist.ProcessGroupGloo(store, seat.rank, workers + 1, timeout))


class _Link(Protocol):
    """How a worker reaches the server."""

    def pull(self) -> Nested:
        """Returns the server's weights."""

    def push(self, push: Push) -> Answer:
        """Returns the server's answer, once all workers have pushed."""

    def leave(self) -> None:
        """Reports that this worker makes no more updates."""


@dataclass(frozen=True, slots=True)
class _Rpc:
    """Calls of functions in the server's process."""

    rank: int
    timeout_s: float

    def pull(self) -> Nested:
        """Returns the server's weights."""
        from torch.distributed import rpc  # noqa: PLC0415

        weights: Nested = rpc.rpc_sync(_SERVER, _pulled, args=(self.timeout_s,))
        return weights

    def push(self, push: Push) -> Answer:
        """Returns the server's answer, once all workers have pushed."""
        from torch.distributed import rpc  # noqa: PLC0415

        answer = rpc.rpc_sync(_SERVER, _pushed, args=(self.rank, push))
        if isinstance(answer, Answer):
            return answer
        raise RuntimeError(answer)

    def leave(self) -> None:
        """Reports that this worker makes no more updates."""
        from torch.distributed import rpc  # noqa: PLC0415

        rpc.rpc_sync(_SERVER, _left)


class _Collectives:
    """Exchanges in a group of workers and server."""

    def pull(self) -> Nested:
        """Returns the server's weights."""
        weights: Nested = _exchanged(None)[-1]
        return weights

    def push(self, push: Push) -> Answer:
        """Returns the server's answer, once all workers have pushed."""
        _exchanged(push)
        answer: Answer = _exchanged(None)[-1]
        return answer

    def leave(self) -> None:
        """Reports that this worker makes no more updates."""
        _exchanged(None)


_groups: list[Any] = []  # of workers and server, where there is no rpc


def _exchanged(value: Any) -> list[Any]:
    """Returns what every process has given, the server's last."""
    import torch.distributed as dist  # noqa: PLC0415

    found: list[Any] = [None] * _groups[-1].size()
    with warnings.catch_warnings():
        # torch's own class: the group is not one that new_group returns.
        warnings.simplefilter("ignore")
        dist.all_gather_object(found, value, group=_groups[-1])
    return found


@contextlib.contextmanager
def _served(rank: InRank, training: Training) -> Iterator[None]:
    """Makes the server compute the updates of a worker's steps."""
    from torch.optim.optimizer import (  # noqa: PLC0415
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    from ddpcheck.ranks.worker import group_s  # noqa: PLC0415

    seat = rank.seat
    link: _Link = _Collectives()
    if has_rpc():
        link = _Rpc(seat.rank, group_s(seat))
    worker = _Worker(link, training.optimizer)
    worker.take(link.pull())
    try:
        with (
            register_optimizer_step_pre_hook(worker.before_update),
            register_optimizer_step_post_hook(worker.after_update),
        ):
            yield
    except RefusedError:  # equally by all workers
        link.leave()
        raise
    # Not after an exception: the pool ends the others then.
    link.leave()
    if not has_rpc():
        rank.facts[REMARKS] = (WITHOUT_RPC,)


@dataclass(slots=True)
class _Worker:
    """Communicates before and after the updates of one worker."""

    link: _Link
    optimizer: Any
    depth: int = 0  # updates that have begun: one may hand on to another
    answer: Answer | None = None

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Pushes the gradients and takes the reduced ones."""
        self.depth += 1
        if self.depth > 1:
            return
        if optimizer is not self.optimizer:
            kind = type(optimizer).__name__
            raise RefusedError(f"the step updates by an optimizer of its own ({kind})")
        if any(given is not None for given in (*args[1:], *kwargs.values())):
            message = "optimizer.step is given a closure, which computes its gradients"
            raise RefusedError(message)
        gradients = _nested(optimizer, lambda p: _sent(p.grad))
        push = Push(gradients=gradients, numbers=_numbers(optimizer))
        self.answer = self.link.push(push)
        _each(optimizer, self.answer.gradients, _set_gradient)

    def after_update(self, *_: Any) -> None:
        """Takes the server's weights."""
        self.depth -= 1
        if self.depth == 0 and self.answer is not None:
            self.take(self.answer.weights)
            self.answer = None

    def take(self, weights: Nested) -> None:
        """Writes the weights into the parameters."""
        _each(self.optimizer, weights, _set_weight)


def _nested(optimizer: Any, of: Callable[[Tensor], Tensor | None]) -> Nested:
    return [[of(p) for p in group["params"]] for group in optimizer.param_groups]


def _each(
    optimizer: Any, values: Nested, put: Callable[[Tensor, Tensor | None], None]
) -> None:
    for group, given in zip(optimizer.param_groups, values, strict=True):
        for parameter, value in zip(group["params"], given, strict=True):
            put(parameter, value)


def _sent(tensor: Tensor | None) -> Tensor | None:
    """Returns the tensors to send, on the CPU, where every process can receive them."""
    return None if tensor is None else tensor.detach().cpu()


def _set_gradient(parameter: Tensor, value: Tensor | None) -> None:
    if value is None:
        parameter.grad = None
    elif parameter.grad is None or value.is_sparse:
        parameter.grad = value.to(parameter.device)
    else:
        parameter.grad.detach().copy_(value)


def _set_weight(parameter: Tensor, value: Tensor | None) -> None:
    import torch  # noqa: PLC0415

    assert value is not None
    with torch.no_grad():
        parameter.copy_(value)


def _numbers(optimizer: Any) -> list[dict[str, Any]]:
    from torch import Tensor  # noqa: PLC0415

    def sent(value: Any) -> Any:
        return _sent(value) if isinstance(value, Tensor) else value

    plain = bool | int | float | tuple | Tensor  # type: ignore[type-arg]
    return [
        {k: sent(v) for k, v in group.items() if isinstance(v, plain)}
        for group in optimizer.param_groups
    ]


@dataclass(slots=True)
class _Server:
    """The server's weights and optimizer, and what the workers have pushed.

    `timeout_s`: how long a worker's push waits for the others'.
    """

    optimizer: Any
    spec: RunSpec
    timeout_s: float
    changed: threading.Condition = field(default_factory=threading.Condition)
    pushes: dict[int, Push] = field(default_factory=dict)
    answer: Answer | None = None
    updates: int = 0
    left: int = 0  # workers that push no more
    failed: str = ""

    def weights(self) -> Nested:
        """Returns the weights as they are now."""
        return _nested(self.optimizer, _sent)

    def push(self, rank: int, push: Push) -> Answer | str:
        """Receives a worker's push; returns the result for all workers, or an error."""
        with self.changed:
            number = self.updates
            self.pushes[rank] = push
            if len(self.pushes) == self.spec.world_size:
                self._update()
            self.changed.wait_for(lambda: self._is_over(number), self.timeout_s)
            if self.failed or self.updates == number or self.answer is None:
                return self.failed or _UNEVEN
            return self.answer

    def leave(self) -> None:
        """Notes that a worker pushes no more."""
        with self.changed:
            self.left += 1
            self.changed.notify_all()

    def wait(self) -> None:
        """Returns when all workers have left, or at the deadline."""
        with self.changed:
            everyone = self.spec.world_size
            self.changed.wait_for(lambda: self.left == everyone, self.timeout_s)

    def _is_over(self, number: int) -> bool:
        return bool(self.updates > number or self.left or self.failed)

    def _update(self) -> None:
        try:
            self.answer = self.step([self.pushes[rank] for rank in sorted(self.pushes)])
        except Exception as error:  # noqa: BLE001 (the optimizer is the target's)
            self.failed = f"{type(error).__name__}: {error}"
        self.pushes = {}
        self.updates += 1
        self.changed.notify_all()

    def step(self, pushes: list[Push]) -> Answer:
        """Makes one update of what all workers pushed."""
        each = [push.gradients for push in pushes]
        gradients = [
            [self._reduced(list(given)) for given in zip(*groups, strict=True)]
            for groups in zip(*each, strict=True)
        ]
        for group, numbers in zip(
            self.optimizer.param_groups, pushes[0].numbers, strict=True
        ):
            group.update(numbers)
            group["lr"] = group["lr"] * self.spec.ps_lr
        _each(self.optimizer, gradients, _set_gradient)
        self.optimizer.step()
        return Answer(gradients=gradients, weights=self.weights())

    def _reduced(self, given: list[Tensor | None]) -> Tensor | None:
        """Returns the sum or the mean over workers; None counts as zero."""
        tensors = [tensor for tensor in given if tensor is not None]
        if not tensors:
            return None
        total = functools.reduce(lambda a, b: a + b, tensors)
        return total / self.spec.world_size if self.spec.ps_reduce == MEAN else total


MEAN, SUM = "mean", "sum"
_UNEVEN = "workers make different numbers of updates: one waits in vain"
_servers: list[_Server] = []  # that of this process, for the functions that are called
_is_built = threading.Event()


def _pulled(timeout_s: float) -> Nested:
    if not _is_built.wait(timeout_s):
        raise TimeoutError("the parameter server has no model yet")
    return _servers[-1].weights()


def _pushed(rank: int, push: Push) -> Answer | str:
    return _servers[-1].push(rank, push)


def _left() -> None:
    _servers[-1].leave()


def _serve(seat: Seat, ref: TargetRef, spec: RunSpec) -> RankResult:
    """Builds the server and answers until all workers have left."""
    from ddpcheck.ranks.worker import describe, group_s  # noqa: PLC0415
    from ddpcheck.run.process import isolation  # noqa: PLC0415
    from ddpcheck.run.process.loading import fingerprint, left, load  # noqa: PLC0415

    with isolation.isolated():
        try:
            target = load(ref)
            clean = left(target)
            server = _built(target, spec, group_s(seat))
        except Exception as error:  # noqa: BLE001 (user code; told as data)
            return RankResult(rank=seat.rank, raised=describe(error), is_clean=False)
        try:
            if has_rpc():
                server.wait()
            else:
                _answer(server)
        finally:  # the workers of the next run wait for their own
            _is_built.clear()
            _servers.clear()
    is_clean = not server.failed and clean == fingerprint(target)
    return RankResult(rank=seat.rank, dtype=spec.dtype, is_clean=is_clean)


def _built(target: Target, spec: RunSpec, timeout_s: float) -> _Server:
    from ddpcheck.run.model import model as models  # noqa: PLC0415
    from ddpcheck.run.model import user_code  # noqa: PLC0415

    model = models.build(target, spec, seed=user_code.seed_of_rank(spec, 0))
    user_code.compute(spec)
    optimizer = models.make_optimizer(target, spec, model)
    server = _Server(optimizer, spec, timeout_s)
    _servers.append(server)
    _is_built.set()
    return server


def _answer(server: _Server) -> None:
    """Answers by collectives."""
    _exchanged(server.weights())
    while any(pushes := _exchanged(None)[:-1]):
        if None in pushes:
            raise RuntimeError(_UNEVEN)
        _exchanged(server.step(pushes))


def _bytes(sizes: Sizes, workers: int) -> int:
    """Returns the bytes of workers and server, and of the tensors in transfer."""
    sent = sizes.parameters + 2 * sizes.gradients
    return (workers + 1) * sizes.trained + workers * sent


PS = Mode(
    name="ps",
    title="synchronous parameter server",
    entry_point="ddpcheck.run.modes.jobs.candidate:candidate",
    is_choice=True,
    is_ranks=True,
    servers=1,
    bytes_at_work=_bytes,
    enter=_entered,
    around_training=_served,
    explained_by="server",
)
