"""How the model calls of a step split the batch, and in which order they get samples.

A step may call the model several times, each time on a micro-batch. A rank's third
micro-batch holds other samples than the reference's third. So the reference's tensors
are joined over micro-batches, and the rank's part is taken by its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader
from ddpcheck.diagnose.probes.evidence import Micro, Windows
from ddpcheck.diagnose.probes.hooks import Hooks, key_of, tensors_of
from ddpcheck.diagnose.probes.rows import part
from ddpcheck.run.observe import countables
from ddpcheck.target.target import Target

# (quantity, key, the rank's tensor) -> the reference's tensor
Recorded = Callable[[str, str, Tensor], Tensor | None]


def windows(rows: list[int], total: int) -> Windows:
    """Returns the micro-batches, given the number of rows of each model call."""
    if len(rows) > 1 and sum(rows) == total:
        return Windows(sizes=tuple(rows), calls=1)
    size = rows[0] if rows else total
    equal = len(set(rows)) == 1
    if not equal or not 0 < size < total or total % size:
        return Windows(sizes=(total,))
    calls, rest = divmod(len(rows), total // size)
    if rest or not calls:
        return Windows(sizes=(total,))
    return Windows(sizes=(size,) * (total // size), calls=calls)


def dealt(rows: list[int], batches: int, deal: int) -> Windows | None:
    """Returns the micro-batches of a step that deals them to the ranks.

    None if the model is not called once, or equally often, for each of them.

    Args:
        rows: of each model call in the single-process run.
        batches: of the step, each the union of one of every rank's.
        deal: micro-batches for each of these.
    """
    calls, rest = divmod(len(rows), max(1, batches * deal))
    if rest or not calls or not min(rows):
        return None
    sizes = rows[::calls]
    if any(rows[i] != sizes[i // calls] for i in range(len(rows))):
        return None
    return Windows(sizes=tuple(sizes), calls=calls, deal=deal)


def picked(rows: list[int], shard_rows: list[int], found: Windows) -> Windows:
    """Returns the windows of a step that selects samples for the model, else `found`.

    Args:
        rows: of each model call in the single-process run.
        shard_rows: of each model call on the first shard.
        found: the windows if all samples are used.
    """
    if found.count > 1 or len(set(rows)) != 1 or len(set(shard_rows)) != 1:
        return found
    if not rows[0] % found.sizes[0]:
        return found
    return Windows(sizes=(rows[0],), picks=True) if shard_rows[0] < rows[0] else found


class Cursor:
    """Which of the samples a rank's tensors hold; every model call moves on.

    `rows`: (first sample, number of samples, samples in all); the shard's at first.
    `starts`, `sizes`: of the micro-batches so far.
    """

    def __init__(self, windows: Windows, start: int, rows: int, total: int) -> None:
        self.windows, self._next = windows, start
        if windows.deal > 1:
            total = sum(windows.sizes)
        self.rows = (start, rows, total)
        self.starts, self.sizes = list[int](), list[int]()

    def enter(self, args: Any, kwargs: Any, recorded: Recorded) -> None:
        """Moves to the samples of a model call."""
        if self.windows.count > 1:
            size = _rows_of_call(args, kwargs)
            self.rows = (self._next, size, self.rows[2])
            self.starts.append(self._next)
            self.sizes.append(size)
            # The same place in the next of the step's batches, or the next samples.
            number, deal = len(self.sizes) - 1, self.windows.deal
            passed = self.windows.sizes[number * deal : (number + 1) * deal]
            self._next += sum(passed) if deal > 1 else size
        elif self.windows.picks:
            self._find(tensors_of((args, kwargs)), recorded)

    def rows_in(self, number: int) -> int:
        """Returns the number of samples in a micro-batch."""
        return self.sizes[number] if self.sizes else self.rows[1]

    def _find(self, given: Iterable[tuple[str, Tensor]], recorded: Recorded) -> None:
        """Finds the samples that the step has selected, by their values."""
        total = self.windows.sizes[0]
        near = self.rows[0] / self.rows[2] * total
        for path, mine in given:
            whole = recorded("inputs", key_of("", 0, path), mine)
            if whole is not None and mine.dim() and len(whole) == total:
                start = _start_of(mine, whole, near)
                if start is not None:
                    self.rows = (start, len(mine), total)
                    return


def _start_of(mine: Tensor, whole: Tensor, near: float) -> int | None:
    """Returns the row at which `whole` has these rows, the nearest one to `near`."""
    if mine.shape[1:] != whole.shape[1:] or mine.dtype != whole.dtype:
        return None
    starts = range(len(whole) - len(mine) + 1)
    found = [s for s in starts if torch.equal(whole[s : s + len(mine)], mine)]
    return min(found, key=lambda s: abs(s - near), default=None)


def alike_padded(target: Target, batch: Any) -> Any:
    """Returns a batch with rows of equal length on ranks and in the reference.

    Needed where tensors are matched by their shapes: in micro-batches, and inside a
    forward that computes the loss. A loss on outputs is probed with its own padding.
    """
    takes_outputs = target.loss is not None and target.train_step is None
    return batch if takes_outputs else tree.alike_padded(batch)


class RowCount:
    """The number of rows of every model call, for `windows`; attach to `Hooks`."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def before(
        self, name: str, _call: int, _module: Any, args: Any, kwargs: Any
    ) -> None:
        """Counts the rows if the call is of the model itself."""
        if not name:
            self.rows.append(_rows_of_call(args, kwargs))


def described(
    sizes: Sequence[int], start: int, targets: Any, names: Iterable[str]
) -> tuple[Micro, ...]:
    """Returns what each micro-batch of a process holds; empty for a single one.

    `sizes`: samples per micro-batch. `start`: first sample of the process. `names`: of
    what is counted in the targets.
    """
    if len(sizes) < 2:  # noqa: PLR2004
        return ()
    size, offset, found = sum(sizes), 0, []
    for rows in sizes:
        part = countables.part(targets, size, slice(offset, offset + rows))
        counts = {name: countables.count(name, part) for name in names}
        found.append(Micro(start=start + offset, size=rows, counts=counts))
        offset += rows
    return tuple(found)


def described_apart(
    batches: Mapping[str, Any],
    sizes: Sequence[int],
    names: Iterable[str],
    starts: Sequence[int] | None = None,
) -> tuple[Micro, ...]:
    """Returns what the micro-batches hold of batches that are each cut by itself.

    Counts are named as in the first batch.

    Args:
        batches: of the step, by name; each has as many of the micro-batches.
        sizes: samples per micro-batch.
        names: of what is counted in the targets.
        starts: first sample of each; by default each begins where another ends.
    """
    if len(sizes) < 2:  # noqa: PLR2004
        return ()
    found, number = [], len(sizes) // len(batches)
    first, every = next(iter(batches)), list(batches.values())
    for place, size in enumerate(sizes):
        begin = place // number * number
        offset, end = sum(sizes[begin:place]), sum(sizes[begin : begin + number])
        batch = {"batch": {first: every[place // number]}}
        part = countables.part(batch, end, slice(offset, offset + size))
        counts = {name: countables.count(name, part) for name in names}
        start = starts[place] if starts is not None else sum(sizes[:place])
        found.append(Micro(start=start, size=size, counts=counts))
    return tuple(found)


def _rows_of_call(args: Any, kwargs: Any) -> int:
    """Returns dimension 0 of the first tensor among the inputs, 0 without one."""
    return next((len(t) for _, t in tensors_of((args, kwargs)) if t.dim()), 0)


def _sample_dim(shape: tuple[int, ...], size: int) -> int | None:
    """Returns the dimension that holds `size` samples, or several values of each."""
    exact = [d for d, n in enumerate(shape) if n == size]
    several = [d for d, n in enumerate(shape) if n and size and n % size == 0]
    return next(iter(exact or several), None)


def shard_dim(value: Tensor, mine: tuple[int, ...], rows: int) -> int:
    """Returns the dimension of the samples: the one in which a shard is smaller.

    `mine`, `rows`: shape of a shard's tensor, and number of samples in the shard.
    """
    differ = (d for d in range(value.dim()) if value.shape[d] != mine[d])
    found = next(differ, None)
    return _sample_dim(mine, rows) or 0 if found is None else found


def has_shard(
    windows: Windows,
    number: int,
    shape: tuple[int, ...],
    mine: tuple[int, ...],
    rows: int,
) -> bool:
    """Returns whether a shard's tensor may be a part of a micro-batch's, or contain it.

    `number`, `shape`: of the micro-batch, and of its tensor. `mine`, `rows`: shape of
    the shard's tensor, and number of samples in the shard.
    """
    size = windows.size(number)
    if windows.count > 1 and mine == shape and size == rows:
        return _sample_dim(mine, rows) is not None
    if size < rows:
        return bool(part(mine, shape, (0, size, rows)))
    return bool(part(shape, mine, (0, rows, size)))


def recorded(
    reader: Reader,
    windows: Windows,
    quantity: str,
    key: str,
    mine: tuple[int, ...],
    rows: int,
) -> Tensor | None:
    """Returns a tensor of the reference's trace, joined over its micro-batches.

    `mine`, `rows`: shape of the rank's tensor that is compared with a part of the
    result, and number of samples in that tensor.

    Special values: None if nothing was recorded, or if micro-batches are padded to
    different lengths; the first micro-batch's tensor if no dimension holds samples.
    """
    parts = [
        reader.get(quantity, number, key)
        for number in range(windows.count)
        if key in reader.names(quantity, number)
    ]
    known = [
        (p, n) for p, n in zip(parts, windows.sizes, strict=False) if p is not None
    ]
    if not known:
        return None
    first, size = known[0]
    if windows.count == 1 or len(parts) < windows.count:
        return first
    dims = [
        d
        for d, n in enumerate(first.shape)
        if first.dim() == len(mine)
        and n * rows == mine[d] * size
        and _without(first.shape, d) == _without(mine, d)
    ]
    if not dims:
        return first
    # If a micro-batch is as large as the rank's, all dimensions seem to fit.
    dim = next((d for d in dims if first.shape[d] % size == 0), dims[0])
    if any(_without(p.shape, dim) != _without(mine, dim) for p, _ in known):
        return None

    def zeros(samples: int) -> Tensor:
        shape = list(first.shape)
        shape[dim] = shape[dim] * samples // size
        return first.new_zeros(shape)

    filled = [
        zeros(n) if p is None else p for p, n in zip(parts, windows.sizes, strict=True)
    ]
    return torch.cat(filled, dim=dim)


def _without(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def order_of_calls(
    model: nn.Module, batch: Any, step: Callable[[Hooks], object]
) -> tuple[list[int], Tensor | None]:
    """Returns the rows of each model call, and the order of the batch's rows in them.

    A step may sort its samples before the model, by length for instance. Shards are
    then sorted differently from the batch. A probe gives the batch in the order in
    which the model gets it, so that sorting changes nothing in the single-process run
    or on the shards. These are other shards than the run's; the search tries the
    probe's proposals on the run itself.
    """
    counted, given, hooks = RowCount(), GivenOrder(batch), Hooks()

    def before(*call: Any) -> None:
        counted.before(*call)
        given.before(*call)

    hooks.attach(model, before, lambda *_: None)
    step(hooks)
    return counted.rows, given.order


class GivenOrder:
    """The order in which modules get a batch's rows; attach to `Hooks`.

    `order`: numbers of the batch's rows. None if they are in the batch's own order, or
    if no module gets the rows themselves.
    """

    def __init__(self, batch: Any) -> None:
        self._leaves = [t for t in tree.held(batch) if t.dim() and len(t) > 1]
        self._is_known = any(True for _ in tree.lists(batch))  # lists are not permuted
        self.order: Tensor | None = None

    def before(
        self, _name: str, _call: int, _module: Any, args: Any, kwargs: Any
    ) -> None:
        """Compares the inputs of a call with the batch until its rows are found."""
        for _, given in tensors_of((args, kwargs)):
            for leaf in () if self._is_known else self._leaves:
                found = _order_of(given, leaf)
                if found is not None:
                    self._is_known = True
                    if found != list(range(len(leaf))):
                        self.order = torch.tensor(found)
                    return


def _order_of(given: Tensor, leaf: Tensor) -> list[int] | None:
    """Returns which row of `leaf` each row is; None if they are not the same rows.

    A step may truncate all rows to the longest sample's length. If rows are equal, as
    labels often are, only the batch's own order can be recognised.
    """
    if given.dtype != leaf.dtype or given.dim() != leaf.dim():
        return None
    if len(given) != len(leaf) or any(
        a > b for a, b in zip(given.shape, leaf.shape, strict=True)
    ):
        return None
    mine, theirs = _rows(given), _rows(leaf[tuple(map(slice, given.shape))])
    if mine == theirs:
        return list(range(len(leaf)))
    places = {row: number for number, row in enumerate(theirs)}
    if len(places) < len(theirs) or places.keys() != set(mine):
        return None
    return [places[row] for row in mine]


def _rows(tensor: Tensor) -> list[bytes]:
    flat = tensor.detach().cpu().reshape(len(tensor), -1).contiguous()
    return [row.tobytes() for row in flat.view(torch.uint8).numpy()]
