"""What a context replaces in torch and elsewhere, and puts back at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

_MISSING = object()


def replaced(owner: Any, **values: Any) -> contextlib.AbstractContextManager[None]:
    """Sets attributes of a module or a class within the context."""
    return all_replaced({(owner, name): value for name, value in values.items()})


@contextlib.contextmanager
def all_replaced(values: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Sets attributes, given by (owner, name), within the context.

    One that the owner inherits is inherited again afterwards.
    """
    before = {(o, name): vars(o).get(name, _MISSING) for o, name in values}
    for (owner, name), value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in before.items():
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


@contextlib.contextmanager
def hooked(*handles: Any) -> Iterator[None]:
    """Removes hooks at the end, given by the handles that torch returned for them."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def functions_run_by(
    run: Callable[..., Any],
) -> contextlib.AbstractContextManager[None]:
    """Makes every autograd function run by `run(apply, cls, *args, **kwargs)`."""
    base = torch.autograd.Function
    plain: Any = base.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return run(plain.__get__(None, cls), cls, *args, **kwargs)

    return replaced(base, apply=classmethod(apply))
