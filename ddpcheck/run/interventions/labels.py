"""The intervention OffsetLabels: labels count from the rank's first row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@contextlib.contextmanager
def offset_by_rank(
    rows: Callable[[], int], model: nn.Module, *, within: bool
) -> Iterator[None]:
    """Makes labels of the rank's own rows count on from those of the ranks before.

    A `torch.arange` of that length, from 0 by 1: the labels of a loss against gathered
    rows. Outside the model's forward, where no positions are counted, one of several
    rows per sample too. And the diagonal of a matrix of own rows by all ranks' rows, as
    `torch.eye` makes it, or as it is read.

    Args:
        rows: gives the number of samples on this rank.
        model: whose forward may count its own rows, to choose from each.
        within: whether those of its forward are labels, too.
    """
    depth = 0

    def enter(*_: object) -> None:
        nonlocal depth
        depth += 1

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    def has_labels(made: Tensor) -> bool:
        own = rows()
        return (
            own > 0
            and _counts(made)
            and (depth == 0 or (within and len(made) == own))
            and len(made) % own == 0
        )

    hooks = [
        nn.Module.register_forward_pre_hook(model, enter),
        nn.Module.register_forward_hook(model, leave, always_call=True),
    ]
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch, "arange", _counting_on(torch.arange, has_labels)),
        (torch, "eye", _eye(torch.eye, rows)),
        *(
            (owner, name, _diagonal(getattr(owner, name), rows))
            for owner in (torch, Tensor)
            for name in ("diag", "diagonal")
        ),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for owner, name, function in before:
            setattr(owner, name, function)


def _counts(made: Tensor) -> bool:
    """Returns whether these are whole numbers from 0, by 1."""
    return (
        made.dim() == 1
        and len(made) > 0
        and not made.is_floating_point()
        and int(made[0]) == 0
        and int(made[-1]) == len(made) - 1
    )


def _counting_on(plain: Any, has_labels: Callable[[Tensor], bool]) -> Any:
    def arange(*args: Any, **kwargs: Any) -> Any:
        made = plain(*args, **kwargs)
        return made + dist.get_rank() * len(made) if has_labels(made) else made

    return arange


def _eye(plain: Any, rows: Callable[[], int]) -> Any:
    def eye(n: int, m: int | None = None, **kwargs: Any) -> Any:
        if m is None or not _is_by_all(n, m, rows()):
            return plain(n, n if m is None else m, **kwargs)
        first = dist.get_rank() * n
        return plain(m, m, **kwargs)[first : first + n]

    return eye


def _diagonal(plain: Any, rows: Callable[[], int]) -> Any:
    def diagonal(matrix: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs or matrix.dim() != 2:  # noqa: PLR2004 (a batch of them)
            return plain(matrix, *args, **kwargs)
        n, m = matrix.shape
        return plain(matrix, dist.get_rank() * n if _is_by_all(n, m, rows()) else 0)

    return diagonal


def _is_by_all(n: int, m: int, own: int) -> bool:
    """Returns whether a matrix has a row of each own sample, a column of every one."""
    return own > 0 and n > 0 and n % own == 0 and m == n * dist.get_world_size()
