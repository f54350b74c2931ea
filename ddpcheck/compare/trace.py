"""A trace: the recorded tensors of a run in one file, which other processes map.

A trace is a folder entry pair: `NAME.bin` holds the bytes of all tensors, `NAME.idx`
has the position of each tensor. The folder is in shared memory, so that writing is a
memory copy and reading costs nothing until a page is touched; a trace that finds no
room there goes to a disk.
"""

from __future__ import annotations

import functools
import math
import mmap
import pickle
import shutil
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ddpcheck.compare import space

# Bytes of a trace that are looked at before they are released.
PART = 64 << 20
_ALIGN = 64
_BLOCK = 1 << 20  # bytes of two tensors that are read at once to compare them
_SMALL = 1 << 20  # bytes of a trace that stays mapped between jobs


@dataclass(frozen=True, slots=True)
class Entry:
    """The position of a tensor in the file; None for a gradient that is None."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


Key = tuple[str, int]  # (quantity, step), e.g. ("gradients", 0)


@dataclass(slots=True)
class Index:
    """Names of every (quantity, step), in recorded order, and what else is written.

    The writer of a trace types its `facts`: run/facts.py, diagnose/probes/evidence.py.
    """

    groups: dict[Key, dict[str, Entry | None]] = field(default_factory=dict)
    scale: dict[Key, float] = field(default_factory=dict)  # largest finite |x|
    has_nan: set[Key] = field(default_factory=set)
    has_infinity: set[Key] = field(default_factory=set)
    facts: Mapping[str, object] = field(default_factory=dict)


class Writer:
    """Writes a trace. Only a closed trace can be read, at `path`.

    Args:
        path: where it shall lie.
        overflow: the folder to which it moves where that has no room for it.
    """

    def __init__(self, path: Path, overflow: Path | None = None) -> None:
        self.path, self._overflow = path, overflow
        self._file = self._data.open("wb")
        self.index = Index()

    @property
    def _data(self) -> Path:
        return self.path.with_suffix(".bin")

    def add(
        self,
        quantity: str,
        step: int,
        named: Iterable[tuple[str, Tensor | None]],
        without_scale: AbstractSet[str] = frozenset(),
    ) -> None:
        """Appends tensors to the group (quantity, step).

        Those named in `without_scale` have no part in the group's scale.
        """
        group = self.index.groups.setdefault((quantity, step), {})
        scale = self.index.scale.get((quantity, step), 0.0)
        for name, tensor in named:
            if tensor is None:
                group[name] = None
                continue
            dense = as_dense(tensor)
            group[name] = self._append(dense)
            top = max_abs(dense)
            if not math.isfinite(top):
                self._note(quantity, step, dense)
                top = max_abs(dense[dense.isfinite()])
            if name not in without_scale:
                scale = max(scale, top)
        self.index.scale[(quantity, step)] = scale

    def _note(self, quantity: str, step: int, tensor: Tensor) -> None:
        """Notes NaN and infinity separately, as one may hide the other."""
        if bool(tensor.isnan().any()):
            self.index.has_nan.add((quantity, step))
        if bool(tensor.isinf().any()):
            self.index.has_infinity.add((quantity, step))

    def are_same(self, first: Key, second: Key, names: Iterable[str]) -> bool:
        """Returns whether two groups have bitwise equal tensors for all these names."""
        return not any(True for _ in self.differing(first, second, names))

    def differing(self, first: Key, second: Key, names: Iterable[str]) -> Iterator[str]:
        """Yields the names whose tensors differ bitwise between two groups."""
        self._file.flush()
        with self._data.open("rb") as file:
            for name in names:
                pair = [self.index.groups.get(k, {}).get(name) for k in (first, second)]
                if not _is_same(file, *pair):
                    yield name

    def close(self) -> None:
        """Writes the index; the trace is complete."""
        self._pad()
        self._file.close()
        part = self.path.with_suffix(".part")
        part.write_bytes(pickle.dumps(self.index))
        part.rename(self.path.with_suffix(".idx"))

    def discard(self) -> None:
        """Removes what was written."""
        self._file.close()
        self._data.unlink(missing_ok=True)

    def _append(self, tensor: Tensor) -> Entry:
        self._pad()
        if not space.has_room(self.path.parent, tensor.nbytes):
            self._move(tensor.nbytes)
        entry = Entry(self._file.tell(), tuple(tensor.shape), tensor.dtype)
        if tensor.numel():
            flat = tensor.contiguous().reshape(-1).view(torch.uint8)
            self._file.write(memoryview(flat.numpy()))  # type: ignore[arg-type]
        return entry

    def _move(self, more: int) -> None:
        """Continues in the overflow folder, with the data written so far."""
        places = [self.path.parent]
        if self._overflow is not None and self._overflow not in places:
            self._overflow.mkdir(mode=0o700, exist_ok=True)
            places.append(self._overflow)
        size = self._file.tell() + more
        space.check(places, size)
        self._file.close()
        before, self.path = self._data, places[-1] / self.path.name
        shutil.move(before, self._data)
        self._file = self._data.open("ab")

    def _pad(self) -> None:
        """Aligns the position, so that the file can be viewed as any dtype."""
        self._file.write(bytes(-self._file.tell() % _ALIGN))


def _is_same(file: BinaryIO, first: Entry | None, second: Entry | None) -> bool:
    """Returns whether two tensors of a file are bitwise equal, block by block."""
    if first is None or second is None:
        return first is second
    if first.nbytes != second.nbytes:
        return False
    for start in range(0, first.nbytes, _BLOCK):
        length = min(_BLOCK, first.nbytes - start)
        blocks = []
        for entry in (first, second):
            file.seek(entry.offset + start)
            blocks.append(file.read(length))
        if blocks[0] != blocks[1]:
            return False
    return True


def opened(path: Path) -> Reader:
    """Returns a reader; warm ranks read the same small trace job after job."""
    found = path.with_suffix(".bin").stat()
    if found.st_size > _SMALL:  # it would fill memory beyond its file's end
        return Reader(path)
    return _kept(path, found.st_ino, found.st_mtime_ns, found.st_size)


class Reader:
    """A closed trace, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.index = _index(path.with_suffix(".idx"))
        data = path.with_suffix(".bin")
        size = data.stat().st_size
        self.is_small = size <= _SMALL
        self._typed: dict[torch.dtype, Tensor] = {}
        self._map: mmap.mmap | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._read = 0  # bytes handed out since the last release
        self._made: dict[tuple[str, int, str], Tensor | None] = {}
        # What is made of a group for all comparisons with it; of a small trace alone.
        self.kept: dict[tuple[Any, ...], Any] = {}
        if size:
            with data.open("rb") as file:
                # Private and writable: torch warns of memory that it must not write.
                self._map = mmap.mmap(
                    file.fileno(),
                    size,
                    mmap.MAP_PRIVATE,
                    mmap.PROT_READ | mmap.PROT_WRITE,
                )
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def names(self, quantity: str, step: int) -> dict[str, Entry | None]:
        """Returns the group's entries, empty where nothing was recorded."""
        return self.index.groups.get((quantity, step), {})

    def find(self, quantity: str, step: int, name: str) -> Tensor | None:
        """Returns the same as `get`, None where the trace has no such tensor."""
        if name not in self.names(quantity, step):
            return None
        return self.get(quantity, step, name)

    def get(self, quantity: str, step: int, name: str) -> Tensor | None:
        """Returns a tensor that shares memory with the file, None for None.

        Raises:
            KeyError: the trace has no such tensor.
        """
        key = quantity, step, name
        if key in self._made:
            return self._made[key]
        entry = self.index.groups[(quantity, step)][name]
        made = None if entry is None else self._look_at(entry)
        if self.is_small:
            self._made[key] = made
        return made

    def _look_at(self, entry: Entry) -> Tensor:
        self._read += entry.nbytes
        whole = self._typed.get(entry.dtype)
        if whole is None:
            whole = self._typed[entry.dtype] = self._bytes.view(entry.dtype)
        return whole.as_strided(
            entry.shape, _strides(entry.shape), entry.offset // entry.dtype.itemsize
        )

    def release(self, above: int = -1) -> None:
        """Releases the mapped pages; they are read again when needed.

        What is mapped counts as this process's memory until then. Up to `above` bytes
        are left where they are.
        """
        if self._read <= above:
            return
        self._read = 0
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def differs(self, quantity: str, step: int, name: str, tensor: Tensor) -> bool:
        """Returns whether a tensor is not equal, bit by bit but for NaN and dtype.

        False where the trace has none of this name.
        """
        if name not in self.names(quantity, step):
            return False
        reference, mine = self.get(quantity, step, name), as_dense(tensor)
        if reference is None or reference.shape != mine.shape:
            return True
        mine = mine.to(reference.dtype)
        is_equal = torch.equal(reference, mine) or torch.equal(
            reference.nan_to_num(), mine.nan_to_num()
        )
        self.release(above=PART)
        return not is_equal

    def scale(self, quantity: str, step: int) -> float:
        """Returns the largest absolute value in the group, 0 for an empty one."""
        return self.index.scale.get((quantity, step), 0.0)


def _index(path: Path) -> Index:
    """Returns the index in a file; warm ranks read the same one job after job."""
    found = path.stat()
    return _unpickled(path, found.st_ino, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=2)
def _unpickled(path: Path, *_version: int) -> Index:
    index: Index = pickle.loads(path.read_bytes())  # noqa: S301 (our own file in a private folder)
    return index


@functools.lru_cache(maxsize=1)
def _kept(path: Path, *_version: int) -> Reader:
    return Reader(path)


@functools.lru_cache(maxsize=4096)
def _strides(shape: tuple[int, ...]) -> list[int]:
    """Returns the strides of a contiguous tensor, in elements."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, shape[dim + 1])
    return strides


def as_dense(tensor: Tensor) -> Tensor:
    """Returns the tensor detached, on the CPU, dense and real.

    A complex tensor becomes real with a last dimension of 2.
    """
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    elif plain.is_cpu and not plain.is_complex() and not plain.is_neg():
        return plain  # as nearly all are
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.resolve_neg().cpu()


def max_abs(tensor: Tensor) -> float:
    """Returns max |x|, 0 for an empty tensor, NaN where there is one."""
    if not tensor.numel():
        return 0.0
    if tensor.dtype == torch.bool:
        return float(tensor.any())
    if tensor.is_floating_point():
        low, high = torch.aminmax(tensor)
        if low != low:  # noqa: PLR0124 (NaN)
            return float("nan")
        return float(torch.maximum(high, -low))
    return float(tensor.to(torch.float64).abs().max())
