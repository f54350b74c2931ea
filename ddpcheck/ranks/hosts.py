"""The other processes of a given group, as rank 0 sees them.

Each of them holds one rank of the crew that is as large as the group: its fork server
makes the rank process, and what the crew says to that rank goes through it. User code
runs in rank processes only, here as there, and the engine is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from ddpcheck.errors.problem import Problem
from ddpcheck.ranks import wire
from ddpcheck.ranks.launch import Group
from ddpcheck.ranks.messages import Job, Message, Seat
from ddpcheck.ranks.wire import Meeting

_CHUNK = 4 << 20
# The processes at the other end run no user code: they answer at once or not at all.
_ANSWER_S = 30.0
_TOO_LATE_S = 1.0
_LEAVE_S = 30.0  # a process may still be importing torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a process of the group says first.

    `identity` is what must be the same everywhere; `folder` is where it keeps files.
    `problem` is a usage error there, `trouble` any other reason (message, detail).
    """

    rank: int
    machine: str = ""
    local_rank: int = 0
    local_world_size: int = 1
    folder: str = ""
    identity: dict[str, str] = field(default_factory=dict)
    problem: Problem | None = None
    trouble: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process tells that its rank has ended a job: with a message, or for good."""

    name: str  # of the seat
    is_reply: bool = False
    message: Message | None = None
    exit_code: int | None = None
    stack: str = ""
    progress: list[Any] = field(default_factory=list)
    stderr: str = ""


class Announce(Protocol):
    """Puts rank 0's address into the store of the group."""

    def __call__(self, meeting: Meeting, value: bytes, *, is_master: bool) -> None:
        """As `wire.announce`."""


class LostRankError(Exception):
    """A process of the group did not come, or has gone."""


class Hosts:
    """All processes of the group but rank 0. A resource: call `release`."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._door: wire.Door | None = None
        self.hosts: dict[int, Host] = {}
        self._lost = ""
        self._late_s = _LEAVE_S

    @property
    def world_size(self) -> int:
        """Ranks in the group."""
        return self.group.world_size

    def open(self, announce: Announce, timeout_s: float) -> None:
        """Makes known where rank 0 is to be found.

        Args:
            announce: `wire.announce`, here or in a process that has torch.
            timeout_s: for the store of the group.

        Raises:
            OSError, RuntimeError: what `announce` raises.
        """
        door = wire.Door(self.group)
        try:
            announce(
                wire.meeting(self.group, "tool", timeout_s),
                door.announcement,
                is_master=not self.group.has_store,
            )
        except BaseException:
            door.close()
            raise
        self._door = door

    @property
    def is_open(self) -> bool:
        """Whether the others can find rank 0."""
        return self._door is not None

    def gather(self, folder: Path, connect_s: float, import_s: float) -> list[Hello]:
        """Waits for all processes; returns their hellos by rank.

        Args:
            folder: of rank 0's files.
            connect_s: deadline of the first sign of life.
            import_s: deadline of their imports after it.

        Raises:
            LostRankError: one did not come in time.
        """
        assert self._door is not None
        self._late_s = _TOO_LATE_S  # whoever has not come now will not
        came = [c for c in self._let_in(time.monotonic() + connect_s) if c is not None]
        deadline = time.monotonic() + import_s
        hellos = [h for c in came if (h := self._greet(c, deadline)) is not None]
        missing = sorted({*range(1, self.world_size)} - {h.rank for h in hellos})
        if missing and not any(h.problem or h.trouble for h in hellos):
            ranks = ", ".join(map(str, missing))
            message = (
                f"{len(missing)} of the {self.world_size} processes of the group did "
                f"not come within {connect_s:g} s: rank {ranks}"
            )
            raise LostRankError(message)
        places: dict[str, Host | None] = {str(folder): None}
        hellos.sort(key=lambda h: h.rank)
        for hello in hellos:
            if not (hello.problem or hello.trouble):
                self.hosts[hello.rank].find_place(places)
        return hellos

    def _let_in(self, deadline: float) -> list[Connection | None]:
        assert self._door is not None
        return [self._door.let_in(deadline) for _ in range(1, self.world_size)]

    def _greet(self, connection: Connection, deadline: float) -> Hello | None:
        hello = wire.receive(connection, deadline)
        if not isinstance(hello, Hello):
            connection.close()
            return None
        wire.limit_waits(connection, _ANSWER_S)
        self.hosts[hello.rank] = Host(connection, hello, self._lose)
        return hello

    def rank(self, seat: Seat) -> RemoteRank:
        """Returns the rank of this seat, made where its process is."""
        return RemoteRank(self.hosts[seat.rank], seat)

    def seats(self, seats: list[Seat], crew: str) -> list[Seat]:
        """Returns the seats of a crew, each with its machine and where all meet."""
        meeting = wire.meeting(self.group, crew, 2 * seats[0].timeout_s)
        locals_ = [(self.group.local_rank, self.group.local_world_size)]
        locals_ += [
            (self.hosts[r].hello.local_rank, self.hosts[r].hello.local_world_size)
            for r in range(1, self.world_size)
        ]
        return [
            replace(
                seat,
                meeting=meeting,
                local_rank=local_rank,
                local_world_size=local_world_size,
            )
            for seat, (local_rank, local_world_size) in zip(seats, locals_, strict=True)
        ]

    def check(self) -> None:
        """Raises when a process has gone: its rank will not come back.

        Raises:
            LostRankError: with the rank and its machine.
        """
        if self._lost:
            raise LostRankError(self._lost)

    def _lose(self, host: Host) -> None:
        where = f"rank {host.hello.rank} on {host.hello.machine}"
        self._lost = self._lost or f"the process of {where} has gone"

    def release(self, exit_code: int) -> None:
        """Lets all processes end with this exit code, those too that still come."""
        if self._door is None:
            return
        deadline = time.monotonic() + _LEAVE_S
        waiting = [host.connection for host in self.hosts.values() if not host.gone]
        late = self.world_size - 1 - len(self.hosts)
        until = time.monotonic() + self._late_s
        waiting += [c for c in (self._door.let_in(until) for _ in range(late)) if c]
        for connection in waiting:
            wire.send(connection, ("end", exit_code))
        for connection in waiting:
            while wire.receive(connection, deadline) is not None:
                pass  # it hangs up when it has put everything away
            connection.close()
        self._door.close()
        self._door = None


class Host:
    """One process of the group."""

    def __init__(
        self, connection: Connection, hello: Hello, on_loss: Callable[[Host], None]
    ) -> None:
        self.connection, self.hello = connection, hello
        self.gone = False
        self._on_loss = on_loss
        self._replies: list[Any] = []
        self._ended: dict[str, Ended] = {}
        # Where it finds rank 0's files; None: it sees rank 0's folder.
        self.owner: Host | None = self
        self._sent: dict[str, Path] = {}  # by name, where it is now

    def tell(self, *message: Any) -> None:
        """Sends a message; one who does not take it in time has gone."""
        if self.gone:
            return
        try:
            self.connection.send(message)
        except OSError:
            self._lose()

    def ask(self, *message: Any) -> Any:
        """Returns the answer to a message, None where none comes."""
        self.tell(*message)
        deadline = time.monotonic() + _ANSWER_S
        while not self.gone and not self._replies:
            self._sort(wire.receive(self.connection, deadline))
        return self._replies.pop(0) if self._replies else None

    def take_in(self) -> None:
        """Takes in all that has arrived."""
        try:
            while not self.gone and self.connection.poll():
                self._sort(wire.receive(self.connection))
        except OSError:
            self._lose()

    def _sort(self, message: Any) -> None:
        if message is None:
            self._lose()
        elif isinstance(message, Ended) and not message.is_reply:
            self._ended[message.name] = message
        else:
            self._replies.append(message)

    def ended(self, name: str) -> Ended | None:
        """Returns what ended the last job of a seat, once."""
        return self._ended.pop(name, None)

    def find_place(self, places: dict[str, Host | None]) -> None:
        """Finds out whose folder it sees; its own is a place where it sees none.

        Processes of one machine so share the copy that the first of them was sent.

        Args:
            places: folder -> who writes there, None for rank 0 itself.
        """
        seen = self.ask("sees", list(places))
        if seen in places:
            self.owner = places[seen]
        else:
            places[self.hello.folder] = self

    def place(self, path: str) -> str:
        """Returns where this process sees the files `path.*` of rank 0."""
        return path if self.owner is None else self.owner.put(Path(path))

    def put(self, path: Path) -> str:
        """Sends the files `path.*` once; returns where they are now."""
        if path.name not in self._sent:
            files = sorted(path.parent.glob(f"{path.name}.*"))
            # None from one who has gone: nothing is written there any more.
            folder = self.ask("place", sum(file.stat().st_size for file in files))
            self._sent[path.name] = place = Path(folder or self.hello.folder)
            for file in files:
                with file.open("rb") as stream:
                    while chunk := stream.read(_CHUNK):
                        self.tell("file", str(place / file.name), chunk)
            self.ask("written")
        return str(self._sent[path.name] / path.name)

    def _lose(self) -> None:
        self.gone = True
        self.connection.close()
        self._on_loss(self)


class RemoteRank:
    """A rank that another process of the group made; a `ddpcheck.ranks.rank.Rank`."""

    tells_when_ready = False

    def __init__(self, host: Host, seat: Seat) -> None:
        self._host, self._name = host, seat.name
        self._last = Ended(name=seat.name)
        self._is_alive = True
        host.tell("open", seat)

    def send(self, job: Job | None) -> None:
        """Sends a job, and the files that it names."""
        if job is None:
            return  # it leaves when its process does
        places = {name: self._host.place(job.arguments[name]) for name in job.files}
        self._host.tell(
            "job", self._name, replace(job, arguments={**job.arguments, **places})
        )

    def handles(self) -> list[Any]:
        """Returns the connection with its process."""
        return [] if self._host.gone else [self._host.connection]

    def next_message(self) -> Message | None:
        """Returns what ended the job."""
        self._host.take_in()
        ended = self._host.ended(self._name)
        if ended is None:
            return None
        self._last, self._is_alive = ended, ended.message is not None
        return ended.message

    def is_alive(self) -> bool:
        """Returns whether its process has not told of its end."""
        return self._is_alive and not self._host.gone

    @property
    def pid(self) -> int | None:
        """None: it is of no use here."""
        return None

    @property
    def exit_code(self) -> int | None:
        """As its process has told."""
        return self._last.exit_code

    def ask_stack(self) -> None:
        """Makes it write its stack."""
        self._host.tell("ask_stack", self._name)

    def stack(self, deadline: float) -> str:  # noqa: ARG002 (its process has its own)
        """Returns its stack; takes in all else that there is to know of its job."""
        told = self._host.ask("stack", self._name)
        if isinstance(told, Ended):
            self._last = told
        return self._last.stack

    def stack_so_far(self) -> str:
        """Returns what came with its end."""
        return self._last.stack

    def progress(self) -> list[Any]:
        """Returns what came with the end of the job."""
        return self._last.progress

    def stderr(self) -> str:
        """Returns what came with the end of the job."""
        return self._last.stderr

    def kill(self) -> None:
        """Lets its process kill it."""
        self._host.tell("kill", self._name)

    def reap(self) -> None:
        """Nothing to do here: its process does."""
