"""What the loaders of a script yield: recorded on ranks, then given again.

A batch is known by a key: the loader (numbered by its first use), the pass over it, and
how many were drawn before it in this pass.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from ddpcheck.compare import tree
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.script.driver import Driver, random_states, set_random_states
from ddpcheck.run.script.events import CALLS, NUMBERS, Drawn, Loader, Passed

Key = str  # "loader.pass.number"
SHARED = -2  # the number that stands for batches given to ddpcheck.global_batch

# Digests of a larger batch would take more time than the step.
_MOST_NUMBERS = 4_000_000
_OTHER_EPOCH, _FIRST = 7919, 64  # of what a sampler draws in it
_SHUFFLE = RandomSampler, SubsetRandomSampler, WeightedRandomSampler


@dataclass(slots=True, kw_only=True)
class Kept:
    """A batch with the samples that collate_fn made it of."""

    samples: list[Any]
    made: Any


@dataclass(slots=True)
class _Keeping:
    """A collate_fn that also returns its samples; it may run in a worker."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> Kept:
        return Kept(samples=list(samples), made=self.collate(samples))


def _has_own_collate(loader: Any) -> bool:
    known = default_collate, torch.utils.data.default_convert
    return loader.collate_fn not in known and loader.batch_sampler is not None


class Loaders:
    """Numbers the loaders of a script, and takes the place of their iterators.

    `begin` is called with (loader, number, turn) and returns what yields its batches.
    """

    def __init__(self, begin: Callable[[Any, int, int], Iterator[Any]]) -> None:
        self._begin = begin
        self._known: list[Any] = []  # in the order of their first use
        self._turns: dict[int, int] = {}
        self._before: dict[type, Callable[[Any], Any]] = {}

    @property
    def are_used(self) -> bool:
        """Whether there is a loader."""
        return bool(self._known)

    def original(self, loader: Any) -> Any:
        """Returns the iterator that a loader has where it is not watched."""
        cls = next(one for one in type(loader).__mro__ if one in self._before)
        return self._before[cls](loader)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Context in which loaders are watched, also of classes made in it."""

        def made(cls: type, /, **arguments: Any) -> None:
            super(DataLoader, cls).__init_subclass__(**arguments)  # type: ignore[misc]
            self._watch(cls)

        for cls in _family(DataLoader):
            self._watch(cls)
        try:
            with replaced(DataLoader, __init_subclass__=classmethod(made)):
                yield
        finally:
            while self._before:
                cls, before = self._before.popitem()
                cls.__iter__ = before  # type: ignore[attr-defined]

    def _watch(self, cls: type) -> None:
        """Watches loaders of a class where it makes iterators itself.

        One that changes what its base class yields is seen there.
        """
        before: Any = vars(cls).get("__iter__")
        if cls is not DataLoader and "_get_iterator" not in _names(before):
            return
        self._before[cls] = before

        @functools.wraps(before)
        def iterate(loader: Any) -> Iterator[Any]:
            if not any(loader is one for one in self._known):
                self._known.append(loader)
            number = next(i for i, one in enumerate(self._known) if one is loader)
            turn = self._turns.get(number, 0)
            self._turns[number] = turn + 1
            return self._begin(loader, number, turn)

        cls.__iter__ = iterate  # type: ignore[attr-defined]


def _names(function: Any) -> tuple[str, ...]:
    """Returns the names that a function uses, the first one if it is watched."""
    first = function and inspect.unwrap(function)
    return getattr(getattr(first, "__code__", None), "co_names", ())


def _family(cls: type) -> Iterator[type]:
    """Yields a class and those derived of it."""
    yield cls
    derived: type
    for derived in cls.__subclasses__():
        yield from _family(derived)


class _Noting:
    """A sampler that keeps what it drew in its last pass; it is what it samples of."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.noted: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        self.noted = noted = []
        for index in self._sampler:
            noted.append(index)
            yield index

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def describe(loader: Any, number: int, turn: int) -> Loader:
    """Returns what is known of a loader before a pass over it."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = _innermost(loader)
    parts = sampler, batch_sampler
    replicas = [getattr(p, "num_replicas", None) for p in parts]
    replicas += [getattr(p, "num_processes", None) for p in parts]
    shuffles = getattr(sampler, "shuffle", isinstance(sampler, _SHUFFLE))
    return Loader(
        number=number,
        turn=turn,
        batches=_length(loader),
        samples=_length(loader.dataset),
        batch_size=getattr(batch_sampler, "batch_size", loader.batch_size),
        drop_last=bool(getattr(batch_sampler, "drop_last", loader.drop_last)),
        sampler=type(sampler).__name__,
        shuffles=bool(shuffles) or any(map(_follows_its_epoch, parts)),
        replicas=next((n for n in replicas if n is not None), None),
        is_iterable=isinstance(loader.dataset, IterableDataset),
    )


def _follows_its_epoch(sampler: Any) -> bool:
    """Returns whether a sampler draws another order after its set_epoch was called.

    A copy is asked, so the sampler itself and the random numbers stay as they are.
    """
    if not hasattr(sampler, "set_epoch") or any(
        hasattr(value, "set_epoch") for value in vars(sampler).values()
    ):
        return False  # the copy would set the epoch of what it shares with the sampler
    before = random_states()
    try:
        one, two = copy.copy(sampler), copy.copy(sampler)
        two.set_epoch(_OTHER_EPOCH)
        orders = [list(itertools.islice(iter(each), _FIRST)) for each in (one, two)]
        return repr(orders[0]) != repr(orders[1])
    except Exception:  # noqa: BLE001 (user code)
        return False
    finally:
        set_random_states(before)


def _innermost(loader: Any) -> Any:
    """Returns the sampler that gives the order; others may cut it into shards."""
    batches: Any = getattr(loader, "batch_sampler", None)
    while getattr(batches, "batch_sampler", None) is not None:
        batches = batches.batch_sampler
    own = getattr(batches, "sampler", None)
    return getattr(loader, "sampler", None) if own is None else own


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


@dataclass(slots=True)
class Recorder:
    """Records what the loaders of one rank yield.

    `emit` takes Loader, Drawn and Passed as they come. `step` is set by the caller.
    """

    driver: Driver
    emit: Callable[[Any], None]
    step: int = 0
    drawn: dict[Key, Kept | Any] = field(default_factory=dict)  # since `take`
    collates: dict[int, Any] = field(default_factory=dict)  # by the loader's number
    samplers: dict[int, _Noting] = field(default_factory=dict)  # likewise
    keeps_data: bool = True
    turns: int = 0  # passes that ended
    shared: int = 0  # batches that were given to ddpcheck.global_batch
    calls: int = 0  # of the model, where no loader draws
    numbers: int = 0  # tensors of random numbers that the script drew, likewise

    def begin(self, loaders: Loaders, loader: Any, number: int, turn: int) -> Any:
        """Returns an iterator that yields what the loader does."""
        told = describe(loader, number, turn)
        self.emit(dataclasses.replace(told, where=self.driver.line()))
        own = vars(loader)
        changed: dict[str, Any] = {}
        if _has_own_collate(loader):
            self.collates[number] = loader.collate_fn
            changed["collate_fn"] = _Keeping(loader.collate_fn)
        if not isinstance(loader.dataset, IterableDataset):
            key = "sampler" if loader.batch_sampler is None else "batch_sampler"
            noting = self.samplers.setdefault(number, _Noting(own[key]))
            changed[key] = noting
        # Not by setattr: a loader refuses another sampler, for it has used its own.
        before = {key: own[key] for key in changed}
        own.update(changed)
        try:
            iterator = loaders.original(loader)
        finally:
            own.update(before)
        length = None if told.is_iterable else told.batches
        return self._yield(iterator, number, turn, length)

    def _yield(
        self, iterator: Any, number: int, turn: int, length: int | None
    ) -> Iterator[Any]:
        """Yields the batches of a pass; its end is told before its last batch.

        It also ends if nobody asks for one more. That nothing follows a batch tells
        where a rank waits.
        """
        noting = self.samplers.get(number)
        count = 0
        while True:
            self.driver.before_draw()
            try:
                batch = next(iterator)
            except StopIteration:
                self.turns += 1
                self.emit(Passed(loader=number, turn=turn, batches=count))
                return
            if count + 1 == length:
                self.emit(Passed(loader=number, turn=turn, batches=length))
            indices = noting.noted if noting is not None else []
            kept, batch = batch, batch.made if isinstance(batch, Kept) else batch
            rows = digests(batch) if not indices or _is_small(batch) else ()
            named = _flat(indices[count]) if indices else rows
            self.emit(
                Drawn(
                    loader=number,
                    turn=turn,
                    number=count,
                    samples=named,
                    step=self.step,
                    rows=rows,
                )
            )
            if self.keeps_data:
                self.drawn[f"{number}.{turn}.{count}"] = kept
            count += 1
            yield batch

    def share(self, batch: Any) -> Any:
        """Records a batch that the script gives to ddpcheck.global_batch."""
        if not torch.is_grad_enabled():
            return batch
        self.driver.before_draw()
        self._drew(_SHARED, self.shared, batch)
        if self.keeps_data:
            # The script may change its own.
            kept = tree.replace(batch, lambda _, tensor: tensor.detach().clone())
            self.drawn[f"{SHARED}.0.{self.shared}"] = kept
        self.shared += 1
        return batch

    def called(self, key: Key, given: Any) -> None:
        """Records what a script whose data come from no loader gives its model."""
        self._drew(_CALLS, self.calls, given)
        if self.keeps_data:
            self.drawn[key] = given
        self.calls += 1

    def drew_numbers(self, drawn: Tensor) -> None:
        """Records random numbers that the script draws itself."""
        if self.keeps_data and drawn.numel() <= _MOST_NUMBERS:
            self.drawn[f"{NUMBERS}.0.{self.numbers}"] = drawn.detach().clone()
        self.numbers += 1

    def _drew(self, source: Loader, number: int, batch: Any) -> None:
        """Emits the batch number `number` of what stands for a loader."""
        if not number:
            self.emit(source)
        rows = digests(batch) if _is_small(batch) else ()
        drawn = Drawn(
            loader=source.number,
            turn=0,
            number=number,
            samples=rows,
            step=self.step,
            rows=rows,
        )
        self.emit(drawn)

    def take(self) -> dict[Key, Any]:
        """Returns and forgets what was drawn since the last call."""
        drawn, self.drawn = self.drawn, {}
        return drawn


_SHARED = Loader(
    number=SHARED,
    turn=0,
    batches=None,
    samples=None,
    batch_size=None,
    drop_last=False,
    sampler="ddpcheck.global_batch",
    shuffles=False,
    replicas=None,
    is_iterable=True,
)


_CALLS = dataclasses.replace(_SHARED, number=CALLS, sampler="calls of the model")


def _flat(index: Any) -> tuple[Any, ...]:
    if isinstance(index, Tensor):
        index = index.tolist()
    return tuple(index) if isinstance(index, list | tuple) else (index,)


def _is_small(batch: Any) -> bool:
    return sum(tensor.numel() for tensor in tree.held(batch)) <= _MOST_NUMBERS


def digests(batch: Any) -> tuple[str, ...]:
    """Returns a digest of each row of a batch; () where it has no rows."""
    leaves = [t for t in tree.held(batch) if t.dim()]
    if not leaves:
        return ()
    size = len(leaves[0])
    rows = [t for t in leaves if len(t) == size]
    found = []
    for number in range(size):
        whole = hashlib.sha1(usedforsecurity=False)
        for leaf in rows:
            row = leaf[number].detach().cpu().contiguous().reshape(-1)
            whole.update(row.view(torch.uint8).numpy().tobytes())
        found.append(whole.hexdigest()[:16])
    return tuple(found)


def with_own_classes(value: Any) -> Any:
    """Returns a value whose classes are the script's, as this run of it defines them.

    The batch has those of the run in which it was recorded.
    """
    if isinstance(value, Tensor):
        return value
    if tree.is_container(value):
        value = tree.zipped([value], lambda parts: with_own_classes(parts[0]))
    own: Any = sys.modules["__main__"]
    for name in type(value).__qualname__.split("."):
        own = getattr(own, name, None)
    is_other = type(value).__module__ == "__main__" and isinstance(own, type)
    if not is_other or own is type(value):
        return value
    if isinstance(value, tuple):
        return own(*value) if hasattr(own, "_fields") else own(value)
    made = copy.copy(value)
    with contextlib.suppress(TypeError):  # it is not of the same kind
        made.__class__ = own
    return made
