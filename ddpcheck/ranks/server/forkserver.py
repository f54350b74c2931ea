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
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing import (
    popen_forkserver,
    process,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.context import reduction, set_spawning_popen  # type: ignore[attr-defined]
from multiprocessing.forkserver import ForkServer, read_signed
from pathlib import Path
from typing import Any

from ddpcheck.ranks import processes

# Keys of the preparation data that make a child import the parent's __main__: it is
# pytest or a console script here, and importing it again in every rank is slow.
_MAIN_KEYS = ("init_main_from_name", "init_main_from_path")
SPARE_FILE = "spare"  # the socket of a server in which no user code has run
_MOST_DIGITS = 20
_TUNABLES = "GLIBC_TUNABLES"
_LARGE_PAGES = "glibc.malloc.hugetlb"


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
            with _silent_tracker():
                resource_tracker.ensure_running()
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
        if isinstance(self._server, _Woken):
            return _exists(self.pid)
        try:
            done = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return done is None

    @classmethod
    def woken(cls, folder: Path, limit_s: float) -> Server:
        """Returns the spare server of this folder: see preload.py.

        `close` is its end, and no server can be started in its place.

        Raises:
            OSError, ValueError: there is none, or it does not answer in time.
        """
        made = cls([], folder)
        made._server = _Woken()
        alive, ours = os.pipe()
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(limit_s)
                client.connect(str(folder / SPARE_FILE))
                reduction.sendfds(client, [alive])
                pid = int(client.recv(_MOST_DIGITS))
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(alive)
        made._server.join(str(folder / SPARE_FILE), ours, pid)
        return made

    def spawn(
        self, function: Callable[..., None], args: tuple[Any, ...]
    ) -> RankProcess:
        """Forks a child that calls `function(*args)`; blocks until it exists."""
        child = RankProcess(target=function, args=args)
        child.server = self._server
        child.start()
        # multiprocessing joins the children it knows at exit, however long they run.
        # When the tool exits, the server ends and kills the ranks.
        process._children.discard(child)  # type: ignore[attr-defined]  # noqa: SLF001
        return child

    def stop(self) -> None:
        """Ends the server process at once and waits for it."""
        pid = self.pid
        if pid is None:
            return
        if isinstance(self._server, _Woken):
            self._server.close()  # its ranks are killed with it
            return
        processes.kill_children(
            pid
        )  # ranks, and processes that a target's import started
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        try:
            self._server._stop()  # type: ignore[attr-defined]  # noqa: SLF001
        except (ChildProcessError, OSError):
            # A SIGCHLD handler of the program has reaped it.
            self._server._forkserver_pid = None  # type: ignore[attr-defined]  # noqa: SLF001


@contextlib.contextmanager
def _silent_tracker() -> Iterator[None]:
    """Starts the tracker of semaphores without its warning.

    Ranks end at once: it removes the semaphores of user code, as it should, and would
    tell of it on standard error.
    """
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        yield
    finally:
        sys.warnoptions.pop()


class _Woken(ForkServer):
    """A server that this process has not started, and so cannot start again."""

    def join(self, address: str, alive: int, pid: int) -> None:
        """Takes the server: its socket, the pipe that ends it, its process id."""
        self._forkserver_address, self._forkserver_alive_fd = address, alive
        self._forkserver_pid: int | None = pid
        self._open: int | None = alive
        self._forkserver_authkey = b""  # from Python 3.14 on

    def ensure_running(self) -> None:
        """Does nothing for the server."""
        resource_tracker.ensure_running()

    def close(self) -> None:
        """Ends it."""
        if self._open is not None:
            os.close(self._open)
            self._open = self._forkserver_pid = None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _sockets_in(folder: Path) -> Iterator[None]:
    """Makes multiprocessing create its sockets in `folder` within the context.

    By default they are below the temporary folder. The paths of pytest's and of batch
    systems' are often longer than the 107 bytes of a socket's address.
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
    """Replaces Paths in sys.path by strings within the context.

    The server gets sys.path as source code, in which a Path has no literal.
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
        process_obj.server = None  # not picklable, and the child does not need it
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


def interface(*, loopback: bool) -> dict[str, str]:
    """Returns the variable that makes gloo use the loopback interface.

    By default gloo uses the address of the host name. With ranks on other machines it
    must, or use the interface of the user's own GLOO_SOCKET_IFNAME.
    """
    if not loopback:
        return {}
    name = "lo" if Path("/sys/class/net/lo").exists() else "lo0"
    return {"GLOO_SOCKET_IFNAME": name}


def large_pages() -> dict[str, str]:
    """Returns the variable that makes glibc use huge pages; keeps the user's tunables.

    The memory of the imports is then copied for each rank, and freed, in huge pages,
    which saves a fifth of the time of a rank. Without glibc it has no effect.
    """
    own = [t for t in os.environ.get(_TUNABLES, "").split(":") if t]
    if not any(t.startswith(_LARGE_PAGES) for t in own):
        own.append(f"{_LARGE_PAGES}=1")
    return {_TUNABLES: ":".join(own)}


def working_folder() -> list[str]:
    """Returns the working folder, from which targets can import too."""
    try:
        return [os.getcwd()]  # noqa: PTH109 (a Path would be resolved)
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def changed(values: dict[str, str]) -> Iterator[None]:
    """Sets variables for a child started within the context, then restores them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
