"""Nested values with tensors inside: finding, replacing and slicing the tensors.

Model outputs come as tensors, tuples, dicts, named tuples, dataclasses, and library
classes derived from these (Hugging Face's ModelOutput is an OrderedDict and a
dataclass). `torch.utils._pytree` knows only what was registered with it, so the walk
follows the structure. Anything else is opaque: left as it is, and named by `opaque`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

# What a model takes as keyword arguments; BatchEncoding of transformers is a UserDict.
DICTS = (dict, UserDict)

# Layouts of which no rows can be looked at in place.
_SPARSE = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)
_PLAIN_KINDS = frozenset(_PLAIN)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Collated:
    """A batch that `make` made of samples: rows of it are made of theirs.

    The walk sees what was made, as if it were that.
    """

    samples: list[Any]
    make: Callable[[list[Any]], Any]
    made: Any

    @classmethod
    def of(cls, samples: list[Any], make: Callable[[list[Any]], Any]) -> Collated:
        """Returns the batch of these samples."""
        return cls(samples, make, make(samples))

    def rows(self, which: slice | Tensor) -> Collated:
        """Returns the batch of some of the samples, in the order that is given."""
        if isinstance(which, slice):
            chosen = self.samples[which]
        else:
            chosen = [self.samples[number] for number in which.tolist()]
        if chosen or not self.samples:
            return Collated.of(chosen, self.make)
        # All that one sample makes is its own: without it nothing is left.
        one = self.make(self.samples[:1])
        return Collated([], self.make, rows(one, slice(0)))

    def mapped(self, function: Callable[[Any], Any]) -> Collated:
        """Returns the batch with a function applied to what is made, now and later."""
        make = self.make
        return Collated(
            self.samples, lambda some: function(make(some)), function(self.made)
        )


def contents(value: Any) -> Any:
    """Returns what was made of samples, any other value as it is."""
    return value.made if isinstance(value, Collated) else value


def alike_padded(value: Any) -> Any:
    """Returns what was made of samples, if every tensor of it has a row for each.

    Its rows are padded alike, in whatever batch they are. Any other value as it is.
    """
    size = num_samples(value)
    has_rows = all(len(t) == size for t in held(value) if t.ndim)
    return contents(value) if has_rows else value


def num_samples(value: Any) -> int | None:
    """Returns of how many samples a batch was made, None if that is unknown.

    Of several batches, which a dict has: the number of samples of each.
    """
    if isinstance(value, Collated):
        return len(value.samples)
    parts = list(value.values()) if type(value) is dict else []
    if not all(isinstance(part, Collated) for part in parts):
        return None
    sizes = {len(part.samples) for part in parts}
    return sizes.pop() if len(sizes) == 1 else None


def tensors(
    value: Any, path: str = "", *, skip: tuple[type, ...] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yields (path, tensor) in a fixed order; paths look like "logits" or "1.boxes".

    What is of a kind in `skip` is not looked into.
    """
    value = contents(value)
    if isinstance(value, Tensor):
        yield path, value
    elif not isinstance(value, skip):
        for key, child in _children(value):
            inner = f"{path}.{key}" if path else str(key)
            yield from tensors(child, inner, skip=skip)


def held(value: Any) -> list[Tensor]:
    """Returns the tensors of `tensors`, without their paths: several times as fast."""
    found: list[Tensor] = []
    _add_held(contents(value), found)
    return found


def _add_held(value: Any, found: list[Tensor]) -> None:
    kind = type(value)
    if kind in _PLAIN_KINDS:
        return
    if isinstance(value, Tensor):
        found.append(value)
    elif kind is Collated:
        _add_held(value.made, found)
    elif kind is tuple or kind is list:
        for child in value:
            _add_held(child, found)
    elif kind is dict:
        for child in value.values():
            _add_held(child, found)
    else:
        for _, child in _children(value):
            _add_held(child, found)


def opaque(value: Any) -> Iterator[str]:
    """Yields the type names of values that the walk cannot look into."""
    for _, leaf in leaves(value):
        yield type(leaf).__name__


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, value) of all that is opaque."""
    value = contents(value)
    if isinstance(value, (Tensor, *_PLAIN)):
        return
    if not is_container(value):
        yield path, value
    for key, child in _children(value):
        yield from leaves(child, f"{path}.{key}" if path else str(key))


def lists(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Yields (path, list) of all lists, outer ones first."""
    value = contents(value)
    if isinstance(value, list):
        yield path, value
    for key, child in _children(value):
        yield from lists(child, f"{path}.{key}" if path else str(key))


def cut_lists(value: Any, paths: Collection[str], rows: slice) -> Any:
    """Returns the same structure with these lists cut."""
    return change_at(value, paths, lambda items: items[rows])


def is_below(path: str, outers: Collection[str]) -> bool:
    """Returns whether a path leads into one of these, "" being the whole value."""
    return any(not outer or path.startswith(f"{outer}.") for outer in outers)


def change_at(
    value: Any, paths: Collection[str], change: Callable[[Any], Any], path: str = ""
) -> Any:
    """Returns the same structure with what is at these paths changed."""
    if path in paths:
        return change(value)
    if not is_container(value):
        return value
    new = {
        key: change_at(child, paths, change, f"{path}.{key}" if path else str(key))
        for key, child in _children(value)
    }
    return _rebuild(value, new)


def batch_name(path: str) -> str:
    """Returns the path of a batch's part as users call it: "inputs.1", "targets"."""
    root, _, rest = path.partition(".")
    part = {"0": "inputs", "1": "targets"}.get(root, root)
    return f"{part}.{rest}" if rest else part


def replace(value: Any, function: Callable[[str, Tensor], Any], path: str = "") -> Any:
    """Returns the same structure with every tensor replaced by `function(path, t)`.

    Of samples, too: with them their batch is made anew, and then changed.
    """
    if isinstance(value, Collated):
        return value.mapped(lambda made: replace(made, function, path))
    if isinstance(value, Tensor):
        return function(path, value)
    if not is_container(value):
        return value
    new = {
        key: replace(child, function, f"{path}.{key}" if path else str(key))
        for key, child in _children(value)
    }
    return _rebuild(value, new)


def shard(value: Any, rank: int, world_size: int) -> Any:
    """Returns the rank's rows of every tensor: contiguous, as `torch.tensor_split`.

    0-dimensional tensors are the same on every rank.
    """

    def own(size: int) -> slice:
        start, count = shard_range(size, rank, world_size)
        return slice(start, start + count)

    return _taken(value, own)


def rows(value: Any, which: slice | Tensor) -> Any:
    """Returns the same rows of every tensor, a slice of them or by number.

    Of a batch that was made of samples: the batch of these samples.
    """
    return _taken(value, lambda _: which)


def _taken(value: Any, which: Callable[[int], slice | Tensor]) -> Any:
    """Returns the rows that `which` gives for their number, of all that has rows."""
    if isinstance(value, Collated):
        return value.rows(which(len(value.samples)))
    if isinstance(value, Tensor):
        return rows_of(value, which(len(value))) if value.ndim else value
    if not is_container(value):
        return value
    return _rebuild(value, {k: _taken(child, which) for k, child in _children(value)})


def rows_of(tensor: Tensor, which: slice | Tensor) -> Tensor:
    """Returns rows of a tensor, a slice of them or by number, in its own layout.

    A view where that can be; those of sparse tensors are copies.
    """
    if tensor.layout not in _SPARSE:
        return tensor[which]
    if isinstance(which, slice):
        which = torch.arange(len(tensor))[which]
    which = which.to(tensor.device)
    if tensor.layout != torch.sparse_coo:
        coordinates = tensor.to_sparse(layout=torch.sparse_coo).index_select(0, which)
        return coordinates.to_sparse(layout=tensor.layout)
    found = tensor.index_select(0, which)
    return found.coalesce() if tensor.is_coalesced() else found


def dense(tensor: Tensor) -> Tensor:
    """Returns the values of a sparse tensor in all places; others as they are."""
    return tensor.to_dense() if tensor.layout in _SPARSE else tensor


def strided_shard(value: Any, rank: int, world_size: int) -> Any:
    """Returns a rank's part as a strided sampler deals it: rows r, r + W, r + 2 W."""
    return rows(value, slice(rank, None, world_size))


def shard_range(num_samples: int, rank: int, world_size: int) -> tuple[int, int]:
    """Returns (start, size) of a rank's shard.

    >>> [shard_range(8, r, 3) for r in range(3)]
    [(0, 3), (3, 3), (6, 2)]
    """
    size, extra = divmod(num_samples, world_size)
    start = rank * size + min(rank, extra)
    return start, size + (1 if rank < extra else 0)


def permute(value: Any, order: Tensor) -> Any:
    """Returns the value with the rows of every tensor in another order."""
    return rows(value, order)


def zipped(values: list[Any], function: Callable[[list[Any]], Any]) -> Any:
    """Returns the first container, each child by `function` of all their children."""
    every = [dict(_children(contents(value))) for value in values]
    new = {key: function([one[key] for one in every]) for key in every[0]}
    return _rebuild(contents(values[0]), new)


def is_container(value: Any) -> bool:
    """Returns whether the walk looks into a value."""
    if isinstance(value, Mapping | list | tuple):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return []


def _rebuild(value: Any, new: dict[Any, Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        kind: Any = type(value)
        return kind._make(new.values())  # its own __new__ may take other names
    if isinstance(value, list | tuple) and not isinstance(value, Mapping):
        items = list(new.values())
        kind = type(value)
        return kind(items) if kind in (list, tuple) else _construct(value, items)
    if type(value) is dict:
        return new
    clone = copy.copy(value)
    for key, child in new.items():
        if isinstance(clone, Mapping):
            clone[key] = child  # type: ignore[index]
        else:
            object.__setattr__(clone, key, child)
    return clone


def _construct(value: Any, items: list[Any]) -> Any:
    """Subclasses of list and tuple (torch.Size, namedtuple-like) by their own type."""
    try:
        return type(value)(items)
    except TypeError:
        return tuple(items) if isinstance(value, tuple) else items
