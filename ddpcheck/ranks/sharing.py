"""Data that no loader gives: what a script passes to `ddpcheck.global_batch`.

Scripts import it in any process: no torch here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Batch = TypeVar("Batch")

_take: Callable[[Any], Any] | None = None
_process = 0  # that takes; its forks, as workers of loaders, do not


def global_batch(batch: Batch) -> Batch:
    """Returns what this process trains on, of a batch that no DataLoader gives.

    `ddpcheck run` sees what DataLoaders yield. A script that draws its batches in
    another way, for example from an array by random numbers, passes each batch of its
    training through this function:

        x, y = ddpcheck.global_batch(draw(batch_size))  # (batch_size, ...) each

    Outside of a check the argument is returned unchanged, at no cost. In a check:

    - the ranks run first. What each passes is recorded: W ranks with a batch of
      (n, ...) each make a global batch of (W * n, ...), in the order of the ranks;
    - the single process is then given this global batch in place of its own argument,
      (W * n, ...), or its parts one after the other where it accumulates gradients over
      W times as many batches as a rank; and each rank its (n, ...) of it.

    So the single process trains on what the ranks trained on, whatever their random
    numbers were. Pass what this rank trains on, before the model is called; not a
    global batch that is cut into parts afterwards. While gradients are disabled, as in
    an evaluation, the argument is returned unchanged.

    Args:
        batch: a tensor, or tensors in tuples, lists, dicts or dataclasses. Dimension 0
            of each is the sample. What is not a tensor must be equal on all ranks.
    """
    if _take is None or os.getpid() != _process:
        return batch
    taken: Batch = _take(batch)
    return taken


@contextlib.contextmanager
def taken_by(take: Callable[[Any], Any]) -> Iterator[None]:
    """Context in which `take` gives what `global_batch` returns in this process."""
    global _take, _process
    before = _take, _process
    _take, _process = take, os.getpid()
    try:
        yield
    finally:
        _take, _process = before
