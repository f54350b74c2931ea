"""The graph that autograd makes of a computation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any


def nodes(begin: Iterable[Any], *, ends: Collection[str] = ()) -> Iterator[Any]:
    """Yields the nodes of a graph, each once; those before `ends` belong to others.

    Args:
        begin: where it begins: the `grad_fn` of tensors, None of those without one.
        ends: names of nodes that are not followed, nor yielded.
    """
    waiting, seen = list(begin), set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or (ends and node.name() in ends):
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]
