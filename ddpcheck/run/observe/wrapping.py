"""What the DDP objects of a run hold, against what is trained: facts, no judgement."""

from __future__ import annotations

import re
import traceback
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.model import contents
from ddpcheck.run.model.averaged import AS_BUILT, is_ddp
from ddpcheck.run.model.names import Names, shortener
from ddpcheck.run.observe.held import Wrapped, accumulator

_WRAPPERS = (DistributedDataParallel, nn.DataParallel)


def broadcast_buffers(model: nn.Module) -> list[str]:
    """Returns the buffers, by stripped name, that a DDP object sends to all ranks."""
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
    """Returns attributes set on a DDP object, where the model inside has its own.

    DDP hands none on: the model goes by what it has had before.
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


def lacking(error: BaseException) -> dict[str, tuple[str, str]]:
    """Returns what user code asked a wrapper for that only the model inside has.

    As the fact "lacks": its name, and "call" for what was to be called, a method or a
    part of the model, "part" for a part that was not, "value" for anything else. Empty
    for another error.
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
    """Returns whether the line that asked for an attribute calls it, by its source."""
    lines = [f.line or "" for f in traceback.extract_tb(error.__traceback__)]
    asked = rf"\.\s*{re.escape(name)}\s*\("
    return any(re.search(asked, line) for line in lines)


def in_use(
    wrapped: list[Wrapped], model: nn.Module, parameters: dict[str, Tensor]
) -> list[Wrapped]:
    """Returns the DDP objects that are meant to train the model.

    Those in its tree; where there are none, those that hold parameters of it: a DDP
    around a part of the model may be kept anywhere.
    """
    alive = {id(m) for m in contents.modules(model)}
    inside = [w for w in wrapped if id(w.module) in alive]
    if inside:
        return inside
    trained = {id(p) for p in parameters.values()}
    return [w for w in wrapped if any(id(p.tensor) in trained for p in w.parameters)]


def frozen(wrapped: list[Wrapped], parameters: dict[str, Tensor]) -> list[str]:
    """Returns the names of parameters that required a gradient when DDP was built."""
    known = {id(h.tensor) for w in wrapped for h in w.parameters if h.required_grad}
    return [n for n, p in parameters.items() if not p.requires_grad and id(p) in known]


def unfrozen(wrapped: list[Wrapped], parameters: dict[str, Tensor]) -> list[str]:
    """Returns the names of parameters that required none when DDP was built, and do."""
    required = {id(h.tensor): h.required_grad for w in wrapped for h in w.parameters}
    return [
        n
        for n, p in parameters.items()
        if p.requires_grad and not required.get(id(p), True)
    ]


def facts(
    wrapped: list[Wrapped], parameters: dict[str, Tensor], names: Names
) -> dict[str, Any]:
    """Returns, by parameter name, how each trained tensor relates to the reducers.

    `outside`: in no DDP object, in nobody's place; `replaced`: in no DDP object, and
    not the tensor that the model was built with; `resized`: of another shape than when
    DDP was built; `converted`: its dtype or its strides (memory format) were others, or
    were others in between, which leaves DDP's hooks on a node that no backward comes
    to; `moved`: its memory was another. And `gone`: the model has it no more, and a
    reducer waits for its gradient.
    """
    held = {id(entry.tensor): entry for w in wrapped for entry in w.parameters}
    kinds = ("outside", "replaced", "resized", "converted", "moved")
    found: dict[str, list[str]] = {key: [] for key in kinds}
    is_whole = names.are_all_in(parameters)
    # Below a DDP object that does not know it: it came later.
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
    return found | {"gone": [names.of(tensor) for tensor in waited]}
