"""Whether the loss at one sample depends on other samples, output by output.

The second half of the samples is changed; what moves is the loss's gradient at the
outputs of the first half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ddpcheck import tree
from ddpcheck.diagnose.probes.evidence import Couplings

Grads = dict[tuple[int, str], Tensor | None]  # by (micro-batch, key)
Perturb = Callable[[str, Tensor], Tensor]
# (perturb, batch) -> gradients at the cut outputs
Pass = Callable[[Perturb, Any], Grads]

_NUDGE = 0.05  # of an output's own spread
_LITTLE = 1e-4  # of a nudge


def measure(
    run: Pass, grads: Grads, dim: Callable[[str, Tensor], int], batch: Any
) -> Couplings:
    """Returns the couplings of a loss.

    Args:
        run: one pass on the first pass's values, perturbed, and a batch.
        grads: of the first pass.
        dim: the dimension of a key's tensor that is the sample.
        batch: the global batch.
    """

    def moved(perturb: Perturb, changed: Any) -> dict[str, Tensor] | None:
        try:
            found = run(perturb, changed)
        except Exception:  # noqa: BLE001 (a loss may refuse perturbed outputs)
            return None
        return _differences(grads, found, dim)

    tops = _tops(grads)

    def relative(differences: dict[str, Tensor] | None) -> dict[str, float]:
        return {
            key: float(d.abs().max()) / tops[key]
            for key, d in (differences or {}).items()
            if d.numel() and tops.get(key) and bool(d.isfinite().all())
        }

    def nudge(key: str, value: Tensor) -> Tensor:
        return _nudged(key, value, dim(key, value), _NUDGE)

    def hardly(key: str, value: Tensor) -> Tensor:
        return _nudged(key, value, dim(key, value), _NUDGE * _LITTLE)

    def copy(key: str, value: Tensor) -> Tensor:
        return _copied(value, dim(key, value))

    def turn(key: str, value: Tensor) -> Tensor:
        return _turned(value, dim(key, value))

    def keep(_: str, value: Tensor) -> Tensor:
        return value

    targets: dict[str, float] = {}
    if all(number == 0 for number, _ in grads):  # halves of micro-batches are others
        size = max(len(t) for _, t in tree.tensors(batch) if t.dim())
        shifted = moved(keep, tree.replace(batch, lambda _, t: _shifted(t, size)))
        scaled = moved(keep, tree.replace(batch, lambda _, t: _scaled(t, size)))
        targets = _apart(shifted or {}, scaled or {}, tops)
    return Couplings(
        nudged=relative(moved(nudge, batch)),
        slope={k: v / _LITTLE for k, v in relative(moved(hardly, batch)).items()},
        copied=_larger(relative(moved(copy, batch)), relative(moved(turn, batch))),
        targets=targets,
    )


def _tops(grads: Grads) -> dict[str, float]:
    tops: dict[str, float] = {}
    for (_, key), grad in grads.items():
        if grad is not None and grad.numel():
            tops[key] = max(tops.get(key, 0.0), float(grad.abs().max()))
    return tops


def _differences(
    grads: Grads, found: Grads, dim: Callable[[str, Tensor], int]
) -> dict[str, Tensor]:
    """Returns the change of the gradient at the first half of the samples, flat."""
    parts: dict[str, list[Tensor]] = {}
    for place, grad in grads.items():
        other = found.get(place)
        if grad is None or other is None:
            continue
        at = dim(place[1], grad)
        half = grad.shape[at] // 2
        change = other.narrow(at, 0, half) - grad.narrow(at, 0, half)
        parts.setdefault(place[1], []).append(change.reshape(-1))
    return {key: torch.cat(changes) for key, changes in parts.items()}


def _nudged(key: str, value: Tensor, at: int, size: float) -> Tensor:
    """Adds noise to the second half of the samples."""
    half = value.shape[at] // 2
    generator = torch.Generator().manual_seed(len(key))
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    noise.narrow(at, 0, half).zero_()
    spread = value.double().std() if value.numel() > 1 else value.double().abs().sum()
    return value + (noise * spread * size).to(value.dtype)


def _copied(value: Tensor, at: int) -> Tensor:
    """Makes the second half of the samples copies of the first sample.

    Values stay in their range, and whatever counts or sorts them changes.
    """
    half = value.shape[at] // 2
    new = value.clone()
    new.narrow(at, half, value.shape[at] - half).copy_(value.narrow(at, 0, 1))
    return new


def _turned(value: Tensor, at: int) -> Tensor:
    """Moves the second half's entries on by one: another class is the largest."""
    half = value.shape[at] // 2
    if value.dim() < 2 or at == value.dim() - 1:  # noqa: PLR2004
        return value
    first, second = (
        value.narrow(at, 0, half),
        value.narrow(at, half, value.shape[at] - half),
    )
    return torch.cat([first, second.roll(1, -1)], at)


def _larger(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {
        key: max(first.get(key, 0.0), second.get(key, 0.0))
        for key in {**first, **second}
    }


def _shifted(leaf: Tensor, size: int) -> Tensor:
    # Not by a shift alone, which leaves the spread of values as it is.
    return _second_half(leaf, size, lambda t: 0.8 * t + 1)


def _scaled(leaf: Tensor, size: int) -> Tensor:
    return _second_half(leaf, size, lambda t: t * 1.5)


def _second_half(leaf: Tensor, size: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Changes the real numbers among the targets; masks and classes stay."""
    if not leaf.is_floating_point() or leaf.dim() == 0 or len(leaf) != size:
        return leaf
    half = size // 2
    return torch.cat([leaf[:half], change(leaf[half:])])


def _apart(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], tops: dict[str, float]
) -> dict[str, float]:
    """Returns what two changes have in no common direction, by key."""
    found = {}
    for key in set(first) & set(second):
        a, b = first[key].double(), second[key].double()
        square = float(torch.dot(b, b))
        along = b * (float(torch.dot(a, b)) / square) if square else torch.zeros_like(b)
        left = a - along
        if not left.numel() or not tops.get(key):
            continue
        # A change that the other has not at all says nothing of its direction.
        found[key] = float(left.abs().max()) / tops[key] if square else 0.0
    return found
