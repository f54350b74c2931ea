"""Interventions that build DDP again: other settings, another module inside.

COMM_HOOKS_ON_MEANS: a communication hook gets the mean of the ranks' gradients. What it
does to gradients before it averages them is then done to the mean, and averaging equal
gradients changes nothing.

CALLS_THROUGH_DDP: attributes that DDP lacks are looked up in the model inside. Methods
are called through DDP's forward, so the reducer is prepared and the gradients of the
method are reduced.

PLAIN_OUTPUT: DDP gets the tensors of the model's output in a plain tuple.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.compare import tree
from ddpcheck.run.intervention import Interventions, Switch
from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import IS_HELD, become, is_ddp

# The settings with which a DDP object is built again.
_SETTINGS: dict[Switch, dict[str, Any]] = {
    Switch.FIND_UNUSED: {"find_unused_parameters": True},
    Switch.STATIC_GRAPH_OFF: {"static_graph": False},
    Switch.STATIC_GRAPH_ON: {"static_graph": True},
    Switch.BUFFER_BROADCAST_OFF: {"broadcast_buffers": False},
    Switch.BUFFER_BROADCAST_ON: {"broadcast_buffers": True},
    Switch.BUCKET_VIEW_OFF: {"gradient_as_bucket_view": False},
    Switch.REWRAP_TRAINABLE: {"find_unused_parameters": True},
    Switch.NO_COMM_HOOKS: {"hooks": ()},
}


def rewrapped(model: nn.Module, fixes: Interventions) -> nn.Module:
    """Returns the model with its DDP objects rebuilt as the interventions require."""
    settings: dict[str, Any] = {}
    for switch, setting in _SETTINGS.items():
        if switch in fixes:
            settings |= setting
    if Switch.EXACT_COLLECTIVES in fixes:
        settings["process_group"] = dist.new_group(backend="gloo")
    if Switch.COMM_HOOKS_ON_MEANS in fixes:
        model = contents.replace(
            model, is_ddp, lambda ddp: _in_its_place(ddp, _rebuilt(ddp, hooks_of(ddp)))
        )
    if settings or Switch.REWRAP in fixes:
        trainable = Switch.REWRAP_TRAINABLE in fixes
        with _all_trainable(model) if trainable else contextlib.nullcontext():
            model = contents.replace(
                model,
                is_ddp,
                lambda ddp: _in_its_place(ddp, _rebuilt(ddp, **settings)),
            )
    if Switch.PLAIN_OUTPUT in fixes:
        model = contents.replace(
            model, is_ddp, lambda ddp: _in_its_place(ddp, with_plain_output(ddp))
        )
    if Switch.CALLS_THROUGH_DDP in fixes:
        model = with_inner_attributes(model)
    return model


def _in_its_place(ddp: DistributedDataParallel, made: nn.Module) -> nn.Module:
    """Returns what is made of a DDP object; a script, which has the object, gets it."""
    if IS_HELD not in vars(ddp):
        return made
    vars(made)[IS_HELD] = True
    become(ddp, made)
    return ddp


@contextlib.contextmanager
def _all_trainable(model: nn.Module) -> Iterator[None]:
    before = [(p, p.requires_grad) for p in contents.parameters(model)]
    for parameter, _ in before:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


def _rebuilt(
    ddp: DistributedDataParallel, hooks: Sequence[Any] | None = None, **changes: Any
) -> DistributedDataParallel:
    """Returns a new DDP around the same module, with `changes` to its settings.

    `hooks` are (hook, state) pairs, by default those that were registered.
    """
    has_none = hooks is not None and not hooks
    if hooks is None:
        hooks = getattr(ddp, "_comm_hooks", ())
    settings: dict[str, Any] = {
        "find_unused_parameters": ddp.find_unused_parameters,
        "static_graph": ddp.static_graph,
        "broadcast_buffers": ddp.broadcast_buffers,
        "gradient_as_bucket_view": ddp.gradient_as_bucket_view,
        "process_group": ddp.process_group,
        **changes,
    }
    if settings["static_graph"] and "find_unused_parameters" in changes:
        settings["static_graph"] = False
    made = DistributedDataParallel(ddp.module, **settings)
    for hook, state in hooks:
        made.register_comm_hook(state, hook)
    if has_none:
        # A script registers its hook later, when this object has been built.
        made.register_comm_hook = _nothing  # type: ignore[method-assign]
    return made


def _nothing(state: Any, hook: Any) -> None:
    """Registers no hook."""


_FORWARD = "forward"


def with_inner_attributes(model: nn.Module) -> nn.Module:
    """Returns the model; its DDP objects have the attributes of the modules inside."""
    return contents.replace(model, _is_wrapper, _extended)


def _is_wrapper(module: nn.Module) -> bool:
    return isinstance(module, DistributedDataParallel)  # or what stands for one


def _extended(wrapper: Any) -> nn.Module:
    # By the slot of `object`: a stand-in answers for its class itself.
    object.__dict__["__class__"].__set__(wrapper, _kind(type(wrapper)))
    extended: nn.Module = wrapper
    return extended


def _kind(kind: type[Any]) -> type[Any]:
    """Returns a subclass that looks up missing attributes in the module inside."""

    def find(self: Any, name: str) -> Any:
        try:
            return kind.__getattr__(self, name)
        except AttributeError:
            inner = vars(self)["_modules"].get("module")
            if inner is None or name.startswith("__") or not hasattr(inner, name):
                raise
        return _called_through_wrapper(self, inner, getattr(inner, name))

    return type(kind.__name__, (kind,), {"__getattr__": find})


def _called_through_wrapper(wrapper: nn.Module, inner: nn.Module, found: Any) -> Any:
    """Returns an attribute of the model; its calls go through the wrapper."""
    if isinstance(found, nn.Module):
        return _Part(wrapper, inner, found)
    if not callable(found) or isinstance(found, type):
        return found
    return functools.wraps(found)(functools.partial(_called, wrapper, inner, found))


def _called(
    wrapper: nn.Module,
    inner: nn.Module,
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    held = vars(inner)
    before = held.get(_FORWARD)

    def put_back() -> None:
        if before is None:
            held.pop(_FORWARD, None)
        else:
            held[_FORWARD] = before

    def once(*args: Any, **kwargs: Any) -> Any:
        put_back()  # the function may call the model itself
        return function(*args, **kwargs)

    held[_FORWARD] = once
    try:
        return wrapper(*args, **kwargs)
    finally:
        put_back()


class _Part:
    """A part of the model, as the wrapper's user sees it: calls go through both."""

    def __init__(self, wrapper: nn.Module, inner: nn.Module, part: nn.Module) -> None:
        self._given = wrapper, inner, part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the part within the wrapper's forward."""
        return _called(*self._given, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Returns the part's own attribute."""
        return getattr(self._given[2], name)


class _Flat(nn.Module):
    """Returns the tensors of the module's output as a tuple; stores the output."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.shape: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        self.shape = self.module(*args, **kwargs)
        held = tree.held(_contents(self.shape))
        return tuple(held or _hidden_tensors(self.shape, {}))


class _Unflat(nn.Module):
    """Rebuilds the module's own output from the tuple that passed through DDP."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        super().__init__()
        self.module = ddp
        self.no_sync = ddp.no_sync  # what accumulates gradients asks for it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        flat = iter(self.module(*args, **kwargs))
        output = self.module.module.shape
        if not any(tree.tensors(_contents(output))):
            return output
        filled = tree.replace(_contents(output), lambda *_: next(flat))
        if _contents(output) is output:
            return filled
        clone = copy.copy(output)
        vars(clone).update(filled)
        return clone


def _hidden_tensors(value: Any, seen: dict[int, Any]) -> Iterator[Tensor]:
    """Yields the tensors with gradient inside objects of any class."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, Tensor):
        if value.requires_grad:
            yield value
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif not isinstance(value, nn.Module | type):
        inner = getattr(value, "__dict__", {}).values()
    for child in list(inner):
        yield from _hidden_tensors(child, seen)


def _contents(output: Any) -> Any:
    """Returns the attributes of an object of a user-defined class."""
    is_opaque = hasattr(output, "__dict__") and any(tree.opaque(output))
    is_outer = not isinstance(output, Mapping | list | tuple)
    return vars(output) if is_opaque and is_outer else output


def with_plain_output(ddp: DistributedDataParallel) -> nn.Module:
    """Returns the wrapper built again so that DDP finds the output's tensors."""
    settings = {
        "find_unused_parameters": ddp.find_unused_parameters,
        "static_graph": ddp.static_graph,
        "broadcast_buffers": ddp.broadcast_buffers,
    }
    return _Unflat(DistributedDataParallel(_Flat(ddp.module), **settings))


def hooks_of(ddp: DistributedDataParallel) -> list[tuple[Any, Any]]:
    """Returns the (hook, state) pairs of a DDP object, for one that is built again."""
    known, group = getattr(ddp, "_comm_hooks", ()), ddp.process_group
    return [(_on_means(hook, group), state) for hook, state in known]


def _on_means(hook: Any, group: Any) -> Any:
    @functools.wraps(hook)
    def call(state: Any, bucket: dist.GradBucket) -> Any:
        buffer = bucket.buffer()
        dist.all_reduce(buffer, group=group)
        buffer /= dist.get_world_size(group)
        return hook(state, bucket)

    return call
