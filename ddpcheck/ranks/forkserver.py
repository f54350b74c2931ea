"""A fork server of our own: `multiprocessing`'s, but one per session.

`multiprocessing.forkserver` keeps one server per process, with one list of
preloaded modules; the user's own code may be using it. The class behind it can be
instantiated, and `popen_forkserver.Popen` needs one method replaced to use such an
instance. Nothing else differs from `multiprocessing.get_context("forkserver")`.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import popen_forkserver, process, spawn, util
from multiprocessing.context import reduction, set_spawning_popen  # type: ignore[attr-defined]
from multiprocessing.forkserver import ForkServer, read_signed
from pathlib import Path
from typing import Any

from ddpcheck.ranks import parent

# Keys of the preparation data that make a child import the parent's __main__: it is
# pytest or a console script here, and importing it again in every rank is slow.
_MAIN_KEYS = ("init_main_from_name", "init_main_from_path")


class Server:
    """One fork server process; a resource: call `stop`.

    Its socket lies in `folder`, which the owner removes.
    """

    def __init__(self, preload: list[str], folder: Path) -> None:
        self._folder = folder
        self._server = ForkServer()
        self._server.set_forkserver_preload(preload)

    def start(self) -> None:
        """Starts the server process; returns before its imports are done."""
        with _sockets_in(self._folder), _plain_search():
            self._server.ensure_running()

    @property
    def pid(self) -> int | None:
        """The server's process id, None before `start`."""
        pid: int | None = self._server._forkserver_pid  # type: ignore[attr-defined]  # noqa: SLF001
        return pid

    def is_alive(self) -> bool:
        """Returns whether the server process still runs, without reaping it."""
        if self.pid is None:
            return False
        try:
            done = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return done is None

    def spawn(
        self, function: Callable[..., None], args: tuple[Any, ...]
    ) -> RankProcess:
        """Forks a child that calls `function(*args)`; blocks until it exists."""
        child = RankProcess(target=function, args=args)
        child.server = self._server
        child.start()
        return child

    def stop(self) -> None:
        """Ends the server process at once and waits for it."""
        pid = self.pid
        if pid is None:
            return
        parent.kill_children(pid)  # ranks, and what a target's import has started
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        try:
            self._server._stop()  # type: ignore[attr-defined]  # noqa: SLF001
        except (ChildProcessError, OSError):
            # Someone else's SIGCHLD handler reaped it.
            self._server._forkserver_pid = None  # type: ignore[attr-defined]  # noqa: SLF001


@contextlib.contextmanager
def _sockets_in(folder: Path) -> Iterator[None]:
    """Makes multiprocessing create its sockets in `folder` meanwhile.

    Else they are below the temporary folder, whose path may be longer than the 107
    bytes that the address of a socket holds: pytest's and a batch system's often are.
    """
    config = process.current_process()._config  # type: ignore[attr-defined]  # noqa: SLF001
    missing = object()
    before = config.get("tempdir", missing)
    config["tempdir"] = str(folder)
    try:
        yield
    finally:
        if before is missing:
            del config["tempdir"]
        else:
            config["tempdir"] = before


@contextlib.contextmanager
def _plain_search() -> Iterator[None]:
    """Makes sys.path texts meanwhile: the server gets it as source, which no Path is.

    Python itself takes a pathlib.Path there.
    """
    before = list(sys.path)
    sys.path[:] = [os.fspath(p) if isinstance(p, os.PathLike) else p for p in before]
    try:
        yield
    finally:
        sys.path[:] = before


class _Popen(popen_forkserver.Popen):
    """`popen_forkserver.Popen` on the process object's own server."""

    def _launch(self, process_obj: Any) -> None:
        preparation: dict[str, Any] = spawn.get_preparation_data(process_obj._name)  # noqa: SLF001
        for key in _MAIN_KEYS:
            preparation.pop(key, None)
        server = process_obj.server
        process_obj.server = None  # not picklable, of no use to the child
        buffer = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(preparation, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            set_spawning_popen(None)
        self.sentinel, writer = server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        sentinel_of_parent = os.dup(writer)
        self.finalizer = util.Finalize(
            self,
            util.close_fds,  # type: ignore[attr-defined]
            (sentinel_of_parent, self.sentinel),
        )
        with os.fdopen(writer, "wb") as stream:
            stream.write(buffer.getbuffer())
        self.pid = read_signed(self.sentinel)


class RankProcess(process.BaseProcess):
    """A child of our fork server."""

    _start_method = "forkserver"
    server: Any = None

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (multiprocessing's name)
        return _Popen(process_obj)
