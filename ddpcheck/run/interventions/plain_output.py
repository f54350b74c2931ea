"""An output's tensors in a plain tuple, which DDP can look into."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.compare import tree


class _Flat(nn.Module):
    """Returns the tensors of the module's output as a tuple; keeps the rest aside."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.shape: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        self.shape = self.module(*args, **kwargs)
        held = tree.held(_contents(self.shape))
        return tuple(held or _hidden_tensors(self.shape, {}))


class _Unflat(nn.Module):
    """Puts the tuple that went through DDP back into the module's own output."""

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
    """Returns the attributes of an object of a class of the user's own."""
    is_opaque = hasattr(output, "__dict__") and any(tree.opaque(output))
    is_outer = not isinstance(output, Mapping | list | tuple)
    return vars(output) if is_opaque and is_outer else output


def with_plain_output(ddp: DistributedDataParallel) -> nn.Module:
    """Returns the wrapper built anew so that DDP sees the output's tensors."""
    settings = {
        "find_unused_parameters": ddp.find_unused_parameters,
        "static_graph": ddp.static_graph,
        "broadcast_buffers": ddp.broadcast_buffers,
    }
    return _Unflat(DistributedDataParallel(_Flat(ddp.module), **settings))
