"""DDP's flag that leaves a backward unreduced: no_sync sets it, and so may user code.

`require_backward_grad_sync` is read by DDP's forward. A property stands in its place
for the length of a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.parallel import DistributedDataParallel

_NAME = "require_backward_grad_sync"
# Where the property reads it: what torch.compile of torch 2.9 makes of a property that
# looks up its own name is an endless recursion.
_READ = "ddpcheck_backward_grad_sync"


@contextlib.contextmanager
def watched(note: Callable[[str], None]) -> Iterator[None]:
    """Tells `note` of every change: "[" where it is taken away, "]" where it comes."""

    def change(ddp: Any, value: Any) -> None:
        if bool(vars(ddp).get(_NAME, True)) != bool(value):
            note("]" if value else "[")
        vars(ddp)[_NAME] = vars(ddp)[_READ] = value

    # In words that torch.compile of every torch takes.
    flag = property(lambda ddp: ddp.ddpcheck_backward_grad_sync, change)
    with _replaced(_READ, True), _replaced(_NAME, flag):
        yield


@contextlib.contextmanager
def held(*, is_set: bool) -> Iterator[None]:
    """Every backward is reduced, in no_sync as well; or none is, as within it."""

    def keep(ddp: Any, value: Any) -> None:
        vars(ddp)[_NAME] = value

    with _replaced(_NAME, property(lambda _: is_set, keep)):
        yield


@contextlib.contextmanager
def _replaced(name: str, value: Any) -> Iterator[None]:
    cls: Any = DistributedDataParallel
    before = vars(cls).get(name)
    setattr(cls, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(cls, name)
        else:
            setattr(cls, name, before)
