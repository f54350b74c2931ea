"""Gives the loaders of a script the batches of the step, as they were recorded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ddpcheck.compare import tree
from ddpcheck.run.script.batches import Batches
from ddpcheck.run.script.driver import Driver
from ddpcheck.run.script.events import CALLS, NUMBERS
from ddpcheck.run.script.loaders import SHARED, Key, digests, with_own_classes
from ddpcheck.run.script.recording import loader_of, numbers_of
from ddpcheck.target.script import Known

# Of the largest number: a probe may have given a batch that is rounded otherwise.
_CLOSE = 1e-2


@dataclass(slots=True)
class Step:
    """The batches of the step in progress, by key, and where the script is in them.

    `drawn`: how many of them were handed out, by loader. `trained`: steps of this run;
    `since_start`: since the script was started.
    """

    given: dict[str, Any] = field(default_factory=dict)
    drawn: dict[int, int] = field(default_factory=dict)
    trained: int = 0
    since_start: int = 0


@dataclass(slots=True)
class Fed:
    """Gives loaders the batches of the step, in the order of the ranks' draws.

    `split`: one process draws so many batches for each of a rank's, as where it
    accumulates gradients for as long; each gets its part. What is drawn ahead is
    handed out empty, and filled when its step begins. `at`: the loader that is about to
    draw, None where that is not known.
    """

    step: Step
    driver: Driver
    batches: Batches
    known: Known
    split: int
    empty: list[tuple[int, Any]] = field(default_factory=list)  # (loader, batch)
    # How many batches may be drawn ahead in a step in which a pass begins, by loader.
    spare: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)  # in this step, by loader
    at: int | None = None
    numbered: int = 0  # tensors of random numbers that the script has drawn

    def begin(self, loader: Any, number: int, turn: int) -> Iterator[Any]:
        """Yields the batches of a pass."""
        del loader
        if (number, turn) in self.known.looks:
            yield from self._looked_at(number)
        length = dict(self.known.passes).get((number, turn))
        count = 0
        while not self._ends(length, count):
            if not count:
                self._begin_ahead(number)
            self._stop_before(number)
            if not count:
                self._begin_ahead(number)  # in the step that has begun, if one has
            self.asked[number] = self.asked.get(number, 0) + 1
            yield self._next(number)
            count += 1
        self.at = None if self.known.has_others else number
        self.driver.before_draw()

    def _looked_at(self, loader: int) -> Iterator[Any]:
        """Yields batches of no step, as of a pass that is left before the training.

        Each process looks at what it trains on first.
        """
        seat = self.driver.seat
        for batch in itertools.cycle(self._recorded(0, loader)):
            own = tree.shard(batch, seat.rank, max(1, seat.world_size))
            yield _copied(tree.shard(own, 0, self.split) if self.split > 1 else own)

    def _stop_before(self, loader: int) -> None:
        """Stops before a draw that is not of the step."""
        self.at = loader
        is_done = self.driver.updates or not self._allowed(loader)
        if self.driver.stops_at_draws or is_done:
            self.driver.stop("draw")

    def _begin_ahead(self, number: int) -> None:
        self.spare |= {n: ahead for n, _, ahead in self.known.ahead if n == number}

    def shared(self, batch: Any) -> Any:
        """Returns what ddpcheck.global_batch gives the script in place of a batch."""
        if not torch.is_grad_enabled():
            return tree.replace(batch, lambda _, tensor: _cast(tensor))
        self._stop_before(SHARED)
        self.asked[SHARED] = self.asked.get(SHARED, 0) + 1
        return self._next(SHARED)

    def called(self, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Returns what the model is given in a call, where no loader draws batches.

        None for what the script gives it: the loss may be of data beside.
        """
        self._stop_before(CALLS)
        if self.known.gives_numbers:
            given = self._next(CALLS)
            _check_made((args, kwargs), (given["args"], given["kwargs"]))
            return None
        if self.known.has_all:
            self.step.drawn[CALLS] = self.step.drawn.get(CALLS, 0) + 1
            return None
        batch = self._next(CALLS)
        return batch["args"], batch["kwargs"]

    def numbers(self, drawn: Tensor) -> Tensor:
        """Returns what random numbers of the script become: those of all ranks."""
        self.numbered += 1
        if not gives_number(self.known, self.numbered - 1):
            return drawn
        self._stop_before(NUMBERS)
        self.asked[NUMBERS] = self.asked.get(NUMBERS, 0) + 1
        given: Tensor = self._next(NUMBERS).to(drawn)
        return given.requires_grad_(drawn.requires_grad)

    def fill(self) -> None:
        """Fills the batches that were drawn ahead of the step that begins now."""
        waiting, self.empty, self.asked, self.spare = self.empty, [], {}, {}
        for loader, batch in waiting:
            filled = tree.held(self._next(loader))
            for tensor, values in zip(tree.held(batch), filled, strict=True):
                tensor.data = values.clone()

    def _later(self, loader: int) -> Any:
        """Returns a batch of the next step, before it is given.

        A script may move it to a device before its step begins, after which it cannot
        be filled. So it has the rows of the ranks' batch that were given in this step.
        """
        number = self.asked[loader] - 1 - self.step.drawn.get(loader, 0)
        later = min(self.step.trained, self.known.steps - 1)
        now, own = self._recorded(max(0, later - 1), loader), self._own(loader)
        following = self._recorded(later, loader)
        batch = following[number // self.split % len(following)]
        seat = self.driver.seat
        shard = seat.rank, max(1, seat.world_size)
        is_shard = not now or _is_same(own[-1], tree.shard(now[-1], *shard))
        rows = None if is_shard else _rows(own[-1], now[-1])
        if rows is not None:
            batch = tree.rows(batch, torch.tensor(rows))
        else:
            batch = tree.shard(batch, *shard)
        if self.split > 1:
            batch = tree.shard(batch, number % self.split, self.split)
        return _copied(batch)

    def _recorded(self, step: int, loader: int) -> list[Any]:
        every = self.batches.at(step).items()
        own = [batch for key, batch in every if loader_of(key) == loader]
        return [tree.replace(batch, lambda _, tensor: _cast(tensor)) for batch in own]

    def _ends(self, length: int | None, count: int) -> bool:
        """Returns whether a pass ends; a probe repeats a step any number of times."""
        is_over = length is not None and count >= length * self.split
        return is_over and self.step.trained <= self.known.steps

    def _own(self, loader: int) -> list[Any]:
        given = self.step.given or self.batches.at(0)
        return [batch for key, batch in given.items() if loader_of(key) == loader]

    def _allowed(self, loader: int) -> int:
        """Returns how many batches the step may still draw, as on the ranks."""
        asked, is_first = self.asked.get(loader, 0), self.step.since_start == 1
        for number, used, ahead in self.known.ahead:
            if number == loader:
                more = ahead if is_first else self.spare.get(loader, 0)
                return self.split * (used + more) - asked
        return self._left(loader)

    def _left(self, loader: int) -> int:
        drawn = self.step.drawn.get(loader, 0)
        return self.split * len(self._own(loader)) - drawn

    def _next(self, loader: int) -> Any:
        """Returns the next of the step's batches of this loader."""
        own = self._own(loader)
        if not self._left(loader):
            if loader in self.batches.ahead:
                self.empty.append((loader, self._later(loader)))
                return self.empty[-1][1]
            message = f"the ranks drew {len(own)} batches of loader {loader} in a step"
            raise RuntimeError(message)
        count = self.step.drawn.get(loader, 0)
        self.step.drawn[loader] = count + 1
        batch = own[count // self.split]
        if self.split > 1:
            batch = tree.shard(batch, count % self.split, self.split)
        return _copied(batch)


def gives_number(known: Known, number: int) -> bool:
    """Returns whether a process is given the ranks' random numbers of this draw."""
    return known.gives_numbers and number >= known.first_numbers


def is_unused(known: Known, key: Key) -> bool:
    """Returns whether a batch of this key is of no step."""
    loader, turn, number = numbers_of(key)
    if loader == NUMBERS:
        return not gives_number(known, number)
    return (loader, turn) in known.looks


def _check_made(own: Any, given: Any) -> None:
    """Raises where a script makes another batch of numbers than the ranks have.

    An array may be in another order there, or their rows of one draw may be unlike.

    Raises:
        RuntimeError: it does.
    """
    ours, theirs = tree.held(own), tree.held(given)
    if len(ours) != len(theirs) or not all(
        _is_close(one, other) for one, other in zip(ours, theirs, strict=True)
    ):
        message = "of the ranks' random numbers the single process makes another batch"
        raise RuntimeError(message)


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    ours, theirs = (tensor.detach().double() for tensor in (one, other))
    if not ours.numel():
        return True
    largest = float(theirs.abs().max())
    return torch.allclose(ours, theirs, rtol=0, atol=_CLOSE * largest, equal_nan=True)


def _is_same(one: Any, other: Any) -> bool:
    return digests(one) == digests(other)


def _rows(part: Any, whole: Any) -> list[int] | None:
    """Returns which rows of a batch another one has; None if it has others."""
    known: dict[str, list[int]] = {}
    for number, name in enumerate(digests(whole)):
        known.setdefault(name, []).append(number)
    wanted = digests(part)
    if not wanted or any(name not in known for name in wanted):
        return None
    used: dict[str, int] = {}
    rows = []
    for name in wanted:  # equal rows one after the other
        rows.append(known[name][used.get(name, 0) % len(known[name])])
        used[name] = used.get(name, 0) + 1
    return rows


def _cast(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.to(torch.get_default_dtype())
    return tensor


def _copied(batch: Any) -> Any:
    """Returns a batch that the script may change, as a loader's is its own."""
    copied = tree.replace(tree.contents(batch), lambda _, tensor: tensor.clone())
    return with_own_classes(copied)
