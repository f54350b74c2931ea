"""Outputs that are lists with an item per sample: whose sample an item is.

A detector returns a list with a dictionary of boxes for each image. A rank's list has
an item for each sample of its shard: its first is another one of one process's list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator


def of_samples(
    mine: Iterable[str], theirs: Iterable[str], rows: tuple[int, int, int]
) -> set[str]:
    """Returns the paths of the lists that hold an item per sample, "" for the root.

    Args:
        mine: paths of the tensors in a rank's output, as `tree.tensors` has them.
        theirs: of those in one process's.
        rows: (first sample, samples of the shard, samples in all).
    """
    _, size, total = rows
    if size == total:
        return set()
    own = _lengths(mine)
    if size not in own.values():
        return set()
    whole = _lengths(theirs)
    return {path for path, n in own.items() if n == size and whole.get(path) == total}


def counterparts(
    mine: Collection[str], theirs: Iterable[str], rows: tuple[int, int, int]
) -> dict[str, str]:
    """Returns, by path of a rank's tensor in such a list, that of one process's.

    Args are those of `of_samples`.
    """
    lists = of_samples(mine, theirs, rows)
    if not lists:
        return {}
    moved = {path: _moved(path, lists, rows[0]) for path in mine}
    return {path: other for path, other in moved.items() if other is not None}


def _lengths(paths: Iterable[str]) -> dict[str, int]:
    """Returns how many items every list has, by its path."""
    items: dict[str, set[int]] = {}
    for path in paths:
        for outer, part in _steps(path):
            if part.isdigit():
                items.setdefault(outer, set()).add(int(part))
    return {path: len(n) for path, n in items.items() if max(n) == len(n) - 1}


def _moved(path: str, lists: set[str], start: int) -> str | None:
    parts = [
        str(int(part) + start) if outer in lists and part.isdigit() else part
        for outer, part in _steps(path)
    ]
    is_within = any(outer in lists for outer, _ in _steps(path))
    return ".".join(parts) if is_within else None


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Yields (path of what holds it, name) of every part of a path."""
    parts = path.split(".")
    for number, part in enumerate(parts):
        yield ".".join(parts[:number]), part
