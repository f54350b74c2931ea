"""What a module is like, from its own forward: what it keeps, what it normalises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck import tree
from ddpcheck.diagnose.probes.teacher import distance, tensors_of
from ddpcheck.run import private

_INVARIANT = 0.05  # the norm's epsilon beside a small variance
_NUDGE = 1e-3  # of each element
_SOME = 0.1  # of the elements: a rectifier may follow, which keeps half of them at 0


def versions(module: nn.Module) -> tuple[list[tuple[int, float]], list[float]]:
    """Returns what changes when the module's own buffers and parameters are written."""
    return (
        # Both: a buffer may be written over with the same, or be another tensor.
        [(private.version(b), _sum(b)) for b in module.buffers(recurse=False)],
        # Not versions: writing to `.data` does not count.
        [_sum(p) for p in module.parameters(recurse=False)],
    )


def _sum(tensor: Tensor) -> float:
    value = tensor.detach()
    if not value.is_complex():
        value = value.double()  # booleans have no size
    return float(value.abs().double().nan_to_num().sum())


def is_scale_invariant(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether twice the input gives the same output: it normalises.

    Up to the epsilon of the norm. Where outputs have the shape of an input, these are
    judged: a flow's norm returns the log-determinant beside. A scalar is no output of a
    norm: losses of directions do not change with scale, either. Buffers are put back.
    """
    pairs = _changed(module, args, kwargs, lambda t: t * 2)
    return bool(pairs) and all(
        a.shape == b.shape and distance(b, a) < _INVARIANT for a, b in pairs
    )


def follows_input(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether the output moves with every element of the input.

    What is looked up by the input, a nearest neighbour or a code, stays what it was.
    """
    noise = torch.Generator().manual_seed(0)

    def nudged(t: Tensor) -> Tensor:
        factor = torch.randn(t.shape, generator=noise, dtype=torch.float64)
        return t * (1 + _NUDGE * factor.to(t.device, t.dtype))

    pairs = _changed(module, args, kwargs, nudged)
    return any(
        a.shape == b.shape and float((a != b).double().mean()) > _SOME for a, b in pairs
    )


def _changed(
    module: nn.Module, args: Any, kwargs: Any, change: Callable[[Tensor], Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Returns outputs on the inputs, and on changed ones; [] where that is not known.

    Those that have the shape of an input, where there are any. Buffers are put back.
    """
    inputs = [t for _, t in tree.tensors((args, kwargs)) if t.is_floating_point()]
    if not any(bool(t.any()) for t in inputs):
        return []  # what changes a number does not change a zero
    others = tree.replace(
        (args, kwargs), lambda _, t: change(t) if t.is_floating_point() else t
    )
    with _as_before(module):
        try:
            with torch.no_grad():
                once = tensors_of(module.forward(*args, **kwargs))
                then = tensors_of(module.forward(*others[0], **others[1]))
        except Exception:  # noqa: BLE001 (a module may refuse changed inputs)
            return []
    shapes = {t.shape for _, t in tree.tensors((args, kwargs))}
    pairs = [(a, b) for (_, a), (_, b) in zip(once, then, strict=False) if a.dim()]
    return [(a, b) for a, b in pairs if a.shape in shapes] or pairs


def has_slope_across(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Returns whether the gradient at the input is at right angles to the input.

    So it is where the input's scale is not in the output (Euler's theorem), also where
    running statistics, taken as constants, bring a scale back. One input is judged by
    one output of its shape, and the gradient there is that output at random positive
    weights: what grows with the input is far from right angles then, however many
    elements there are. Buffers are put back.
    """
    inputs: list[Tensor] = []

    def leaf(_: str, t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        inputs.append(t.detach().clone().requires_grad_())
        return inputs[-1]

    args, kwargs = tree.replace((args, kwargs), leaf)
    if len(inputs) != 1:
        return False
    (x,) = inputs
    with _as_before(module), torch.enable_grad():
        torch.manual_seed(0)
        weights = 0.5 + torch.rand_like(x)
        try:
            outputs = [t for _, t in tensors_of(module.forward(*args, **kwargs))]
            (y,) = (t for t in outputs if t.shape == x.shape)
            (slope,) = torch.autograd.grad(y, x, weights * y.detach())
        except Exception:  # noqa: BLE001 (two outputs of that shape, or one without graph)
            return False
    x, size = x.detach(), float(slope.norm() * x.detach().norm())
    return size > 0 and abs(float((slope * x).sum())) < _INVARIANT * size


@contextlib.contextmanager
def _as_before(module: nn.Module) -> Iterator[None]:
    """Puts buffers and random state back."""
    buffers = {n: b.clone() for n, b in module.named_buffers()}
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])


def evaluated(
    module: nn.Module, args: Any, kwargs: Any, buffers: dict[str, Tensor | None]
) -> list[tuple[str, Tensor]] | None:
    """Returns the outputs in evaluation with other buffers, which are put back.

    None for a module with parts, and where a buffer is None or forward raises.
    """
    if any(module.children()) or any(b is None for b in buffers.values()):
        return None
    own = dict(module.named_buffers(recurse=False))
    before = {n: b.clone() for n, b in own.items()}
    training = module.training
    try:
        with torch.no_grad():
            for n, b in own.items():
                b.copy_(buffers[n])  # type: ignore[arg-type]
            return tensors_of(module.eval().forward(*args, **kwargs))
    except Exception:  # noqa: BLE001 (a forward that is for training alone)
        return None
    finally:
        module.train(training)
        with torch.no_grad():
            for n, b in own.items():
                b.copy_(before[n])
