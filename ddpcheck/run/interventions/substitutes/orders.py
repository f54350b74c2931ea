"""Substitutes "orders": ranks shuffle data as the single process does.

The single-process run records every permutation that is drawn. A rank's k-th
permutation of n items in a step is replaced by the recorded k-th of n in that step. (A
RandomSampler draws one more than it uses, at the end of an epoch.) This covers torch,
numpy and Python's random, so also the samplers of torch.utils.data; it does not cover
names that a target has imported from them, nor draws of a few from many. The generators
advance as they do without it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ddpcheck.run.facts import Orders
from ddpcheck.run.process.replacing import all_replaced

Step = Callable[[], int]


@contextlib.contextmanager
def recorded(step: Step, *, on: bool = True) -> Iterator[Orders]:
    """Yields a dict in which every permutation is recorded; none unless `on`."""
    found: Orders = {}

    def note(order: list[int]) -> list[int]:
        found.setdefault((step(), len(order)), []).append(order)
        return order

    with _watched(note) if on else contextlib.nullcontext():
        yield found


@contextlib.contextmanager
def substituted(orders: Orders, step: Step) -> Iterator[None]:
    """Replaces the permutations drawn here by those of the single-process run."""
    drawn: dict[tuple[int, int], int] = {}

    def take(order: list[int]) -> list[int]:
        place = step(), len(order)
        number = drawn.get(place, 0)
        drawn[place] = number + 1
        known = orders.get(place, [])
        return known[number] if number < len(known) else order

    with _watched(take):
        yield


def _watched(
    change: Callable[[list[int]], list[int]],
) -> contextlib.AbstractContextManager[None]:
    """Passes every permutation through `change`."""
    makers: dict[tuple[Any, str], Callable[[Any], Any]] = {
        (torch, "randperm"): lambda plain: _randperm(plain, change),
        (random.Random, "shuffle"): lambda plain: _method(plain, change),
        (random, "shuffle"): lambda plain: _shuffle(plain, change),
        (np.random, "shuffle"): lambda plain: _shuffle(plain, change),
        (np.random, "permutation"): lambda plain: _permutation(plain, change),
        (np.random, "default_rng"): lambda plain: _generators(plain, change),
        (np.random, "RandomState"): lambda plain: _states(plain, change),
    }
    return all_replaced({key: make(getattr(*key)) for key, make in makers.items()})


def _randperm(plain: Any, change: Any) -> Any:
    def randperm(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        if not made.dim() or torch.compiler.is_compiling():
            return made
        return made.copy_(made.new_tensor(change(made.tolist())))

    return randperm


def _shuffle(plain: Any, change: Any) -> Any:
    def shuffle(things: Any, *args: Any) -> None:
        order = list(range(len(things)))
        plain(order, *args)
        _arrange(things, change(order))

    return shuffle


def _method(plain: Any, change: Any) -> Any:
    def shuffle(self: Any, things: Any, *args: Any) -> None:
        order = list(range(len(things)))
        plain(self, order, *args)
        _arrange(things, change(order))

    return shuffle


def _arrange(things: Any, order: list[int]) -> None:
    things[:] = (
        things[order] if isinstance(things, np.ndarray) else [things[i] for i in order]
    )


def _permutation(plain: Any, change: Any) -> Any:
    def permutation(things: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(things, int | np.integer):
            return np.array(change(plain(things, *args, **kwargs).tolist()))
        if args or kwargs:
            return plain(things, *args, **kwargs)  # along another axis
        array = np.asarray(things)
        return array[change(plain(len(array)).tolist())]

    return permutation


def _states(plain: Any, change: Any) -> Any:
    class RandomState(plain):  # type: ignore[misc]
        def permutation(self, x: Any) -> Any:
            return _permutation(super().permutation, change)(x)

        def shuffle(self, x: Any) -> None:
            _shuffle(super().shuffle, change)(x)

    return RandomState


def _generators(plain: Any, change: Any) -> Any:
    class Generator(np.random.Generator):
        """Shuffles by one without these methods: they call each other."""

        def permutation(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            own = np.random.Generator(self.bit_generator)
            return _permutation(own.permutation, change)(x, *args, **kwargs)

        def shuffle(self, x: Any, *args: Any, **kwargs: Any) -> None:
            own = np.random.Generator(self.bit_generator)
            if args or kwargs:  # along another axis
                own.shuffle(x, *args, **kwargs)
            else:
                _shuffle(own.shuffle, change)(x)

    def default_rng(*args: Any, **kwargs: Any) -> Any:
        return Generator(plain(*args, **kwargs).bit_generator)

    return default_rng
