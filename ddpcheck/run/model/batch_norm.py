"""Batch norm modes: asis, local, sync, frozen.

`nn.SyncBatchNorm` runs on GPUs only, so `sync` on the CPU is this module's own:
count-weighted sums through an all-reduce that autograd sees, in two passes (mean,
then centred squares), exact for uneven shards up to rounding.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run import private
from ddpcheck.run.model import contents
from ddpcheck.run.private import BatchNorm
from ddpcheck.run.process.replacing import replaced

_GROUP = "process_group"  # as nn.SyncBatchNorm has it
# What torch.jit calls them where it has compiled them.
_SCRIPTED = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


class SynchronizedBatchNorm(BatchNorm):
    """Batch norm over all ranks of a group, on any device.

    Shapes: input and output (N, C, *), N the rank's own, C equal on all ranks.

    Without a group, or in eval mode, it is plain batch norm, as torch's is. Its
    `process_group` is that of torch's: None, or none at all, is the default group.

    Source: the definition of batch norm (arXiv:1502.03167) with the sums taken over
    all ranks; running variance unbiased over the global count, as `F.batch_norm`.
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (torch's name)
        if input.dim() < 2:  # noqa: PLR2004
            raise ValueError(f"expected at least 2 dimensions, found {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Returns the normalised input."""
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return BatchNorm.forward(self, input)  # also called by classes of libraries
        self._check_input_dim(input)
        factor = 0.0 if self.momentum is None else self.momentum
        is_tracked = self.track_running_stats
        if is_tracked:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        return _normalized(
            input,
            self.running_mean if is_tracked else None,
            self.running_var if is_tracked else None,
            self.weight,
            self.bias,
            factor=factor,
            eps=self.eps,
            group=_group_of(self),
        )


def _group_of(module: nn.Module) -> dist.ProcessGroup | None:
    return getattr(module, _GROUP, None)


def is_synchronized(module: nn.Module) -> bool:
    """Returns whether a batch norm takes its statistics over a group of ranks."""
    return _is_synchronized(module) or isinstance(module, _OwnForward)


def _normalized(
    input: Tensor,  # noqa: A002 (torch's name)
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    *,
    factor: float,
    eps: float,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Returns the input normalised over a group; updates running statistics."""
    given = input.dtype
    if given in (torch.float16, torch.bfloat16):
        input = input.float()  # noqa: A001 (as torch's kernels, which sum in float32)
    dims = [d for d in range(input.dim()) if d != 1]
    shape = [1, -1] + [1] * (input.dim() - 2)
    count = input.new_tensor([input.numel() / input.shape[1]])
    dist.all_reduce(count, group=group)
    mean = all_reduce_sum(input.sum(dims), group) / count
    centred = input - mean.view(shape)
    var = all_reduce_sum(centred.pow(2).sum(dims), group) / count
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), factor)
        if running_var is not None:
            unbiased = var * (count / (count - 1))
            running_var.lerp_(unbiased.to(running_var.dtype), factor)
    out = centred * (var + eps).rsqrt().view(shape)
    if weight is not None:
        out = out * weight.view(shape)
    return (out if bias is None else out + bias.view(shape)).to(given)


class _OwnForward:
    """A batch norm of a library with a forward that computes more than batch norm.

    For example an activation, as timm's BatchNormAct2d. `functional.batch_norm` inside
    is replaced by the synchronized one, also in classes derived from SyncBatchNorm.
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the library's forward."""
        norm = functional.batch_norm
        if dist.is_available() and dist.is_initialized():
            norm = _synchronized(norm, _group_of(self))  # type: ignore[arg-type]
        with (
            replaced(functional, batch_norm=norm),
            replaced(nn.SyncBatchNorm, forward=SynchronizedBatchNorm.forward),
        ):
            return super().forward(*args, **kwargs)  # type: ignore[misc]


def _synchronized(
    plain: Callable[..., Tensor], group: dist.ProcessGroup | None
) -> Callable[..., Tensor]:
    """Returns `functional.batch_norm` over a group; `plain` in evaluation."""

    def batch_norm(
        input: Tensor,  # noqa: A002
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,  # noqa: FBT001, FBT002
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        given = input, running_mean, running_var, weight, bias
        if not training:
            return plain(*given, training, momentum, eps)
        return _normalized(*given, factor=momentum, eps=eps, group=group)

    return batch_norm


class _AllReduceSum(torch.autograd.Function):
    """Sum over ranks whose backward is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        out = value.detach().clone()
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        out = grad.contiguous().clone()
        dist.all_reduce(out, group=ctx.group)
        return out, None


def all_reduce_sum(value: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Returns the sum over all ranks of a group; gradients are summed over them too.

    Right for losses that are themselves summed or averaged over ranks: d(sum_r L_r).
    """
    result: Tensor = _AllReduceSum.apply(value, group)  # type: ignore[no-untyped-call]
    return result


def apply(
    model: nn.Module, mode: str, *, device: str = "cpu", only: Collection[str] = ()
) -> nn.Module:
    """Returns the model with its batch norm in this mode; changes it in place.

    On GPUs `sync` is torch's own SyncBatchNorm, if its conversion is complete. With
    `only`, names of modules, `sync` leaves all others as they are.
    """
    if mode == "local":
        return contents.replace(model, _is_synchronized, _to_local)
    if mode == "sync":
        loses = any(
            _is_batch_norm(m) and _computes_more(m) for m in contents.modules(model)
        )
        if only:
            chosen = {id(nn.Module.get_submodule(model, name)) for name in only}
            return contents.replace(
                model,
                lambda m: _is_batch_norm(m) and id(m) in chosen,
                _to_complete_sync,
            )
        if device != "cpu" and not loses:
            return nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-any-return]
        model = contents.replace(model, _is_batch_norm, _to_complete_sync)
        for module in contents.modules(model):
            if isinstance(module, SynchronizedBatchNorm | _OwnForward):
                setattr(module, _GROUP, None)
        return model
    if mode == "frozen":
        for module in contents.modules(model):
            if isinstance(module, private.BATCH_NORMS):
                _freeze(module)
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Returns whether any module is one of torch's batch norms."""
    return any(isinstance(m, private.BATCH_NORMS) for m in contents.modules(model))


def scripts_batch_norm(module: nn.Module) -> bool:
    """Returns whether torch.jit has compiled a module with a batch norm in it."""
    if not isinstance(module, torch.jit.ScriptModule):
        return False
    names = (getattr(m, "original_name", "") for m in contents.modules(module))
    return any(name in _SCRIPTED for name in names)


def sync_batch_norm_on(device: str) -> contextlib.AbstractContextManager[None]:
    """Returns what makes `convert_sync_batchnorm` work on the device."""
    return _emulated() if device == "cpu" else contextlib.nullcontext()


@contextlib.contextmanager
def _emulated() -> Iterator[None]:
    """Makes `nn.SyncBatchNorm.convert_sync_batchnorm` work on the CPU.

    DistributedDataParallel refuses SyncBatchNorm modules on the CPU, and their forward
    refuses CPU tensors; inside, conversion returns `SynchronizedBatchNorm` instead.
    Modules from a library's own conversion are emulated when DDP wraps them.
    """
    build = DistributedDataParallel.__init__

    def build_emulated(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        module = emulate_existing(module)
        with _unnoticed():
            build(self, module, *args, **kwargs)

    def convert(_: Any, module: nn.Module, process_group: Any = None) -> nn.Module:
        def to_sync(found: BatchNorm) -> nn.Module:
            made = _to_sync(found)
            setattr(made, _GROUP, process_group)
            return made

        return contents.replace(module, _is_batch_norm, to_sync)

    with (
        replaced(nn.SyncBatchNorm, convert_sync_batchnorm=classmethod(convert)),
        replaced(DistributedDataParallel, __init__=build_emulated),
    ):
        yield


def forward_on(device: str) -> contextlib.AbstractContextManager[None]:
    """Makes `nn.SyncBatchNorm` compute on the device while models are built.

    A library may create one if there is a group, and call it at once.
    """
    if device != "cpu":
        return contextlib.nullcontext()
    return replaced(nn.SyncBatchNorm, forward=SynchronizedBatchNorm.forward)


def _unnoticed() -> contextlib.AbstractContextManager[None]:
    """Keeps DDP from refusing emulated classes that derive from SyncBatchNorm."""
    return replaced(nn.modules, SyncBatchNorm=type("NoSync", (nn.Module,), {}))


def emulate_existing(model: nn.Module) -> nn.Module:
    """Returns the model with its own nn.SyncBatchNorm modules emulated."""
    return contents.replace(model, _is_of_torch, _to_complete_sync)


def _is_of_torch(module: nn.Module) -> bool:
    is_ours = isinstance(module, _OwnForward)
    return isinstance(module, nn.SyncBatchNorm) and not is_ours


def _is_synchronized(module: nn.Module) -> bool:
    return isinstance(module, nn.SyncBatchNorm | SynchronizedBatchNorm)


def _is_batch_norm(module: nn.Module) -> bool:
    is_ours = isinstance(module, SynchronizedBatchNorm | _OwnForward)
    return isinstance(module, private.BATCH_NORMS) and not is_ours


def _to_sync(module: BatchNorm) -> nn.Module:
    return _take_over(module, SynchronizedBatchNorm)


def _to_complete_sync(module: BatchNorm) -> nn.Module:
    """Returns the module synchronised, with all that its forward computes."""
    if not _computes_more(module):
        return _to_sync(module)
    kind = type(module)
    name = f"Synchronized{kind.__name__}"
    return _take_over(module, type(name, (_OwnForward, kind), {}))


def _computes_more(module: nn.Module) -> bool:
    """Returns whether the class of a batch norm has a forward of its own."""
    return type(module).forward not in (BatchNorm.forward, nn.SyncBatchNorm.forward)


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
