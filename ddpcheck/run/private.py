"""The undocumented parts of torch that ddpcheck uses, and its behaviour without them.

No other module uses a private name of torch, except those listed at the end, which look
one up as text. tests/test_private_apis.py checks this, and that torch still has each of
the names.

    _buffers, _modules      named_buffers, named_modules, and assignment
    _parameters             named_parameters; replicas of DataParallel then have none,
                            so the fix that needs it proves nothing
    Module._apply           tensors are converted one by one; to, half, cuda, ... are
                            observed instead of the function that they call
    Tensor._version         0: writes are seen by changed values; writes of weights
                            during backward are not reported, nor which backward left
                            a gradient unchanged
    Tensor._backward_hooks  hooks are seen when they are registered; earlier ones
                            cannot be removed, so the fix that does proves nothing
    Module._backward_hooks  hooks on modules are not reported and cannot be removed
    Module._forward_hooks   outputs that a hook keeps are not gathered from all ranks,
                            so the fix that does proves nothing
    Module._forward_pre_hooks  the same; the input that a hook returns is taken for the
                            argument of the module
    _BatchNorm              the documented classes; BatchNorm1d as a base
    _pytree                 ddpcheck.compare.tree, which finds more tensors: an output
                            that hides its tensors from DDP may not be reported
    DisableTorchFunction    nothing: torch has already disabled ddpcheck's own mode
    _python_dispatch        `--noise sample` is refused; draws of the target's own
                            generators are not reported
    parallel._functions     DataParallel needs GPUs, its runs on the CPU are refused
    _are_functorch_transforms_active  False: if the step uses torch.func, no link can
                            be judged by itself
    torch._dynamo           nothing: ddpcheck.run.process.dynamo replaces it
    torch._compile          torch._dynamo is imported for all ranks

Looked up as text; without one of these, the feature that needs it is left out:

    _attention                               run/process/ahead: each rank imports it
    _clip_grads_with_norm_                   run/observe/patches: clipping is not seen
    _get_iterator                            run/script/loaders: only loaders that
                                             iterate as torch's do are seen
    _comm_hooks                              interventions/rewrapping: DDP is built
                                             again without hooks
    _former_parameters, _is_replica          interventions/replicas: as _parameters
    _is_param                                interventions/replicas: isinstance is false
    _ddp_params_and_buffers_to_ignore, _set_static_graph, _register_builtin_comm_hook
                                             jobs/virtual/ddp: nothing to refuse;
                                             script/driver: no script with a static
                                             graph trains as a single process
    _allgather_base, _reduce_scatter_base    jobs/virtual/group: nothing to refuse
    _orig_mod, _fsdp_wrapped_module          run/model/names: nothing to remove
    _engine_run_backward                     facts/rank_table: a frame like any other;
                                             script/cuda_as_cpu: backwards of a script's
                                             own functions fail where they name CUDA
    _transports                              modes/ps: processes that wait poll
    _saved_other                             run/observe/addends: a loss divided by a
                                             constant is taken for a sum
    _schema                                  run/model/draws: dropout inside is not
    seen; "writes" substitutes nothing _AllReduce
    collectives/reductions: torch's own sums
                                             stay sums

All choices are made once, at the import of this module.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, MutableMapping
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree


class _ByName(MutableMapping[str, Any]):
    """A module's own tensors or submodules, None left out, by documented ways."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def named(self) -> Iterator[tuple[str, Any]]:
        """Yields each tensor or module under each of its names."""
        raise NotImplementedError

    def __getitem__(self, name: str) -> Any:
        return dict(self.named())[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.module, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.module, name)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, _ in self.named()])

    def __len__(self) -> int:
        return len(list(self.named()))


class _Buffers(_ByName):
    def named(self) -> Iterator[tuple[str, Any]]:
        """Yields the module's own buffers."""
        return nn.Module.named_buffers(
            self.module, recurse=False, remove_duplicate=False
        )

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self:
            setattr(self.module, name, value)
        else:
            self.module.register_buffer(name, value)


class _Parameters(_ByName):
    def named(self) -> Iterator[tuple[str, Any]]:
        """Yields the module's own parameters."""
        return nn.Module.named_parameters(
            self.module, recurse=False, remove_duplicate=False
        )


class _Children(_ByName):
    def named(self) -> Iterator[tuple[str, Any]]:
        """Yields the direct submodules."""
        # Not named_children: it yields a module with two names once.
        everything = nn.Module.named_modules(self.module, remove_duplicate=False)
        return ((n, m) for n, m in everything if n and "." not in n)


def _apply(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    module._apply(function)  # noqa: SLF001 (what Module.double() itself calls)


def _convert(module: nn.Module, function: Callable[[Tensor], Tensor]) -> None:
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = function(tensor.data)


def _zero(_: Tensor) -> int:
    return 0


def _none(_: Tensor) -> None:
    return None


def _no_hooks(_: nn.Module) -> dict[int, Any]:
    return {}


class _NoMode(contextlib.nullcontext[None]):
    """A base for modes that sees no operation."""


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_ANY = nn.Module()
_NORMS = nn.modules.batchnorm
_PYTREE = _module("torch.utils._pytree")
_DISPATCH = _module("torch.utils._python_dispatch")
_FUNCTIONS = _module("torch.nn.parallel._functions")

Named = Callable[[nn.Module], MutableMapping[str, Any]]


def _held(name: str, otherwise: Named) -> Named:
    """Returns what takes a dictionary of a module's, live, or stands in for it.

    A scripted module has no dictionary there.
    """
    if not hasattr(_ANY, name):
        return otherwise

    def held(module: nn.Module) -> MutableMapping[str, Any]:
        found = getattr(module, name)
        return found if isinstance(found, dict) else otherwise(module)

    return held


# The tensors or modules that a module holds by name; assignments change the module.
buffers: Named = _held("_buffers", _Buffers)
parameters: Named = _held("_parameters", _Parameters)
children: Named = _held("_modules", _Children)

# The forward hooks that are on a module, live; none where torch hides them.
forward_hooks: Callable[[nn.Module], MutableMapping[int, Any]] = (
    attrgetter("_forward_hooks") if hasattr(_ANY, "_forward_hooks") else _no_hooks
)
# The same of those that are called before it.
forward_pre_hooks: Callable[[nn.Module], MutableMapping[int, Any]] = (
    attrgetter("_forward_pre_hooks")
    if hasattr(_ANY, "_forward_pre_hooks")
    else _no_hooks
)
# The same of those that see gradients.
backward_hooks: Callable[[nn.Module], MutableMapping[int, Any]] = (
    attrgetter("_backward_hooks") if hasattr(_ANY, "_backward_hooks") else _no_hooks
)


# Applies a function to all tensors of a module, in place.
convert = _apply if hasattr(_ANY, "_apply") else _convert
# Whether a transform of torch.func is active.
transforms: Callable[[], bool] = getattr(
    getattr(torch, "_C", None), "_are_functorch_transforms_active", lambda: False
)
# Methods of Module, of which user code calls one when it converts a module.
CONVERSIONS: tuple[str, ...] = (
    ("_apply",)
    if hasattr(_ANY, "_apply")
    else ("to", "type", "half", "float", "double", "bfloat16", "cpu", "cuda")
)

# Grows when the tensor is written in place, where it is counted at all.
COUNTS_VERSIONS = hasattr(Tensor, "_version")
version: Callable[[Tensor], int] = attrgetter("_version") if COUNTS_VERSIONS else _zero
# The hooks of a tensor; nothing, or None, without hooks.
tensor_hooks: Callable[[Tensor], Any] = (
    attrgetter("_backward_hooks") if hasattr(Tensor, "_backward_hooks") else _none
)


def put_tensor_hooks(tensor: Tensor, hooks: Any) -> None:
    """Sets the hooks of a tensor to those that `tensor_hooks` returned, or to none."""
    tensor._backward_hooks = hooks  # noqa: SLF001


# What DDP finds in an output. A context without __torch_function__ of subclasses.
leaves: Callable[[Any], list[Any]] = getattr(_PYTREE, "tree_leaves", tree.held)
no_torch_function: Callable[[], contextlib.AbstractContextManager[Any]] = getattr(
    getattr(torch, "_C", None), "DisableTorchFunction", contextlib.nullcontext
)

# All batch norms of torch, for isinstance.
BATCH_NORMS: tuple[type[nn.Module], ...] = (
    (_NORMS._BatchNorm,)  # noqa: SLF001
    if hasattr(_NORMS, "_BatchNorm")
    else (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
)

# Where DataParallel's Broadcast is; None where it is not.
data_parallel_functions = _FUNCTIONS if hasattr(_FUNCTIONS, "Broadcast") else None

if TYPE_CHECKING:
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.utils._python_dispatch import TorchDispatchMode

    BatchNorm: TypeAlias = _BatchNorm
    DispatchMode: TypeAlias = TorchDispatchMode
else:
    BatchNorm = getattr(_NORMS, "_BatchNorm", nn.BatchNorm1d)
    DispatchMode = getattr(_DISPATCH, "TorchDispatchMode", _NoMode)

# Whether a DispatchMode sees operations.
DISPATCHES = hasattr(_DISPATCH, "TorchDispatchMode")
