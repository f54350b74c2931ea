"""Builds a model for a run: cast, with its batch norm, wrapped; its optimizer."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.compare import tree
from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.ranks import devices
from ddpcheck.run import private
from ddpcheck.run.intervention import Switch
from ddpcheck.run.model import batch_norm, contents, user_code
from ddpcheck.run.model.names import for_optimizer, keep_own
from ddpcheck.run.model.whole import is_part
from ddpcheck.run.process.isolation import seed_everything
from ddpcheck.run.spec import NATIVE, RunSpec
from ddpcheck.target.target import Target

_SHARDS = "FullyShardedDataParallel"
_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.float32,  # weights stay float32, autocast computes
    "float16": torch.float32,
}


def build(target: Target, spec: RunSpec, *, seed: int, rank: int = 0) -> nn.Module:
    """Returns the bare model of a run, in train mode, on the rank's device.

    `seed` differs between processes: a model that is not seeded then has different
    initial weights, which are detected.
    """
    devices.use(spec.device, rank)
    model = user_code.model(target, spec, seed=seed)
    _check_not_empty(target, model)
    keep_own(model)
    materialize(target, spec, model)
    _settle(model)
    leave_out(model, spec.without)
    if spec.constants != NATIVE:
        cast(model, DTYPES[spec.dtype])
    if spec.device == "cpu":
        model = batch_norm.emulate_existing(model)
    if not target.is_script:
        model.train()
    frozen = Switch.FROZEN_NORMS in spec.fixes
    mode = "frozen" if frozen else spec.batch_norm
    model = batch_norm.apply(model, mode, device=spec.device)
    return devices.place(model, contents.tensors(model), spec.device)


def _settle(model: nn.Module) -> None:
    """Replaces NaN by zeros in frozen parameters.

    Uninitialised memory may contain it, as in a table for evaluation.
    """
    for parameter in contents.parameters(model):
        if parameter.requires_grad or not parameter.is_floating_point():
            continue
        is_nan = parameter.data.isnan()
        if bool(is_nan.any()):
            parameter.data.masked_fill_(is_nan, 0)


def leave_out(model: nn.Module, names: Iterable[str]) -> None:
    """Replaces modules by nn.Identity, in place.

    Raises:
        AttributeError: the model has no module of one of these names.
    """
    for name in names:
        nn.Module.set_submodule(model, name, nn.Identity())


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts floating point and complex tensors of the model, in place.

    `Module.to(dtype)` would make complex parameters real.
    """
    complex_dtype = _COMPLEX[dtype]

    def convert(t: Tensor) -> Tensor:
        if t.is_complex():
            return t.to(complex_dtype)
        return t.to(dtype) if t.is_floating_point() else t

    private.convert(model, convert)
    for tensor in contents.tensors(model):  # also hidden ones
        tensor.data = convert(tensor.data)


def cast_batch(batch: Any, dtype: str) -> Any:
    """Returns the batch with its floating point tensors in the dtype of the run."""
    wanted = DTYPES[dtype]

    def convert(_: str, t: Tensor) -> Tensor:
        if t.is_complex():
            return t.to(_COMPLEX[wanted])
        return t.to(wanted) if t.is_floating_point() else t

    return tree.replace(batch, convert)


def materialize(target: Target, spec: RunSpec, model: nn.Module) -> None:
    """Initializes lazy parameters by one forward on the global batch.

    DistributedDataParallel raises for uninitialized parameters. The forward is seeded,
    so all processes get the same weights.
    """
    lazy = torch.nn.parameter.is_lazy
    if not any(lazy(p) for p in contents.tensors(model)):
        return
    batch = tree.contents(user_code.batches(target, spec.but(steps=1))[0])
    inputs = batch if isinstance(batch, tree.DICTS) else batch[0]
    seed_everything(0)
    with torch.no_grad(), user_code.building(spec):
        call(model, inputs)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Returns the model's output: tensor -> f(x), sequence -> f(*x), dict -> f(**x)."""
    if isinstance(inputs, tree.DICTS):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def wrap(
    target: Target, spec: RunSpec, model: nn.Module, *, find_unused: bool = False
) -> nn.Module:
    """Returns the wrapped model: the user's wrapper or DistributedDataParallel.

    Raises:
        UsageError: target-wrap-kind, target-wrap-sharded.
    """
    if target.wrap is None:
        if not any(p.requires_grad for p in contents.parameters(model)):
            return model
        return DistributedDataParallel(model, find_unused_parameters=find_unused)
    try:
        wrapped = user_code.wrap(target, spec, model)
    except Exception as error:
        if _is_of_fsdp(error):  # which refuses the CPU
            raise _sharded(target, _SHARDS) from error
        raise
    if isinstance(wrapped, nn.Module):
        if not target.is_script:
            _check_whole(target, wrapped)
        user_code.widen(spec, wrapped)
        return wrapped
    raise usage_error(
        slug="target-wrap-kind",
        message=f"{target.name}: wrap() did not return a torch.nn.Module",
        expected="def wrap(model) -> the module that a rank trains",
        found=type(wrapped).__name__,
        fix="return the wrapped model from wrap()",
    )


def _check_whole(target: Target, wrapped: nn.Module) -> None:
    """Raises for wrappers that shard the parameters.

    Raises:
        UsageError: target-wrap-sharded.
    """
    # By name: importing either takes longer than a check.
    kinds = [type(m).__name__ for m in contents.modules(wrapped)]
    found = [_SHARDS] if _SHARDS in kinds else []
    found += [
        f"{n}, a DTensor" for n, p in contents.named_parameters(wrapped) if is_part(p)
    ]
    if found:
        raise _sharded(target, found[0])


def _sharded(target: Target, found: str) -> UsageError:
    return usage_error(
        slug="target-wrap-sharded",
        message=f"{target.name}: wrap() shards the parameters",
        expected="a wrapper that keeps whole parameters on every rank",
        found=found,
        fix="wrap the model in DistributedDataParallel for the check",
    )


def _is_of_fsdp(error: Exception) -> bool:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_globals.get("__name__") or "" for frame in frames]
    return any(name.startswith("torch.distributed.fsdp.") for name in names)


def make_optimizer(
    target: Target, spec: RunSpec, model: nn.Module
) -> torch.optim.Optimizer:
    """Returns the target's optimizer over the model's parameters; default SGD, 0.1.

    Raises:
        UsageError: target-optimizer-kind.
    """
    parameters = for_optimizer(model)
    if target.optimizer is None:
        return torch.optim.SGD(parameters, lr=0.1)
    made = user_code.optimizer(target, spec, parameters)
    # Duck typing: libraries have optimizers that do not derive from torch's.
    if hasattr(made, "step") and hasattr(made, "zero_grad"):
        optimizer: torch.optim.Optimizer = made
        _hook_inherited_steps(type(optimizer))
        return optimizer
    raise usage_error(
        slug="target-optimizer-kind",
        message=f"{target.name}: optimizer() did not return an optimizer",
        expected="def optimizer(params) -> torch.optim.Optimizer",
        found=type(made).__name__,
        fix="return the optimizer from optimizer(params)",
    )


def _hook_inherited_steps(kind: type[Any]) -> None:
    """Makes global optimizer hooks run in inherited `step` methods too.

    torch does so once an optimizer of the base class was created in the process; the
    result must not depend on earlier checks.
    """
    bases: tuple[Any, ...] = kind.__mro__[1:]
    for base in bases:
        step = vars(base).get("step")
        is_optimizers = issubclass(base, torch.optim.Optimizer)
        if base is torch.optim.Optimizer or not is_optimizers or step is None:
            continue
        if not getattr(step, "hooked", False):
            base.step = base.profile_hook_step(step)
            base.step.hooked = True


def _check_not_empty(target: Target, model: nn.Module) -> None:
    if any(p.requires_grad for p in contents.parameters(model)):
        return
    total = sum(1 for _ in contents.parameters(model))
    raise usage_error(
        slug="target-empty-model",
        message=f"{target.name}: the model has nothing to train",
        expected="at least one parameter with requires_grad=True",
        found=f"{type(model).__name__} with {total} parameters, none requires_grad",
        fix="return the model that is trained, unfrozen, from model()",
    )


def unseeded(target: Target, name: str) -> UsageError:
    """Returns the usage error for a model() that is not seeded."""
    return usage_error(
        slug="target-unseeded",
        message=f"{target.name}: model() is not seeded: two calls return different "
        "weights",
        expected="the same initial weights from every call",
        found=f"{name} differs between two calls of model()",
        fix="at the start of model(): torch.manual_seed(0), np.random.seed(0)",
    )
