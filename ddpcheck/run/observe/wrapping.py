"""The parameters that the DDP objects of a run hold, compared with those trained."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.facts import RankFacts
from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import AS_BUILT, is_ddp
from ddpcheck.run.model.names import Names, shortener

# Attribute of the wrapped module with names that DDP ignores.
_IGNORED = "_ddp_params_and_buffers_to_ignore"


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter as it was when DDP was built."""

    tensor: torch.Tensor  # a reference, as ids are reused
    required_grad: bool
    dtype: torch.dtype
    strides: tuple[int, ...]
    address: int = 0  # of its first element; 0: not known
    accumulator: Any = None  # the node that DDP's hooks are on; None: not known
    shape: torch.Size | None = None  # None: not known


def accumulator(parameter: torch.Tensor) -> Any:
    """Returns the node that accumulates the gradient, None if it requires none.

    A conversion of dtype or device gives the parameter another node.
    """
    if not parameter.requires_grad:
        return None
    return torch.autograd.graph.get_gradient_edge(parameter).node


@dataclass(slots=True)
class Wrapped:
    """One DDP object, and the parameters of the model when it was built."""

    module: DistributedDataParallel
    parameters: list[Held]
    forwards: int = 0


def held_parameters(module: nn.Module) -> list[Held]:
    """Returns the current parameters of a module that DDP would reduce."""
    ignored = getattr(module, _IGNORED, ())
    return [
        Held(
            p,
            p.requires_grad,
            p.dtype,
            p.stride(),
            p.data_ptr(),
            accumulator(p),
            p.shape,
        )
        if _is_dense(p)
        else Held(p, p.requires_grad, p.dtype, ())
        for name, p in contents.named_parameters(module)
        if name not in ignored
    ]


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not torch.nn.parameter.is_lazy(tensor)


_WRAPPERS = (DistributedDataParallel, nn.DataParallel)


def broadcast_buffers(model: nn.Module) -> list[str]:
    """Returns the names of the buffers that a DDP object broadcasts."""
    inside = {
        id(buffer)
        for module in contents.modules(model)
        if is_ddp(module) and module.broadcast_buffers
        for buffer in contents.buffers(module)
    }
    short = shortener(model)
    return [
        short(n) for n, buffer in contents.named_buffers(model) if id(buffer) in inside
    ]


def set_on_wrappers(wrapped: list[Wrapped]) -> list[str]:
    """Returns attributes set on a DDP object that the wrapped model has too.

    DDP does not forward them: the model still uses its old value.
    """
    return sorted(
        {
            name
            for ddp in (w.module for w in wrapped)
            for name in vars(ddp).keys() - vars(ddp).get(AS_BUILT, vars(ddp).keys())
            if not name.startswith("_")
            and name in vars(ddp.module)
            and vars(ddp)[name] is not vars(ddp.module)[name]
        }
    )


def lacking(error: BaseException) -> RankFacts:
    """Returns the attribute that a wrapper lacks and only the wrapped model has.

    As the fact "lacks": its name, and "call" for a method or submodule that was to be
    called, "part" for a submodule that was not, "value" for anything else. Empty for
    other errors.
    """
    name, wrapper = getattr(error, "name", None), getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or not isinstance(wrapper, _WRAPPERS):
        return {}
    inner: Any = wrapper.module
    if not name or not hasattr(inner, name):
        return {}
    found = getattr(inner, name)
    if isinstance(found, nn.Module):
        return {"lacks": (name, "call" if _calls(error, name) else "part")}
    return {"lacks": (name, "call" if callable(found) else "value")}


def _calls(error: BaseException, name: str) -> bool:
    """Returns whether the source line that reads the attribute calls it."""
    lines = [f.line or "" for f in traceback.extract_tb(error.__traceback__)]
    called = rf"\.\s*{re.escape(name)}\s*\("
    return any(re.search(called, line) for line in lines)


def in_use(
    wrapped: list[Wrapped], model: nn.Module, parameters: dict[str, Tensor]
) -> list[Wrapped]:
    """Returns the DDP objects that train the model.

    Those in its module tree; if there are none, those that hold parameters of it: a DDP
    object around a part of the model may be stored anywhere.
    """
    alive = {id(m) for m in contents.modules(model)}
    inside = [w for w in wrapped if id(w.module) in alive]
    if inside:
        return inside
    trained = {id(p) for p in parameters.values()}
    return [w for w in wrapped if any(id(p.tensor) in trained for p in w.parameters)]


def part_of_ranks(wrapped: Wrapped) -> tuple[int, ...] | None:
    """Returns the ranks over which a DDP object reduces, None if these are all.

    None as well for a group of the target's own, which torch.distributed does not know.
    """
    group = getattr(wrapped.module, "process_group", None)
    if not isinstance(group, dist.ProcessGroup):
        return None
    try:
        ranks = tuple(dist.get_process_group_ranks(group))
    except (KeyError, RuntimeError, ValueError):
        return None
    return None if len(ranks) == dist.get_world_size() else ranks


def frozen(wrapped: list[Wrapped], parameters: dict[str, Tensor]) -> list[str]:
    """Returns the names of parameters that required a gradient when DDP was built."""
    known = {id(h.tensor) for w in wrapped for h in w.parameters if h.required_grad}
    return [n for n, p in parameters.items() if not p.requires_grad and id(p) in known]


def unfrozen(wrapped: list[Wrapped], parameters: dict[str, Tensor]) -> list[str]:
    """Returns the names of parameters that require a gradient only since then."""
    required = {id(h.tensor): h.required_grad for w in wrapped for h in w.parameters}
    return [
        n
        for n, p in parameters.items()
        if p.requires_grad and not required.get(id(p), True)
    ]


def facts(
    wrapped: list[Wrapped], parameters: dict[str, Tensor], names: Names
) -> RankFacts:
    """Returns, by parameter name, how each trained tensor relates to the reducers.

    `outside`: in no DDP object, and not a replacement; `replaced`: in no DDP object,
    and not the tensor that the model was built with; `resized`: its shape has changed
    since DDP was built; `converted`: its dtype or strides (memory format) have changed,
    or changed in between, which leaves DDP's hooks on a node that backward does not
    reach; `moved`: its memory has changed. And `gone`: the model does not hold it any
    more, and a reducer waits for its gradient.
    """
    held = {id(entry.tensor): entry for w in wrapped for entry in w.parameters}
    found: RankFacts = {
        "outside": [],
        "replaced": [],
        "resized": [],
        "converted": [],
        "moved": [],
    }
    is_whole = names.are_all_in(parameters)
    # Inside a DDP object that does not hold it: added later.
    below = {id(p) for w in wrapped for p in contents.parameters(w.module)}
    for name, parameter in parameters.items():
        entry = held.get(id(parameter))
        if entry is None:
            if parameter.requires_grad:
                stayed = is_whole and id(parameter) not in below
                known = names.is_original(parameter) or stayed
                found["outside" if known else "replaced"].append(name)
            continue
        if entry.shape is not None and entry.shape != parameter.shape:
            found["resized"].append(name)
        node = entry.accumulator
        is_left = node is not None and accumulator(parameter) not in (None, node)
        turned = bool(entry.strides) and entry.strides != parameter.stride()
        if entry.dtype != parameter.dtype or turned or is_left:
            found["converted"].append(name)
        if entry.address and entry.address != parameter.data_ptr():
            found["moved"].append(name)
    there = set(map(id, parameters.values()))
    waited = [
        h.tensor for key, h in held.items() if h.required_grad and key not in there
    ]
    found["gone"] = [names.of(tensor) for tensor in waited]
    return found
