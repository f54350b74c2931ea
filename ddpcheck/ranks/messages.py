"""Messages between the pool and its ranks: small frozen dataclasses."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from ddpcheck.ranks.launch import Group

# Signals of the system, as of the out-of-memory killer, that targets do not send.
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A prefix in the store of the group, for the rendezvous of one set of ranks."""

    address: str
    port: int
    prefix: str
    timeout_s: float

    def store(self, *, is_master: bool = False) -> Any:
        """Returns the store; the master hosts it for all as long as it lives."""
        import torch.distributed as dist  # noqa: PLC0415 (the tool imports no torch)

        whole = dist.TCPStore(
            self.address,
            self.port,
            is_master=is_master,
            wait_for_workers=False,
            timeout=timedelta(seconds=self.timeout_s),
        )
        return dist.PrefixStore(self.prefix, whole)


def meeting_of(group: Group, name: str, timeout_s: float) -> Meeting:
    """Returns the rendezvous `name` of this group."""
    return Meeting(
        address=group.address,
        port=group.port,
        prefix=f"ddpcheck/{group.attempt}/{name}",
        timeout_s=timeout_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The place of a rank process: all that it needs before its first job.

    `world_size` 0 is a solo process without a process group.
    """

    rank: int
    world_size: int
    folder: str
    name: str  # unique in the session, names the rank's files
    timeout_s: float
    device: str = "cpu"
    # Of ranks on several machines: the store of their group, and their local ranks.
    meeting: Meeting | None = None
    local_rank: int | None = None
    local_world_size: int | None = None

    @property
    def local(self) -> tuple[int, int]:
        """Rank and number of ranks among those of the machine."""
        if self.local_rank is None or self.local_world_size is None:
            return self.rank, self.world_size
        return self.local_rank, self.local_world_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A function to call in every rank of a crew.

    `function` is "package.module:name"; it is called as
    `function(context, **arguments)` with a `worker.Context`. `files` are the arguments
    that name files in the pool's folder, by the path without its suffix: ranks on other
    machines get copies of them.
    """

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """An exception as data; exceptions themselves are never pickled."""

    type_name: str
    message: str
    stack: str
    where: str | None = None  # innermost frame of user code, "file.py:12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Rank to pool: `ready`, `unseated` (what raised before that), `done`, `raised`."""

    kind: Literal["ready", "unseated", "done", "raised"]
    payload: Any = None
    leftovers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnTimeout:
    """Progress: the target has given an exchange a deadline, and may go on after it."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How one job ended on one rank.

    `progress` is what it emitted, `value` what it returned. `leftovers` names what the
    job changed in the process and did not put back. A rank is unseated that was never
    ready: no code of the user's has run in it. One is hung at the deadline; stuck
    before it, in an exchange that cannot end; stopped, soon after another rank failed.
    """

    rank: int
    kind: Literal[
        "running", "done", "raised", "died", "hung", "stuck", "stopped", "unseated"
    ] = "running"
    value: Any = None
    progress: list[Any] = field(default_factory=list)
    raised: Raised | None = None
    exit_code: int | None = None
    stack: str = ""
    stderr: str = ""
    leftovers: tuple[str, ...] = ()

    @property
    def was_ended_from_outside(self) -> bool:
        """Whether the rank was killed, or had no time: by a machine under load."""
        return self.kind == "hung" or self.exit_code in _KILLED
