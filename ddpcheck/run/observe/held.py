"""What a DDP object holds of the model that it was built around."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.model import contents

# Names that DDP is told to leave out, on the module that it wraps.
_IGNORED = "_ddp_params_and_buffers_to_ignore"


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter as it was when DDP took it."""

    tensor: torch.Tensor  # kept: ids are reused
    required_grad: bool
    dtype: torch.dtype
    strides: tuple[int, ...]
    address: int = 0  # of its first element; 0: not known
    accumulator: Any = None  # the node that DDP's hooks are on; None: not known
    shape: torch.Size | None = None  # None: not known


def accumulator(parameter: torch.Tensor) -> Any:
    """Returns the node that adds to the parameter's gradient, None without gradient.

    A conversion of dtype or device leaves the parameter with another one.
    """
    if not parameter.requires_grad:
        return None
    return torch.autograd.graph.get_gradient_edge(parameter).node


@dataclass(slots=True)
class Wrapped:
    """What one DDP object saw when it was built."""

    module: DistributedDataParallel
    parameters: list[Held]
    forwards: int = 0


def parameters(module: nn.Module) -> list[Held]:
    """Returns the parameters of a module that DDP takes, as they are."""
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
