"""What is used of torch that torch does not document, and what is done without it.

No other module takes a private name of torch, but those that look one up as text, at
the end. tests/test_private_apis.py holds the package to it, and says when a torch has
one of them no more.

    _buffers, _modules      named_buffers, named_modules, and assignment
    _parameters             named_parameters; the replicas of DataParallel are then
                            given none, so the fix that needs it proves nothing
    Module._apply           tensors are converted one by one; to, half, cuda, ... are
                            watched instead of what they call
    Tensor._version         0: writing is seen where values change; that weights were
                            written during backward is not told, nor which backward
                            left a gradient as it was
    Tensor._backward_hooks  hooks are seen when they are registered; earlier ones
                            cannot be taken off, so the fix that does proves nothing
    Module._backward_hooks  hooks on modules are not told, and cannot be taken off
    Module._forward_hooks   what a hook keeps of its own rows is not made of all ranks',
                            so the fix that does proves nothing
    Module._forward_pre_hooks  the same, and an input that a hook makes is taken for one
                            that the module is called with
    _BatchNorm              the documented classes; BatchNorm1d as a base
    _pytree                 ddpcheck.compare.tree: it sees more, so that an output hides
                            its tensors from DDP may not be told
    DisableTorchFunction    nothing: torch has left ddpcheck's own mode by then
    _python_dispatch        no way: `--noise sample` is refused; draws of the target's
                            own generators are not told
    parallel._functions     no way: DataParallel needs GPUs, its runs are refused
    _are_functorch_transforms_active  False: where the step uses torch.func, no link can
                            be judged alone
    torch._dynamo           nothing: ddpcheck.run.process.dynamo stands in for it
    torch._compile          torch._dynamo is imported for all ranks

Looked up as text; where a torch lacks one, nothing is done that needs it:

    _attention                                     process/ahead: ranks import it
    _clip_grads_with_norm_                         clipping: it is not noticed
    _comm_hooks                                    fixes: DDP is built anew without them
    _former_parameters, _is_replica                fixes/replicas: as _parameters
    _is_param                                      fixes/replicas: isinstance finds none
    _ddp_params_and_buffers_to_ignore, _set_static_graph, _register_builtin_comm_hook
                                                   virtual/ddp: nothing to refuse
    _allgather_base, _reduce_scatter_base          virtual/group: nothing to refuse
    _orig_mod, _fsdp_wrapped_module                names: nothing to strip
    _engine_run_backward                           rank_table: a frame like any other
    _saved_other                                   addends: a loss that is divided by a
                                                   constant is told as a sum
    _schema                                        draws: dropout inside is not seen;
                                                   given_writes: nothing is given
    _AllReduce                                     mean_sums: torch's own sums stay sums

All is decided once, by the import of this module; a rank pays nothing for it later.
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
        """Yields what there is; what has several names comes by each of them."""
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


# What a module holds by name: live, and written by assignment.
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


# Puts all tensors of a module through a function, in place.
convert = _apply if hasattr(_ANY, "_apply") else _convert
# Whether torch.func transforms what is computed now.
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
# The hooks that are on a tensor; nothing, or None, where there are none.
tensor_hooks: Callable[[Tensor], Any] = (
    attrgetter("_backward_hooks") if hasattr(Tensor, "_backward_hooks") else _none
)


def put_tensor_hooks(tensor: Tensor, hooks: Any) -> None:
    """Puts the hooks on a tensor that `tensor_hooks` found, or none at all."""
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
