"""Micro-batches: a step that calls the model several times, each on some samples.

A rank's third micro-batch holds other samples than the reference's third. So what the
reference recorded per micro-batch is put together again, and a rank's part is taken
out of the whole by its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

# (quantity, key, the rank's tensor) -> the reference's
Recorded = Callable[[str, str, Tensor], Tensor | None]


def windows(rows: list[int], total: int) -> Windows:
    """Returns the micro-batches behind calls of the model on so many rows each."""
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


def picked(rows: list[int], shard_rows: list[int], found: Windows) -> Windows:
    """Returns the samples that a step leaves for the model, or `found` for all.

    Args:
        rows: of each call of the model in the single-process run.
        shard_rows: of each call on the first shard.
        found: what else the calls are.
    """
    if found.count > 1 or len(set(rows)) != 1 or len(set(shard_rows)) != 1:
        return found
    if not rows[0] % found.sizes[0]:
        return found
    return Windows(sizes=(rows[0],), picks=True) if shard_rows[0] < rows[0] else found


class Cursor:
    """Where a rank is in the samples; the calls of its model move it on.

    `rows`: (first sample, samples of the rank's tensors, samples in all), as of the
    shard at first. `sizes`: of its micro-batches so far.
    """

    def __init__(self, windows: Windows, start: int, rows: int, total: int) -> None:
        self._windows, self._next = windows, start
        self.rows, self.sizes = (start, rows, total), list[int]()

    def enter(self, args: Any, kwargs: Any, recorded: Recorded) -> None:
        """Moves on to the samples that the model is called with now."""
        if self._windows.count > 1:
            size = rows_of_call(args, kwargs)
            self.rows = (self._next, size, self.rows[2])
            self._next += size
            self.sizes.append(size)
        elif self._windows.picks:
            self._find(tensors_of((args, kwargs)), recorded)

    def rows_in(self, number: int) -> int:
        """Returns the samples of the rank's tensors in a micro-batch."""
        return self.sizes[number] if self.sizes else self.rows[1]

    def _find(self, given: Iterable[tuple[str, Tensor]], recorded: Recorded) -> None:
        """Finds the samples that the step left for the model by what they hold."""
        total = self._windows.sizes[0]
        near = self.rows[0] / self.rows[2] * total
        for path, mine in given:
            whole = recorded("inputs", key_of("", 0, path), mine)
            if whole is not None and mine.dim() and len(whole) == total:
                start = start_of(mine, whole, near)
                if start is not None:
                    self.rows = (start, len(mine), total)
                    return


def start_of(mine: Tensor, whole: Tensor, near: float) -> int | None:
    """Returns the row of `whole` at which these rows stand, the nearest to `near`."""
    if mine.shape[1:] != whole.shape[1:] or mine.dtype != whole.dtype:
        return None
    starts = range(len(whole) - len(mine) + 1)
    found = [s for s in starts if torch.equal(whole[s : s + len(mine)], mine)]
    return min(found, key=lambda s: abs(s - near), default=None)


def alike_padded(target: Target, batch: Any) -> Any:
    """Returns a batch whose rows have one length on ranks and in the reference.

    Where shapes alone tell what belongs together: micro-batches, and what is inside a
    forward that computes the loss. A loss of outputs is looked at as it is padded.
    """
    takes_outputs = target.loss is not None and target.train_step is None
    return batch if takes_outputs else tree.alike_padded(batch)


class RowCount:
    """Rows of every call of the model, for `windows`; attach to `Hooks`."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def before(
        self, name: str, _call: int, _module: Any, args: Any, kwargs: Any
    ) -> None:
        """Notes a call of the model itself."""
        if not name:
            self.rows.append(rows_of_call(args, kwargs))


def described(
    sizes: tuple[int, ...], start: int, targets: Any, names: Iterable[str]
) -> tuple[Micro, ...]:
    """Returns what each micro-batch of a process holds, nothing for a single one.

    `start` is the first sample of the process, `targets` what it counts in.
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


def rows_of_call(args: Any, kwargs: Any) -> int:
    """Returns dimension 0 of the first tensor that a call gets, 0 without one."""
    return next((len(t) for _, t in tensors_of((args, kwargs)) if t.dim()), 0)


def sample_dim(shape: tuple[int, ...], size: int) -> int | None:
    """Returns the dimension that holds `size` samples, or several values of each."""
    exact = [d for d, n in enumerate(shape) if n == size]
    several = [d for d, n in enumerate(shape) if n and size and n % size == 0]
    return next(iter(exact or several), None)


def shard_dim(value: Tensor, mine: tuple[int, ...], rows: int) -> int:
    """Returns the dimension of the samples: the one in which a shard is smaller.

    Args:
        value: of the whole.
        mine: shape of a shard's.
        rows: samples of the shard.
    """
    differ = (d for d in range(value.dim()) if value.shape[d] != mine[d])
    found = next(differ, None)
    return sample_dim(mine, rows) or 0 if found is None else found


def has_shard(
    windows: Windows,
    number: int,
    shape: tuple[int, ...],
    mine: tuple[int, ...],
    rows: int,
) -> bool:
    """Returns whether a shard's tensor is a part of a micro-batch's, or it of that.

    Args:
        windows: the micro-batches.
        number: of the micro-batch.
        shape: of its tensor.
        mine: shape of the shard's.
        rows: samples of the shard.
    """
    size = windows.size(number)
    if windows.count > 1 and mine == shape and size == rows:
        return sample_dim(mine, rows) is not None
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
    """Returns a tensor of the reference's trace, its micro-batches put together.

    Args:
        reader: of the trace.
        windows: the reference's micro-batches.
        quantity: of the tensor.
        key: of the tensor.
        mine: shape of a rank's tensor that a part of it is wanted for.
        rows: samples of the rank's tensor.
    """
    parts = [
        reader.get(quantity, number, key)
        for number in range(windows.count)
        if key in reader.names(quantity, number)
    ]
    if windows.count == 1 or not parts:
        return parts[0] if parts else None
    return whole(parts, windows.sizes, mine, rows)


def whole(
    parts: list[Tensor | None], sizes: tuple[int, ...], mine: tuple[int, ...], rows: int
) -> Tensor | None:
    """Returns the micro-batches' tensors as one, along the dimension of the samples.

    Args:
        parts: one tensor per micro-batch, None for one without gradient.
        sizes: samples per micro-batch.
        mine: shape of a rank's tensor that a part of the whole is wanted for.
        rows: samples of the rank's tensor.

    Special values: None where nothing was recorded; the first part where no dimension
    holds samples.
    """
    known = [(p, n) for p, n in zip(parts, sizes, strict=False) if p is not None]
    if not known:
        return None
    first, size = known[0]
    if len(parts) < len(sizes):
        return first
    dims = [
        d
        for d, n in enumerate(first.shape)
        if first.dim() == len(mine)
        and n * rows == mine[d] * size
        and _others(first.shape, d) == _others(mine, d)
    ]
    if not dims:
        return first
    # Where a micro-batch is as large as the rank's, all dimensions seem to fit.
    dim = next((d for d in dims if first.shape[d] % size == 0), dims[0])
    if any(_others(p.shape, dim) != _others(mine, dim) for p, _ in known):
        return None  # filled up to another length each

    def nothing(samples: int) -> Tensor:
        shape = list(first.shape)
        shape[dim] = shape[dim] * samples // size
        return first.new_zeros(shape)

    filled = [nothing(n) if p is None else p for p, n in zip(parts, sizes, strict=True)]
    return torch.cat(filled, dim=dim)


def _others(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def order_of_calls(
    model: nn.Module, batch: Any, step: Callable[[Hooks], object]
) -> tuple[list[int], Tensor | None]:
    """Returns the rows of each call of the model, and the order of the batch in them.

    Args:
        model: that the step calls.
        batch: that the step is given.
        step: does it under hooks.
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

    `order`: numbers of the batch's rows, None where it is the batch's own, or unknown.
    """

    def __init__(self, batch: Any) -> None:
        self._leaves = [t for t in tree.held(batch) if t.dim() and len(t) > 1]
        self._is_known = any(True for _ in tree.lists(batch))  # these stay as they are
        self.order: Tensor | None = None

    def before(
        self, _name: str, _call: int, _module: Any, args: Any, kwargs: Any
    ) -> None:
        """Looks at what a module is given, until rows of the batch are recognised."""
        for _, given in tensors_of((args, kwargs)):
            for leaf in () if self._is_known else self._leaves:
                found = _order_of(given, leaf)
                if found is not None:
                    self._is_known = True
                    if found != list(range(len(leaf))):
                        self.order = torch.tensor(found)
                    return


def _order_of(given: Tensor, leaf: Tensor) -> list[int] | None:
    """Returns which rows of `leaf` these are, each once; None where they are not.

    A step may cut off the end of all rows, which no sample of the batch needs. Equal
    rows, as labels are, tell no other order than the batch's own.
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
