"""Whether the loss at one sample depends on which samples stand beside it.

Blocks of half a shard change places, outputs and targets alike. A sum over samples has
the same gradients at the same samples then, whatever it is divided by; samples that
belong together (pairs, the candidates of a query) stay together in a block. Where a
sample has its neighbour's target, or is compared with the sample before it, the samples
at the blocks' borders have other gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddpcheck.diagnose.probes.coupling import Grads, Pass, Places, largest_gradients
from ddpcheck.run.observe import countables
from ddpcheck.run.process import isolation

_BLOCKS = 2  # in a shard


def measure(
    run: Pass, grads: Grads, places: Places, batch: Any, world_size: int, seed: int
) -> dict[str, float]:
    """Returns the largest change by key, relative to the largest gradient.

    Empty where it cannot be told: of shards that have no halves, and where random
    numbers are drawn, which follow the place and not the sample.

    Args:
        run: one pass on the first pass's values, perturbed, and a batch.
        grads: of the first pass.
        places: where the samples of a key's tensor are.
        batch: the global batch.
        world_size: number of shards.
        seed: of every pass.
    """
    samples, blocks = countables.samples(batch), _BLOCKS * world_size
    if world_size == 1 or samples % blocks:
        return {}

    def reordered(value: Tensor, at: int, times: int) -> Tensor:
        size = value.shape[at] // times  # of one view of all samples
        return value.index_select(at, _order(size, times, blocks))

    def perturb(key: str, value: Tensor) -> Tensor:
        return reordered(value, *places(key, value))

    other = countables.part(batch, samples, _order(samples, 1, blocks))
    try:
        found = run(perturb, other)
    except Exception:  # noqa: BLE001 (a loss may refuse another order)
        return {}
    return {} if _draws(seed) else _changes(grads, found, perturb)


def _order(size: int, times: int, blocks: int) -> Tensor:
    """Returns the rows in their new order: every other block before its neighbour.

    Not the first block, nor the last: shards that change places are no other order to
    what goes round, the neighbour of the last sample being the first.
    """
    parts = list(torch.arange(size).tensor_split(blocks))
    for i in range(1, blocks - 1, 2):
        parts[i], parts[i + 1] = parts[i + 1], parts[i]
    once = torch.cat(parts)
    return torch.cat([once + i * size for i in range(times)])


def _draws(seed: int) -> bool:
    """Returns whether the pass that has just ended drew random numbers."""
    state = torch.get_rng_state()
    isolation.seed_everything(seed)
    return not torch.equal(state, torch.get_rng_state())


def _changes(grads: Grads, found: Grads, perturb: Any) -> dict[str, float]:
    tops, worst = largest_gradients(grads), dict[str, float]()
    for (number, key), grad in grads.items():
        other = found.get((number, key))
        if grad is None or other is None or not tops.get(key):
            continue
        change = float((other - perturb(key, grad)).abs().max()) / tops[key]
        if change == change:  # noqa: PLR0124 (no NaN)
            worst[key] = max(worst.get(key, 0.0), change)
    return worst
