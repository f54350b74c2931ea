"""Batch norm modes: asis, local, sync, frozen.

`nn.SyncBatchNorm` runs on GPUs only, so `sync` on the CPU is this module's own:
count-weighted sums through an all-reduce that autograd sees, in two passes (mean,
then centred squares), exact for uneven shards up to rounding.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.run import private, submodules
from ddpcheck.run.private import BatchNorm

_PLAIN = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}


class SynchronizedBatchNorm(BatchNorm):
    """Batch norm over all ranks of the default group, on any device.

    Shapes: input and output (N, C, *), N the rank's own, C equal on all ranks.

    Without a group, or in eval mode, it is plain batch norm.

    Source: the definition of batch norm (arXiv:1502.03167) with the sums taken over
    all ranks; running variance unbiased over the global count, as `F.batch_norm`.
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (torch's name)
        if input.dim() < 2:  # noqa: PLR2004
            message = f"expected at least 2 dimensions, found {input.dim()}"
            raise ValueError(message)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Returns the normalised input."""
        uses_batch = self.training or self.running_mean is None
        if not (uses_batch and dist.is_available() and dist.is_initialized()):
            return super().forward(input)
        self._check_input_dim(input)
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        count = input.new_tensor([input.numel() / input.shape[1]])
        dist.all_reduce(count)
        mean = all_reduce_sum(input.sum(dims)) / count
        centred = input - mean.view(shape)
        var = all_reduce_sum(centred.pow(2).sum(dims)) / count
        if self.training and self.track_running_stats:
            self._update(mean.detach(), var.detach(), count)
        out = centred * (var + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            out = out * self.weight.view(shape)
        return out if self.bias is None else out + self.bias.view(shape)

    def _update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = self.momentum
        if factor is None:
            factor = 1.0 / float(self.num_batches_tracked)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            unbiased = var * (count / (count - 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks whose backward is the sum over ranks."""

    @staticmethod
    def forward(_: Any, value: Tensor) -> Tensor:
        out = value.detach().clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        out = grad.contiguous().clone()
        dist.all_reduce(out)
        return out


def all_reduce_sum(value: Tensor) -> Tensor:
    """Returns the sum over all ranks; gradients are summed over ranks too.

    Right for losses that are themselves summed or averaged over ranks: d(sum_r L_r).
    """
    result: Tensor = _AllReduceSum.apply(value)  # type: ignore[no-untyped-call]
    return result


def apply(model: nn.Module, mode: str, *, device: str = "cpu") -> nn.Module:
    """Returns the model with its batch norm as `mode` says; changes it in place.

    On GPUs `sync` is torch's own SyncBatchNorm.
    """
    if mode == "local":
        return submodules.replace(model, _is_synchronized, _to_local)
    if mode == "sync" and device != "cpu":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return]
    if mode == "sync":
        return submodules.replace(model, _is_batch_norm, _to_sync)
    if mode == "frozen":
        for module in model.modules():
            if isinstance(module, private.BATCH_NORMS):
                _freeze(module)
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Returns whether any module is one of torch's batch norms."""
    return any(isinstance(m, private.BATCH_NORMS) for m in model.modules())


def sync_batch_norm_on(device: str) -> contextlib.AbstractContextManager[None]:
    """Returns what makes `convert_sync_batchnorm` work on the device."""
    return _emulated() if device == "cpu" else contextlib.nullcontext()


@contextlib.contextmanager
def _emulated() -> Iterator[None]:
    """Lets `nn.SyncBatchNorm.convert_sync_batchnorm` work on the CPU.

    DistributedDataParallel refuses SyncBatchNorm modules on the CPU, and their forward
    refuses CPU tensors; inside, conversion gives `SynchronizedBatchNorm` instead.
    """
    cls = nn.SyncBatchNorm
    before = cls.__dict__["convert_sync_batchnorm"]

    def convert(_: Any, module: nn.Module, process_group: Any = None) -> nn.Module:  # noqa: ARG001
        return submodules.replace(module, _is_batch_norm, _to_sync)

    cls.convert_sync_batchnorm = classmethod(convert)  # type: ignore[assignment]
    try:
        yield
    finally:
        cls.convert_sync_batchnorm = before  # type: ignore[method-assign]


def emulate_existing(model: nn.Module) -> nn.Module:
    """Returns the model with its own nn.SyncBatchNorm modules emulated."""
    return submodules.replace(model, _is_of_torch, _to_sync)


def _is_of_torch(module: nn.Module) -> bool:
    return isinstance(module, nn.SyncBatchNorm)


def _is_synchronized(module: nn.Module) -> bool:
    return isinstance(module, nn.SyncBatchNorm | SynchronizedBatchNorm)


def _is_batch_norm(module: nn.Module) -> bool:
    is_ours = isinstance(module, SynchronizedBatchNorm)
    return isinstance(module, private.BATCH_NORMS) and not is_ours


def _to_sync(module: BatchNorm) -> nn.Module:
    return _take_over(module, SynchronizedBatchNorm)


def _to_local(module: BatchNorm) -> nn.Module:
    return _take_over(module, _AnyDimBatchNorm)


class _AnyDimBatchNorm(BatchNorm):
    """Plain batch norm for any number of dimensions."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (torch's name)
        pass


def _take_over(module: BatchNorm, kind: type[BatchNorm]) -> nn.Module:
    """Returns a module of `kind` that shares parameters, buffers and hooks."""
    new = kind.__new__(kind)
    new.__dict__.update(module.__dict__)
    return new


def _freeze(module: nn.Module) -> None:
    module.eval()
    # A later model.train() must not thaw it.
    module.train = types.MethodType(lambda self, mode=True: self, module)  # type: ignore[method-assign]  # noqa: ARG005
