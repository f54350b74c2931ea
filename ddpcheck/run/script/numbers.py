"""The random numbers that a script draws itself, where no loader has its batches.

It makes a batch of such numbers, or takes its rows by them from an array. Given those
of all ranks, one after the other, a single process makes the global batch itself, with
all that its loss takes beside what the model is given.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddpcheck.errors import code_origin
from ddpcheck.run.process.replacing import replaced
from ddpcheck.run.script.calls import Calls
from ddpcheck.run.script.driver import Driver

# With a row for each sample, where they are data.
_FUNCTIONS = (
    "bernoulli",
    "multinomial",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
)

Take = Callable[[Tensor], Tensor]


def watch(driver: Driver, calls: Calls, take: Take) -> None:
    """Calls `take` with numbers that the script draws; it returns what these become.

    Not with those that it builds its model with, that the model draws when it is
    called, and that an evaluation draws.
    """

    def taken(drawn: Tensor) -> Tensor:
        is_data = drawn.dim() and driver.optimizers and torch.is_grad_enabled()
        return take(drawn) if is_data and not calls.is_within else drawn

    driver.enter(_watched(taken))


@contextlib.contextmanager
def _watched(take: Take) -> Iterator[None]:
    def watching(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(draw)
        def drawing(*args: object, **kwargs: object) -> Tensor:
            drawn = draw(*args, **kwargs)
            if torch.compiler.is_compiling():
                return drawn
            caller = sys._getframe(1).f_code.co_filename  # noqa: SLF001
            return take(drawn) if code_origin.is_users(caller) else drawn

        return drawing

    made = {name: watching(getattr(torch, name)) for name in _FUNCTIONS}
    with replaced(torch, **made):
        yield
