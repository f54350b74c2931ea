"""A process group of W ranks in one process, which answers no collective.

Code gets the rank and world size of a real rank; code that would communicate with other
ranks cannot be simulated and raises `NotSimulatedError`. The group is installed by
torch's registry of third-party backends
(https://docs.pytorch.org/docs/stable/distributed.html#third-party-backends), so that it
is found under every name by which user code has imported torch.distributed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch.distributed as dist

_BACKEND = "ddpcheck_simulated"
_COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "monitored_barrier",
    "send",
    "recv",
    "recv_anysource",
)


class NotSimulatedError(BaseException):
    """The target does something that one process cannot simulate, as named in the text.

    Not an Exception: code that catches errors of collectives and continues without them
    must not be taken for code without collectives.
    """


class _Group(dist.ProcessGroup):
    """The world as seen from the rank `at`."""

    def __init__(self, world_size: int) -> None:
        super().__init__(0, world_size)  # type: ignore[call-arg]  # a stub of its own
        self.at, self.world_size = 0, world_size

    def rank(self) -> int:
        """Returns the rank that this process plays now."""
        return self.at

    def size(self) -> int:
        """Returns the world size."""
        return self.world_size

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """Returns the name under which torch knows this group's kind."""
        return _BACKEND


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        words = name.strip("_").replace("_", " ")
        message = f"the target uses a collective of torch.distributed: {words}"
        raise NotSimulatedError(message)

    return refuse


for _name in _COLLECTIVES:
    setattr(_Group, _name, _refusing(_name))


class World:
    """Which of the W ranks this process plays."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.group = _Group(world_size)

    @property
    def rank(self) -> int:
        """The rank that user code sees; 0 at first."""
        return self.group.at

    @rank.setter
    def rank(self, rank: int) -> None:
        self.group.at = rank
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)


_WORLDS: list[World] = []  # the one in use


def _made(*_: Any) -> _Group:
    return _WORLDS[-1].group


@contextlib.contextmanager
def world_of(world_size: int) -> Iterator[World]:
    """Makes this process a rank of a default group until left.

    The caller restores the environment (`isolation.isolated`).
    """
    world = World(world_size)
    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _made, devices=["cpu", "cuda"])
    _WORLDS.append(world)
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(world_size)
    world.rank = 0
    dist.init_process_group(
        _BACKEND, store=dist.HashStore(), rank=0, world_size=world_size
    )
    try:
        yield world
    finally:
        dist.destroy_process_group()
        _WORLDS.remove(world)
