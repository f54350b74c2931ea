"""What the tool and its ranks send each other: seats, jobs, outcomes, progress.

Messages are small frozen dataclasses. Progress events are in a file that outlives the
rank, its journal: a message per step would wake the tool while the ranks work, on the
cores that they need. Writing to the file costs a write to shared memory; the tool reads
it once, when the job has ended.

Pauses are files, too. torch imports its compiler in the middle of a forward, which
takes seconds when several ranks do it on few cores, and does not count as time of the
job. A file next to the rank's log shows a pause that lasts, another one that has ended.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rank of this process in the group, and the address of the group's store.

    `local_rank` and `local_world_size` count the processes of one machine. `attempt`
    is torchrun's count of restarts: each uses other names in the store.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    address: str
    port: int
    attempt: str = "0"
    has_store: bool = False  # the launcher holds the store; else rank 0 does

    @property
    def is_one_machine(self) -> bool:
        """Whether all processes are on this machine."""
        return self.local_world_size == self.world_size


def launched_group(environment: Mapping[str, str]) -> Group | None:
    """Returns the group that the environment variables describe, None for none.

    A group of one process counts as none, and so do variables with impossible values:
    then ddpcheck starts its own ranks.

    *Source*: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment
    Variables".
    """
    if any(not environment.get(name) for name in _NEEDED):
        return None
    try:
        rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        port = int(environment["MASTER_PORT"])
        local_rank = int(environment.get("LOCAL_RANK") or 0)
        local_world_size = int(environment.get("LOCAL_WORLD_SIZE") or 1)
    except ValueError:
        return None
    if not 0 <= rank < world_size or world_size == 1:
        return None
    return Group(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        address=environment["MASTER_ADDR"],
        port=port,
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT") or "0",
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def unusable_group(environment: Mapping[str, str]) -> str:
    """Returns the variables of an impossible group as text; "" for none."""
    found = {name: environment.get(name) for name in _NEEDED}
    if (
        not all(found.values())
        or found["WORLD_SIZE"] == "1"
        or launched_group(environment)
    ):
        return ""
    return ", ".join(f"{name}={value}" for name, value in found.items())


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


class Journal:
    """Writes progress events, in the rank."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._owner = os.getpid()

    def clear(self) -> None:
        """Removes the events of the last job."""
        os.ftruncate(self._descriptor, 0)

    def write(self, value: Any) -> None:
        """Appends a value, which a reader sees as soon as this returns.

        In a child that user code forked and that runs on as the rank, exits.
        """
        if os.getpid() != self._owner:
            os._exit(0)
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        while data:
            data = data[os.write(self._descriptor, data) :]


def read_journal(path: Path) -> list[Any]:
    """Returns the values written, without one that is incomplete as the rank died."""
    values: list[Any] = []
    with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
        stream = io.BytesIO(path.read_bytes())
        end = stream.getbuffer().nbytes
        while stream.tell() < end:
            values.append(pickle.load(stream))  # noqa: S301 (our own rank wrote it)
    return values


_PAUSED, _PAUSE_ENDED = ".pause", ".paused"

_pause_file: Path | None = None  # set in a rank process


def set_pause_file(path: Path) -> None:
    """Sets the path, up to its suffix, of the files that show pauses."""
    global _pause_file  # noqa: PLW0603 (a process is one rank)
    _pause_file = path.with_suffix(_PAUSED)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Marks the import inside the context as a pause."""
    if _pause_file is None:
        yield
        return
    with contextlib.suppress(OSError):
        _pause_file.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _pause_file.rename(_pause_file.with_suffix(_PAUSE_ENDED))


def take_pauses(folder: Path, prefix: str) -> tuple[bool, bool]:
    """Returns whether a rank pauses, and whether one has since the last call.

    Args:
        folder: where the ranks keep their files.
        prefix: of the file names of a crew's ranks.
    """
    ended = list(folder.glob(f"{prefix}-*{_PAUSE_ENDED}"))
    for path in ended:
        path.unlink(missing_ok=True)
    return any(folder.glob(f"{prefix}-*{_PAUSED}")), bool(ended)
