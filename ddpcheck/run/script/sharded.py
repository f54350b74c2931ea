"""Scripts that shard their model by `fully_shard` (FSDP2): where it is called.

The module is changed in place, so it is the model and the wrapper at once. The check
stops where the first part of the model is about to be sharded, as it stops before
DistributedDataParallel is built.

For a diagnosis, `Whole` takes the place of `fully_shard`: parameters stay whole, and
DistributedDataParallel averages the gradients, which is what FSDP2 does with them. The
causes that lie in the loss, the batch norms, the data, the update are then found as in
any other script.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ddpcheck.run.model import contents
from ddpcheck.run.model.whole import is_part
from ddpcheck.run.process.replacing import replaced

Shard = Callable[..., Any]
_NAME = "fully_shard"
_CALLS = "_ddpcheck_calls"  # on a whole model: who runs its forward
_FACTOR = "_ddpcheck_divide_factor"  # on a module that is sharded
_SETTERS = "set_gradient_divide_factor", "set_reduce_scatter_divide_factor"
_ONE = 1e-5  # relative: factors of this difference are one


@contextlib.contextmanager
def watched(make: Callable[[Shard], Shard]) -> Iterator[None]:
    """Context in which `fully_shard` is what `make` returns for it.

    Also where a module has imported it already.
    """
    original = getattr(fsdp, _NAME, None)
    if original is None:  # before torch 2.6
        yield
        return
    new = functools.wraps(original)(make(original))
    modules = [m for m in list(sys.modules.values()) if _has(m, original)]
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(replaced(module, **{_NAME: new}))
        yield


def _has(module: Any, function: Any) -> bool:
    return getattr(module, "__dict__", {}).get(_NAME) is function


def first_of(given: Any) -> nn.Module:
    """Returns the module, or the first of the modules, that is about to be sharded."""
    module: nn.Module = given[0] if isinstance(given, list | tuple) else given
    return module


def root_of(part: nn.Module) -> nn.Module:
    """Returns the largest module that contains a part: the model."""
    best, size = part, sum(1 for _ in contents.modules(part))
    for module in [m for m in gc.get_objects() if isinstance(m, nn.Module)]:
        inside = list(contents.modules(module))
        if len(inside) > size and any(one is part for one in inside):
            best, size = module, len(inside)
    return best


def has_values(model: nn.Module) -> bool:
    """Returns whether the parameters are more than shapes on the meta device."""
    return not any(tensor.is_meta for tensor in contents.tensors(model))


def options(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of `fully_shard` for this run.

    In float64 without a policy of mixed precision: as autocast, it would round.
    """
    if torch.get_default_dtype() is torch.float64:
        return {name: value for name, value in given.items() if name != "mp_policy"}
    return given


def as_gloo_can(module: Any) -> None:
    """Makes modules divide gradients by a given factor themselves.

    NCCL does it within the exchange, for which gloo has no operation.
    """
    for one in module if isinstance(module, list | tuple) else [module]:
        divide = getattr(one, "set_force_sum_reduction_for_comms", None)  # torch 2.9
        if divide is not None and dist.get_backend() == "gloo":
            divide(True)


@dataclass(slots=True)
class _Calls:
    """Hands calls of a whole model to its wrapper, which calls the model."""

    wrapper: DistributedDataParallel
    is_inside: bool = False

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False


def _nothing(*_: Any, **__: Any) -> None:
    pass


class _Done:
    """What unshard(async_op=True) returns: nothing is left to be waited for."""

    def wait(self) -> None:
        """Returns at once."""


class Whole:
    """The methods of a module that `fully_shard` was called with, parameters whole."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapper, or, within it, the model."""
        calls = vars(self).get(_CALLS)
        if calls is None or calls.is_inside:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        with calls.inside():
            return calls.wrapper(*args, **kwargs)

    def set_requires_gradient_sync(
        self,
        requires_gradient_sync: bool,  # noqa: FBT001
        **_: Any,
    ) -> None:
        """As in `fully_shard`, for the whole model."""
        if _CALLS in vars(self):
            wrapper = vars(self)[_CALLS].wrapper
            wrapper.require_backward_grad_sync = requires_gradient_sync

    def unshard(self, async_op: bool = False) -> _Done | None:  # noqa: FBT001, FBT002
        """Does nothing: parameters are whole."""
        return _Done() if async_op else None

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Refuses it.

        Raises:
            NotImplementedError: always; DistributedDataParallel has no such factor.
        """
        raise NotImplementedError(factor)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor


def keep_whole(module: Any, **_: Any) -> Any:
    """Takes the place of `fully_shard`: gives modules its methods, and no more."""
    for one in module if isinstance(module, list | tuple) else [module]:
        one.__class__ = _kind(type(one))
    return module


_KINDS: dict[type, type] = {}


def _kind(kind: type) -> type:
    """Returns the class that takes the place of one, the same each time."""
    if not issubclass(kind, Whole) and kind not in _KINDS:
        _KINDS[kind] = _with_methods(kind)
    return _KINDS.get(kind, kind)


def _with_methods(kind: type) -> type:
    idle = [
        name
        for name, value in vars(fsdp.FSDPModule).items()
        if callable(value) and not name.startswith("_") and not hasattr(Whole, name)
    ]
    body = dict.fromkeys(idle, _nothing) | {"__new__": _as(kind)}
    # Its own class first: what FSDPModule overrides of it is for parts.
    return type(kind.__name__, (Whole, kind, fsdp.FSDPModule), body)


def _as(kind: type) -> Callable[..., Any]:
    def new(_: type, *args: Any, **kwargs: Any) -> Any:
        """Makes an object of the class that was sharded, as slices of containers."""
        return kind(*args, **kwargs)

    return new


def wrapped(model: nn.Module) -> DistributedDataParallel:
    """Returns the wrapper that runs a whole model wherever the script calls it.

    As FSDP2, it sends neither the initial weights nor buffers, and waits for no
    parameter that no rank uses.
    """
    wrapper = DistributedDataParallel(
        model, init_sync=False, broadcast_buffers=False, find_unused_parameters=True
    )
    vars(model)[_CALLS] = _Calls(wrapper)
    return wrapper


@contextlib.contextmanager
def factors_noted() -> Iterator[None]:
    """Context in which modules keep the factor that their gradients are divided by."""
    kind = getattr(fsdp, "FSDPModule", None)
    names = [name for name in _SETTERS if name in vars(kind or object)]
    with contextlib.ExitStack() as stack:
        for name in names:
            noting = _noting(getattr(kind, name))
            stack.enter_context(replaced(kind, **{name: noting}))
        yield


def _noting(function: Callable[..., None]) -> Callable[..., None]:
    def setting(module: nn.Module, factor: float, *args: Any, **kwargs: Any) -> None:
        vars(module)[_FACTOR] = float(factor)
        function(module, factor, *args, **kwargs)

    return setting


@contextlib.contextmanager
def old_noted(found: list[nn.Module]) -> Iterator[None]:
    """Context in which modules of FullyShardedDataParallel (FSDP1) come into a list."""
    kind: Any = fsdp.FullyShardedDataParallel
    init = kind.__init__

    def noting(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        found.append(module)
        init(module, *args, **kwargs)

    with replaced(kind, __init__=functools.wraps(init)(noting)):
        yield


def cut_otherwise(
    old: Sequence[nn.Module], parameters: Iterable[Tensor], *, shards: bool
) -> str:
    """Returns what cuts a model over the ranks, if it is not `fully_shard`, else "".

    Args:
        old: modules of FullyShardedDataParallel.
        parameters: that are trained.
        shards: whether `fully_shard` was called, which cuts a parameter once.
    """
    if old:
        return "FullyShardedDataParallel"
    by_it = int(shards)
    cuts = (getattr(p, "placements", ()) for p in parameters if is_part(p))
    is_more = any(
        sum(not (one.is_replicate() or one.is_partial()) for one in each) > by_it
        for each in cuts
    )
    return "tensor parallelism" if is_more else ""


def divided(model: nn.Module) -> tuple[tuple[str, float | None], ...]:
    """Returns the sharded modules of a model, by name, and their divide factors."""
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None:
        return ()
    return tuple(
        (name, vars(module).get(_FACTOR))
        for name, module in model.named_modules()
        if isinstance(module, kind)
    )


@dataclass(slots=True)
class Scales:
    """What a rank's parts of gradients are multiplied by before an update.

    `trained` returns the parameters, () where nothing is sharded.
    """

    trained: Callable[[], list[Tensor]]
    left: list[float] = field(default_factory=list)  # norms after the last backward
    scale: float | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Context in which backwards and updates are seen."""
        backward = torch.autograd.backward

        def noting(*args: Any, **kwargs: Any) -> None:
            backward(*args, **kwargs)
            self.left = self._norms()

        hook = register_optimizer_step_pre_hook(self._before_update)
        try:
            with replaced(torch.autograd, backward=noting):
                yield
        finally:
            hook.remove()

    def _norms(self) -> list[float]:
        return [_norm(parameter.grad) for parameter in self.trained()]

    def _before_update(self, *_: Any) -> None:
        now = self._norms() if self.left else []
        pairs = zip(self.left, now, strict=False)
        found = [after / before for before, after in pairs if before > 0]
        self.left = []
        is_one = bool(found) and max(found) - min(found) <= _ONE * max(found)
        self.scale = found[0] if is_one else None

    def take(self) -> float | None:
        """Returns the factor of the last update, and forgets it."""
        found, self.scale = self.scale, None
        return found


def _norm(gradient: Any) -> float:
    if gradient is None:
        return 0.0
    part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return float(part.detach().double().norm())


def wholes_as_parts() -> contextlib.AbstractContextManager[None]:
    """Context in which a plain tensor has the methods of a DTensor to read it."""

    def itself(tensor: Tensor, **_: Any) -> Tensor:
        return tensor

    return replaced(Tensor, full_tensor=itself, to_local=itself)
