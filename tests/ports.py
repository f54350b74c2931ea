"""A port that stays free until its user listens on it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Gives a port of loopback that the kernel hands to nobody else meanwhile.

    A port that was free a moment ago may since be the near end of anyone's
    connection. A socket that is bound but does not listen keeps it from that, and
    not from a server that reuses addresses, as the stores of torch do.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
