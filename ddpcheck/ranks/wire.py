"""The connection between rank 0 and the other processes of a given group.

A stream of pickles, as between a pool and its ranks, over TCP. Both ends prove that
they know a key, which travels through the store of the launcher: whoever reaches that
store can run code in the group anyway.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Connection,
    answer_challenge,
    deliver_challenge,
)
from typing import Any

from ddpcheck.ranks.launch import Group

_KEY = "meeting"
_LOOPBACK = "127.0.0.1"
# A machine that lost its power sends nothing; the kernel notices after 90 s.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
_GREETING_S = 10.0  # what knocks on the port and is none of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A place in the store of the group, where one set of ranks finds together."""

    address: str
    port: int
    prefix: str
    timeout_s: float

    def store(self, *, is_master: bool = False) -> Any:
        """Returns the store; the master's holds it for all as long as it lives."""
        import torch.distributed as dist  # noqa: PLC0415 (the tool imports no torch)

        whole = dist.TCPStore(
            self.address,
            self.port,
            is_master=is_master,
            wait_for_workers=False,
            timeout=timedelta(seconds=self.timeout_s),
        )
        return dist.PrefixStore(self.prefix, whole)


def meeting(group: Group, name: str, timeout_s: float) -> Meeting:
    """Returns where the processes called `name` meet in this group."""
    return Meeting(
        address=group.address,
        port=group.port,
        prefix=f"ddpcheck/{group.attempt}/{name}",
        timeout_s=timeout_s,
    )


_stores: list[Any] = []  # the master's serves as long as its process lives


def announce(meeting: Meeting, value: bytes, *, is_master: bool) -> None:
    """Puts into the store where rank 0 is to be found; imports torch.

    Raises:
        RuntimeError: the store cannot be reached, or made.
    """
    store = meeting.store(is_master=is_master)
    store.set(_KEY, value)
    _stores.append(store)


def look_up(meeting: Meeting) -> bytes:
    """Returns what was announced, when it is; imports torch.

    Raises:
        RuntimeError: not in time.
    """
    return bytes(meeting.store().get(_KEY))


def announce_job(context: object, **arguments: Any) -> None:  # noqa: ARG001
    """Does `announce` in a rank, which has torch."""
    announce(**arguments)


def look_up_job(context: object, **arguments: Any) -> bytes:  # noqa: ARG001
    """Does `look_up` in a rank, which has torch."""
    return look_up(**arguments)


class Door:
    """Rank 0's end before anyone has come: a port, and what to announce."""

    def __init__(self, group: Group) -> None:
        # Every interface where there are other machines: which of them these reach
        # this one by, only they know.
        self._socket = _listen(_LOOPBACK if group.is_one_machine else "")
        self._key = secrets.token_bytes(32)
        port = self._socket.getsockname()[1]
        self.announcement = struct.pack("!H", port) + self._key

    def let_in(self, deadline: float) -> Connection | None:
        """Returns the next connection with one who knows the key, None at the end."""
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
        """Lets in no one more."""
        self._socket.close()


def knock(group: Group, announcement: bytes, timeout_s: float) -> Connection | None:
    """Returns the connection with rank 0, None where it is not there."""
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
    """Makes every read and write of the connection fail that takes longer."""
    with socket.socket(fileno=connection.fileno()) as view:
        try:
            _limit(view, seconds)
        finally:
            view.detach()


def send(connection: Connection, message: Any) -> None:
    """Sends to one who may have gone."""
    with contextlib.suppress(OSError):
        connection.send(message)


def receive(connection: Connection, deadline: float | None = None) -> Any:
    """Returns the next message; None where none comes by the deadline, or at all."""
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
