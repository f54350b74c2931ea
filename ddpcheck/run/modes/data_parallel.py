"""`nn.DataParallel`: torch's own on enough GPUs, else its algorithm on one device.

On the CPU torch's own silently does nothing, so there it is emulated:
`DataParallel.forward` is torch's; `replicate`, `scatter` and `gather` call torch's
functions of these names with the CUDA primitives under them (Broadcast, Scatter,
Gather) replaced by their meaning: expand, chunk, concatenate. So chunk sizes, what is
copied whole, non-leaf parameters, lost buffer writes and vectors of scalars come from
torch, not from a description of it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.parallel import replicate as _replicate_function
from torch.nn.parallel import scatter_gather

from ddpcheck.compare import tree
from ddpcheck.ranks import devices
from ddpcheck.run import private
from ddpcheck.run.intervention import Interventions, Switch
from ddpcheck.run.interventions import replicas as changes
from ddpcheck.run.interventions.replicas import SharedObjects
from ddpcheck.run.model import contents
from ddpcheck.run.spec import EMULATED

_replicate_module = importlib.import_module("torch.nn.parallel.replicate")


def data_parallel(
    module: nn.Module,
    world_size: int,
    device: str,
    around_replica: Callable[[int, int], Any],
    *,
    fixes: Interventions = (),
) -> nn.Module:
    """Returns the module under DataParallel over `world_size` devices.

    Args:
        module: on the device.
        world_size: number of replicas.
        device: "cpu", or "cuda": torch's DataParallel where there are that many GPUs.
        around_replica: a context manager, see `_Replicas`.
        fixes: the interventions, of which those on replicas count.
    """
    if device == "cuda" and world_size <= devices.count():
        return DataParallelOnGPUs(module, world_size, around_replica, fixes=fixes)
    return DataParallelOnOneDevice(module, world_size, around_replica, fixes=fixes)


class _Replicas(nn.DataParallel[nn.Module]):
    """Additions to torch's DataParallel: a context around each replica, and fixes.

    `around_replica` is a context manager entered in each thread with (start, size):
    the rows of the batch that the replica sees.
    """

    around_replica: Any
    fixes: Interventions
    sizes: list[int]  # samples of each replica in the last forward
    kept: list[list[dict[str, Any]]]  # assignments of all replicas but the first then
    shared: SharedObjects | None = None  # lists and dicts, where each has its own

    def replicate(self, module: Any, device_ids: Sequence[Any]) -> list[Any]:
        """Returns torch's replicas: non-leaf parameters, buffers shared with #0."""
        replicas: list[Any] = _replicate_function(
            module, device_ids, not torch.is_grad_enabled()
        )
        if Switch.REPLICA_PARAMETERS in self.fixes:
            for replica in replicas:
                changes.fill_parameters(replica)
        for replica, kept in zip(replicas[1:], self.kept, strict=False):
            changes.assign(replica, kept)
        return replicas

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Returns the outputs concatenated; scalars become a vector."""
        gather: Any = super().gather
        if Switch.SPLIT_SAMPLES_ALONE in self.fixes:
            return changes.gathered(
                outputs, self.sizes, lambda rows: gather(rows, output_device)
            )
        if Switch.PADDED_GATHER in self.fixes:
            outputs = changes.padded(outputs)
        if Switch.MEAN_OF_SCALARS not in self.fixes:
            return gather(outputs, output_device)
        outputs = changes.with_mean_scalars(outputs, self.sizes)
        return changes.first_scalars(gather(outputs, output_device), outputs[0])

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Returns torch's chunks of every tensor, other objects whole."""
        scatter: Any = super().scatter
        if Switch.SPLIT_SAMPLES_ALONE not in self.fixes:
            return scatter(inputs, kwargs, device_ids)
        given = changes.BySamples(inputs, kwargs)
        parts = zip(*scatter(*given.rows(), device_ids), strict=True)
        whole = [given.part(*part) for part in parts]
        return [args for args, _ in whole], [kwds for _, kwds in whole]

    def bound(
        self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any
    ) -> list[Callable[..., Any]]:
        """Returns functions that call the replicas in their contexts."""
        starts = _starts(inputs, kwargs)
        self.sizes = [size for _, size in starts]
        calls: list[Callable[..., Any]] = [
            functools.partial(self._call, replica, rows)
            for replica, rows in zip(replicas, starts, strict=True)
        ]
        if Switch.OWN_OBJECTS not in self.fixes:
            return calls
        self.shared = SharedObjects(self.module)
        return list(map(self.shared.alone, calls))

    def keep(self, replicas: Sequence[Any]) -> None:
        """Keeps writes and assignments of replicas, if an intervention requires it.

        The model keeps those of the first replica, and each replica its own: a hidden
        state has the rows of its samples.
        """
        if self.shared is not None:
            self.shared.join(self.sizes)
        if Switch.KEPT_REPLICA_STATE in self.fixes:
            self.kept = [changes.assigned(self.module, r) for r in replicas[1:]]
            changes.keep_state(self.module, replicas[0])

    def _call(
        self, replica: Any, rows: tuple[int, int], *args: Any, **kwds: Any
    ) -> Any:
        if self.around_replica is None:
            return replica(*args, **kwds)
        with self.around_replica(*rows):
            return replica(*args, **kwds)


class DataParallelOnGPUs(_Replicas):
    """torch's DataParallel on the first `world_size` GPUs."""

    def __init__(
        self,
        module: nn.Module,
        world_size: int,
        around_replica: Callable[[int, int], Any] | None = None,
        *,
        fixes: Interventions = (),
    ) -> None:
        super().__init__(module, device_ids=list(range(world_size)))
        self.around_replica, self.fixes = around_replica, fixes
        self.sizes, self.kept = [], []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Returns the gathered output; one GPU alone has no replicas to bind."""
        if len(self.device_ids) > 1 or self.around_replica is None:
            return super().forward(*inputs, **kwargs)
        (rows,) = _starts([inputs], [kwargs])
        with self.around_replica(*rows):
            return super().forward(*inputs, **kwargs)

    def parallel_apply(
        self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        """Returns the replicas' outputs; torch runs them in threads."""
        bound: Any = self.bound(replicas, inputs, kwargs)
        if Switch.SAME_THREAD in self.fixes:
            outputs = self._one_by_one(bound, inputs, kwargs)
        else:
            outputs = super().parallel_apply(bound, inputs, kwargs)
        self.keep(replicas)
        return outputs

    def _one_by_one(
        self, bound: Sequence[Any], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        outputs = []
        each = zip(self.device_ids, bound, inputs, kwargs, strict=False)
        for device, call, args, named in each:
            with torch.cuda.device(device):
                outputs.append(call(*args, **named))
        return outputs


class DataParallelOnOneDevice(_Replicas):
    """DataParallel over `world_size` pretended devices, all of them the module's.

    Replicas run in threads, one after the other: results then do not depend on
    scheduling, and a thread still has no part in the caller's thread-local state.
    """

    def __init__(
        self,
        module: nn.Module,
        world_size: int,
        around_replica: Callable[[int, int], Any] | None = None,
        *,
        fixes: Interventions = (),
    ) -> None:
        if private.data_parallel_functions is None:
            message = (
                f"torch.nn.parallel._functions.Broadcast, {EMULATED}, is not in "
                f"torch {torch.__version__}"
            )
            raise NotImplementedError(message)
        nn.Module.__init__(self)
        self.dim = 0
        self.module = module
        self.device_ids = list(range(world_size))
        self.output_device = 0
        self.src_device_obj = _device_of(module)
        self.around_replica, self.fixes = around_replica, fixes
        self.sizes, self.kept = [], []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Returns torch's forward; on one device it calls the module itself."""
        if len(self.device_ids) > 1 or self.around_replica is None:
            return super().forward(*inputs, **kwargs)
        with self.around_replica(*_starts([inputs], [kwargs])[0]):
            return super().forward(*inputs, **kwargs)

    def replicate(self, module: Any, device_ids: Sequence[Any]) -> list[Any]:
        """Returns the replicas, as torch makes them."""
        with _one_device_primitives():
            return super().replicate(module, device_ids)

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        """Returns the replicas' inputs, as torch makes them."""
        with _one_device_primitives():
            return super().scatter(inputs, kwargs, device_ids)

    def parallel_apply(
        self, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any
    ) -> list[Any]:
        """Returns the replicas' outputs; raises the first replica's exception."""
        run = _call if Switch.SAME_THREAD in self.fixes else _in_thread
        bound = self.bound(replicas, inputs, kwargs)
        outputs = [
            run(call, args, kwds)
            for call, args, kwds in zip(bound, inputs, kwargs, strict=True)
        ]
        self.keep(replicas)
        return outputs

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Returns the outputs concatenated, as torch does it."""
        with _one_device_primitives():
            return super().gather(outputs, output_device)


def _call(call: Callable[..., Any], args: Any, kwds: Any) -> Any:
    return call(*args, **kwds)


def _in_thread(call: Callable[..., Any], args: Any, kwds: Any) -> Any:
    box: dict[str, Any] = {}
    grad = torch.is_grad_enabled()

    def work() -> None:
        try:
            with torch.set_grad_enabled(grad):
                box["output"] = call(*args, **kwds)
        except BaseException as error:  # noqa: BLE001 (raised in the caller)
            box["error"] = error

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if "error" in box:
        raise box["error"]
    return box["output"]


def _device_of(module: nn.Module) -> torch.device:
    tensors = contents.tensors(module)
    return next((t.device for t in tensors), torch.device("cpu"))


class _Broadcast(torch.autograd.Function):
    """One copy per device; gradients of all copies are added up, sparse ones too."""

    @staticmethod
    def forward(ctx: Any, devices: Sequence[Any], *tensors: Tensor) -> Any:
        ctx.count = len(tensors)
        copies = [
            t.view_as(t) if number == 0 else t.clone()
            for number in range(len(devices))
            for t in tensors
        ]
        fixed = [not needed for needed in ctx.needs_input_grad[1:]] * len(devices)
        ctx.mark_non_differentiable(*itertools.compress(copies, fixed))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        replicas = [grads[i :: ctx.count] for i in range(ctx.count)]
        given = [[g for g in grads if g is not None] for grads in replicas]
        sums = (
            functools.reduce(torch.add, found) if found else None for found in given
        )
        return None, *sums


class _Scatter:
    @staticmethod
    def apply(devices: Sequence[Any], _: Any, dim: int, tensor: Tensor) -> Any:
        return tensor.chunk(len(devices), dim)


class _Gather:
    @staticmethod
    def apply(_: Any, dim: int, *tensors: Tensor) -> Tensor:
        if all(t.dim() == 0 for t in tensors) and dim == 0:
            return torch.stack(list(tensors))
        return torch.cat(list(tensors), dim)


class _Communication:
    @staticmethod
    def broadcast_coalesced(
        tensors: Sequence[Tensor], devices: Sequence[Any], *_: Any
    ) -> list[list[Tensor]]:
        # torch sends pairs of real numbers, and reports this to the caller.
        plain = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        return [
            [t.detach() if number == 0 else t.detach().clone() for t in plain]
            for number in range(len(devices))
        ]


@contextlib.contextmanager
def _one_device_primitives() -> Iterator[None]:
    with (
        mock.patch.object(private.data_parallel_functions, "Broadcast", _Broadcast),
        mock.patch.object(_replicate_module, "comm", _Communication),
        mock.patch.object(scatter_gather, "Scatter", _Scatter),
        mock.patch.object(scatter_gather, "Gather", _Gather),
    ):
        yield


def _starts(inputs: Sequence[Any], kwargs: Any) -> list[tuple[int, int]]:
    """Returns (first row, rows) of each replica, by its first tensor with rows."""
    rows, start = [], 0
    for args, kwds in zip(inputs, kwargs, strict=True):
        leaves = [t for t in tree.held((args, kwds)) if t.dim() > 0]
        size = len(leaves[0]) if leaves else 0
        rows.append((start, size))
        start += size
    return rows
