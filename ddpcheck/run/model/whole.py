"""Whole tensors of a model whose parameters are sharded, as `fully_shard` does it.

Its parameters, their gradients and the state of its optimizer are DTensors: a rank
holds a part of each. What is recorded and compared is the whole. To gather it, all
ranks have to call these functions at the same place.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from ddpcheck.run.model import contents

Value = TypeVar("Value", Tensor, Tensor | None)


def is_part(value: Any) -> bool:
    """Returns whether a value is a DTensor."""
    # By name: importing the class takes longer than a check.
    return type(value).__name__ == "DTensor"


def whole(tensor: Tensor) -> Tensor:
    """Returns the whole of a DTensor, any other tensor as it is."""
    if not is_part(tensor):
        return tensor
    part: Any = tensor.detach()
    gathered: Tensor = part.full_tensor()
    return gathered.requires_grad_(tensor.requires_grad)


def wholes(named: Mapping[str, Value]) -> dict[str, Value]:
    """Returns the whole of each tensor."""
    return {name: t if t is None else whole(t) for name, t in named.items()}


def set_whole(part: Any, values: Tensor | None) -> None:
    """Sets a DTensor to the values of a tensor of its whole shape, if it has that."""
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 (see is_part)

    if values is None or values.shape != part.shape:
        return
    values = values.to(part.device, part.dtype)
    mine = distribute_tensor(values, part.device_mesh, part.placements)
    part.detach().to_local().copy_(mine.to_local())


def settle(model: nn.Module) -> None:
    """Makes modules hold their own parts again.

    After a forward without a backward they hold whole copies of their parameters,
    which the next update does not change.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind: Any = getattr(fsdp, "FSDPModule", None)  # torch 2.6
    for module in contents.modules(model) if kind is not None else ():
        if isinstance(module, kind):
            module.reshard()
