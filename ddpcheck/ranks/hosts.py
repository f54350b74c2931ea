"""The other processes of a launcher's group, and rank 0's connections with them.

Each of them holds one rank of the crew that is as large as the group: its fork server
starts the rank process, and it forwards what the crew sends to that rank. User code
runs in rank processes only, on every machine.

A connection is a stream of pickles over TCP. Both ends prove that they know a key,
which is in the launcher's store: whoever can reach that store can run code in the group
anyway.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Connection,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from typing import Any, Protocol

from ddpcheck.errors.problem import Problem
from ddpcheck.ranks.messages import Group, Job, Meeting, Message, Seat, meeting_of

_KEY = "meeting"
_LOOPBACK = "127.0.0.1"
# A machine that lost its power sends nothing; the kernel notices after 90 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
_GREETING_S = 10.0  # a stranger on the port has this long to prove the key


_stores: list[Any] = []  # the master's store lives as long as this refers to it


def announce(meeting: Meeting, value: bytes, *, is_master: bool) -> None:
    """Puts the address of rank 0 into the store; imports torch.

    Raises:
        RuntimeError: the store cannot be reached or created.
    """
    store = meeting.store(is_master=is_master)
    store.set(_KEY, value)
    _stores.append(store)


def look_up(meeting: Meeting) -> bytes:
    """Waits for the announced address and returns it; imports torch.

    Raises:
        RuntimeError: not in time.
    """
    return bytes(meeting.store().get(_KEY))


def announce_job(context: object, **arguments: Any) -> None:  # noqa: ARG001
    """Calls `announce` in a rank, which has imported torch."""
    announce(**arguments)


def look_up_job(context: object, **arguments: Any) -> bytes:  # noqa: ARG001
    """Calls `look_up` in a rank, which has imported torch."""
    return look_up(**arguments)


class Door:
    """The port on which rank 0 accepts connections, and its announcement."""

    def __init__(self, group: Group) -> None:
        # With other machines, every interface: rank 0 does not know which one they
        # reach it by.
        self._socket = _listen(_LOOPBACK if group.is_one_machine else "")
        self._key = secrets.token_bytes(32)
        port = self._socket.getsockname()[1]
        self.announcement = struct.pack("!H", port) + self._key

    def let_in(self, deadline: float) -> Connection | None:
        """Returns the next connection that knows the key, None after the deadline."""
        while (left_s := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                made, _ = self._socket.accept()
            except TimeoutError:
                return None
            connection = _connection(made, patience_s=_GREETING_S)
            try:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
            except (AuthenticationError, OSError, EOFError):
                connection.close()
            else:
                return connection
        return None

    def close(self) -> None:
        """Stops accepting connections."""
        self._socket.close()


def knock(group: Group, announcement: bytes, timeout_s: float) -> Connection | None:
    """Returns a connection with rank 0, None if it cannot be reached."""
    (port,), key = struct.unpack("!H", announcement[:2]), announcement[2:]
    host = _LOOPBACK if group.is_one_machine else group.address
    try:
        connection = _connection(socket.create_connection((host, port), timeout_s))
    except OSError:
        return None
    try:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except (AuthenticationError, OSError, EOFError):
        connection.close()
        return None
    return connection


def limit_waits(connection: Connection, seconds: float) -> None:
    """Makes reads and writes of the connection fail after these seconds."""
    with socket.socket(fileno=connection.fileno()) as view:
        try:
            _limit(view, seconds)
        finally:
            view.detach()


def try_send(connection: Connection, message: Any) -> None:
    """Sends a message; does nothing if the connection is lost."""
    with contextlib.suppress(OSError):
        connection.send(message)


def try_receive(connection: Connection, deadline: float | None = None) -> Any:
    """Returns the next message; None after the deadline or a lost connection."""
    with contextlib.suppress(OSError, EOFError):
        if deadline is None or connection.poll(max(0.0, deadline - time.monotonic())):
            return connection.recv()
    return None


def _listen(host: str) -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, 0))
    return socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=True)


def _connection(made: socket.socket, *, patience_s: float = 0.0) -> Connection:
    made.settimeout(None)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    _limit(made, patience_s)
    return Connection(made.detach())


def _limit(made: socket.socket, seconds: float) -> None:
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


_CHUNK = 4 << 20
# The processes at the other end run no user code: they answer at once or not at all.
_ANSWER_S = 30.0
_TOO_LATE_S = 1.0
_LEAVE_S = 30.0  # a process may still be importing torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of a process of the group.

    `identity` must be the same in all processes; `folder` is where it keeps files.
    `problem` is a usage error there, `trouble` any other failure (message, detail).
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
    """Message of a process whose rank has ended a job, or has died."""

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
        """As `announce`."""


class LostRankError(Exception):
    """A process of the group did not connect, or its connection is lost."""


class Hosts:
    """All processes of the group but rank 0. A resource: call `release`."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._door: Door | None = None
        self.hosts: dict[int, Host] = {}
        self._lost = ""
        self._late_s = _LEAVE_S

    @property
    def world_size(self) -> int:
        """Ranks in the group."""
        return self.group.world_size

    def open(self, announce: Announce, timeout_s: float) -> None:
        """Announces the address of rank 0.

        Args:
            announce: calls `announce` here, or in a process that has imported torch.
            timeout_s: for the store of the group.

        Raises:
            OSError, RuntimeError: what `announce` raises.
        """
        door = Door(self.group)
        try:
            announce(
                meeting_of(self.group, "tool", timeout_s),
                door.announcement,
                is_master=not self.group.has_store,
            )
        except BaseException:
            door.close()
            raise
        self._door = door

    @property
    def is_open(self) -> bool:
        """Whether rank 0 is announced to the others."""
        return self._door is not None

    def gather(self, folder: Path, connect_s: float, import_s: float) -> list[Hello]:
        """Waits for all processes; returns their hellos by rank.

        Args:
            folder: of rank 0's files.
            connect_s: deadline of their connections.
            import_s: deadline of their imports after that.

        Raises:
            LostRankError: one did not connect in time.
        """
        assert self._door is not None
        self._late_s = _TOO_LATE_S  # a process that has not connected now never will
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
        hello = try_receive(connection, deadline)
        if not isinstance(hello, Hello):
            connection.close()
            return None
        limit_waits(connection, _ANSWER_S)
        self.hosts[hello.rank] = Host(connection, hello, self._lose)
        return hello

    def rank(self, seat: Seat) -> RemoteRank:
        """Returns the rank of this seat, started by its process."""
        return RemoteRank(self.hosts[seat.rank], seat)

    def seats(self, seats: list[Seat], crew: str) -> list[Seat]:
        """Returns the seats of a crew with their local ranks and their store."""
        meeting = meeting_of(self.group, crew, 2 * seats[0].timeout_s)
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
        """Raises if a connection is lost: its rank cannot be replaced.

        Raises:
            LostRankError: with the rank and its machine.
        """
        if self._lost:
            raise LostRankError(self._lost)

    def _lose(self, host: Host) -> None:
        where = f"rank {host.hello.rank} on {host.hello.machine}"
        self._lost = self._lost or f"the process of {where} has gone"

    def release(self, exit_code: int) -> None:
        """Makes all processes exit with this code, also those that connect late."""
        if self._door is None:
            return
        deadline = time.monotonic() + _LEAVE_S
        waiting = [host.connection for host in self.hosts.values() if not host.gone]
        late = self.world_size - 1 - len(self.hosts)
        until = time.monotonic() + self._late_s
        waiting += [c for c in (self._door.let_in(until) for _ in range(late)) if c]
        for connection in waiting:
            try_send(connection, ("end", exit_code))
        for connection in waiting:
            while try_receive(connection, deadline) is not None:
                pass  # it closes the connection after its cleanup
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
        # The host in whose folder it reads rank 0's files; None: in rank 0's own.
        self.owner: Host | None = self
        self._sent: dict[str, Path] = {}  # by name, where it is now

    def post(self, *message: Any) -> None:
        """Sends a message; the process counts as lost if that times out."""
        if self.gone:
            return
        try:
            self.connection.send(message)
        except OSError:
            self._lose()

    def ask(self, *message: Any) -> Any:
        """Returns the answer to a message, None if there is none."""
        self.post(*message)
        deadline = time.monotonic() + _ANSWER_S
        while not self.gone and not self._replies:
            self._sort(try_receive(self.connection, deadline))
        return self._replies.pop(0) if self._replies else None

    def take_in(self) -> None:
        """Reads all messages that have arrived."""
        try:
            while not self.gone and self.connection.poll():
                self._sort(try_receive(self.connection))
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
        """Returns and removes the end of the last job of a seat."""
        return self._ended.pop(name, None)

    def find_place(self, places: dict[str, Host | None]) -> None:
        """Finds a folder that this process can read, else adds its own.

        Processes of one machine share the copy that was sent to the first of them.

        Args:
            places: folder -> the host that writes there, None for rank 0 itself.
        """
        seen = self.ask("sees", list(places))
        if seen in places:
            self.owner = places[seen]
        else:
            places[self.hello.folder] = self

    def place(self, path: str) -> str:
        """Returns the path of rank 0's files `path.*` for this process."""
        return path if self.owner is None else self.owner.put(Path(path))

    def put(self, path: Path) -> str:
        """Sends the files `path.*` once; returns their path there."""
        if path.name not in self._sent:
            files = sorted(path.parent.glob(f"{path.name}.*"))
            # None if the connection is lost: then nothing is written.
            folder = self.ask("place", sum(file.stat().st_size for file in files))
            self._sent[path.name] = place = Path(folder or self.hello.folder)
            for file in files:
                with file.open("rb") as stream:
                    while chunk := stream.read(_CHUNK):
                        self.post("file", str(place / file.name), chunk)
            self.ask("written")
        return str(self._sent[path.name] / path.name)

    def _lose(self) -> None:
        self.gone = True
        self.connection.close()
        self._on_loss(self)


class RemoteRank:
    """A `ddpcheck.ranks.crew.Rank` that another process of the group started."""

    reports_ready = False

    def __init__(self, host: Host, seat: Seat) -> None:
        self._host, self._name = host, seat.name
        self._last = Ended(name=seat.name)
        self._is_alive = True
        host.post("open", seat)

    def send(self, job: Job | None) -> None:
        """Sends a job and the files that its arguments name."""
        if job is None:
            return  # it exits with its process
        places = {name: self._host.place(job.arguments[name]) for name in job.files}
        self._host.post(
            "job", self._name, replace(job, arguments={**job.arguments, **places})
        )

    def handles(self) -> list[Any]:
        """Returns the connection to its process."""
        return [] if self._host.gone else [self._host.connection]

    def next_message(self) -> Message | None:
        """Returns the message that ended the job."""
        self._host.take_in()
        ended = self._host.ended(self._name)
        if ended is None:
            return None
        self._last, self._is_alive = ended, ended.message is not None
        return ended.message

    def is_alive(self) -> bool:
        """Returns whether its process has not reported its end."""
        return self._is_alive and not self._host.gone

    @property
    def pid(self) -> int | None:
        """None: it means nothing on this machine."""
        return None

    @property
    def exit_code(self) -> int | None:
        """The exit code that its process reported."""
        return self._last.exit_code

    def ask_stack(self) -> None:
        """Makes it write its stack."""
        self._host.post("ask_stack", self._name)

    def stack(self, deadline: float) -> str:  # noqa: ARG002 (its process has its own)
        """Returns its stack; also stores the other results of its job."""
        ended = self._host.ask("stack", self._name)
        if isinstance(ended, Ended):
            self._last = ended
        return self._last.stack

    def stack_so_far(self) -> str:
        """Returns the stack that was sent with its end."""
        return self._last.stack

    def progress(self) -> list[Any]:
        """Returns the events that were sent with the end of the job."""
        return self._last.progress

    def stderr(self) -> str:
        """Returns the output that was sent with the end of the job."""
        return self._last.stderr

    def kill(self) -> None:
        """Makes its process kill it."""
        self._host.post("kill", self._name)

    def reap(self) -> None:
        """Nothing to do here: its process does."""
