"""Makes batches of samples with the target's `collate`, equally in every process."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ddpcheck.compare import tree


def collated(samples: list[Any], collate: Callable[[list[Any]], Any]) -> tree.Collated:
    """Returns the batch of all samples, of which rows can be taken.

    A rank collates its own later on: under the current default dtype, which decides the
    dtype of tensors that `collate` makes. It gets a copy of the samples: many modify
    them (add the index of an image, remove the labels).
    """
    dtype = torch.get_default_dtype()

    def make(some: list[Any]) -> Any:
        with _surroundings(dtype):
            return collate(_copied(some))

    return tree.Collated.of(samples, make)


@contextlib.contextmanager
def _surroundings(dtype: torch.dtype) -> Iterator[None]:
    """Wraps `collate`, which an intervention may call in the middle of a step.

    There, autocast may be on.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
                of_now = torch.get_autocast_dtype(device)
                off = torch.autocast(device, of_now, enabled=False)
                stack.enter_context(off)
            yield
    finally:
        torch.set_default_dtype(before)


def _copied(samples: list[Any]) -> list[Any]:
    with contextlib.suppress(Exception):  # what cannot be copied is not written to
        return copy.deepcopy(samples)
    return list(samples)
