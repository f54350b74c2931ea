"""What the tests of ddpcheck.run do on real ranks; called by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.ranks.worker import Context
from ddpcheck.run.batch_norm import SynchronizedBatchNorm

STEPS = 2
CHANNELS = 3


def data(shape: tuple[int, ...], step: int) -> tuple[Tensor, Tensor]:
    """Returns inputs of a drifting mean, and what multiplies the outputs."""
    generator = torch.Generator().manual_seed(17 + step)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    inputs += torch.linspace(-2, 3, shape[0], dtype=torch.float64).reshape(
        -1, *[1] * (len(shape) - 1)
    )
    factors = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs, factors


def dressed(norm: nn.Module, *, affine: bool) -> Any:
    """Returns the norm in float64, with weights other than one and zero."""
    norm = norm.double()
    if affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, -1.5, 2.0]))  # type: ignore[operator]
            norm.bias.copy_(torch.tensor([0.1, 0.2, -0.3]))  # type: ignore[operator]
    return norm


def trained(
    norm: Any, shape: tuple[int, ...], rows: tuple[int, int], *, affine: bool
) -> dict[str, Any]:
    """Returns outputs, gradients and statistics after STEPS steps on these rows."""
    told: dict[str, Any] = {"outputs": [], "input grads": []}
    for step in range(STEPS):
        inputs, factors = (t.narrow(0, *rows) for t in data(shape, step))
        inputs = inputs.clone().requires_grad_()
        outputs = norm(inputs)
        (outputs * factors).sum().backward()
        assert inputs.grad is not None
        told["outputs"].append(outputs.tolist())
        told["input grads"].append(inputs.grad.tolist())
    if affine:
        told["weight grad"] = norm.weight.grad.tolist()
        told["bias grad"] = norm.bias.grad.tolist()
    told["buffers"] = [b.tolist() for b in norm.buffers()]
    return told


def synchronized(
    context: Context,
    *,
    shape: tuple[int, ...],
    sizes: list[int],
    affine: bool,
    momentum: float | None,
) -> dict[str, Any]:
    """Trains a SynchronizedBatchNorm on this rank's rows."""
    rank = context.seat.rank
    norm = SynchronizedBatchNorm(CHANNELS, affine=affine, momentum=momentum)
    rows = sum(sizes[:rank]), sizes[rank]
    return trained(dressed(norm, affine=affine), shape, rows, affine=affine)


def evaluated(context: Context) -> bool:
    """Returns whether eval mode uses running statistics and no collective."""
    norm = dressed(SynchronizedBatchNorm(CHANNELS), affine=True).eval()
    plain = dressed(nn.BatchNorm1d(CHANNELS), affine=True).eval()
    inputs, _ = data((4 + context.seat.rank, CHANNELS), 0)
    if context.seat.rank:  # a collective would now wait for ever
        return True
    return torch.equal(norm(inputs), plain(inputs))
