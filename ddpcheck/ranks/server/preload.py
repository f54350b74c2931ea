"""Imports that the fork server does before the first fork.

`multiprocessing` imports this module in the server; the settings come in one
environment variable, because a fork server takes only module names. A file shows that
the imports have ended, so that the parent can wait with a deadline.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import select
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import forkserver, reduction
from pathlib import Path
from typing import Any

from ddpcheck.errors import code_origin, raised
from ddpcheck.ranks import folder as folders
from ddpcheck.ranks import processes
from ddpcheck.ranks.server import leftovers
from ddpcheck.ranks.server.forkserver import SPARE_FILE

SETTINGS = "DDPCHECK_PRELOAD"
# Keeps `python -c`, which starts a fork server, from importing from the working folder.
SAFE_PATH = "PYTHONSAFEPATH"
STATUS_FILE = "preloaded.json"
MODULES_FILE = "modules"  # exists once `call` begins, which runs user code
CALLED_FILE = "called"  # exists once `call` has ended; imports of `later` follow
INSTALLED_FILE = "installed.json"  # what that server has to import as well
LOG_FILE = "forkserver.log"
STACK_FILE = "forkserver.stack"
_CLEAN_UP_S = 20

# The result of `call`, for the ranks: they are forks of this process.
RESULT: Any = None
# The folder of the session, in a rank that of its pool, and sys.path after the imports:
# multiprocessing sets that of a forked process to the tool's.
FOLDER: Path | None = None
SEARCH: list[str] = []
CREW = ""  # the name of the crew of a rank, set in the rank
# Functions that modules register, to be called after all imports and before any fork.
BEFORE_FORKS: list[Callable[[], None]] = []


def main(settings: dict[str, Any]) -> None:
    """Imports what the settings name and writes the status file."""
    global FOLDER  # noqa: PLW0603 (inherited by forks: it must live in a module)
    FOLDER = folder = Path(settings["folder"])
    if not settings["is_safe"]:
        os.environ.pop(SAFE_PATH, None)  # not inherited by processes of user code
    os.environ[processes.IN_CHECK] = "1"  # inherited by all that user code starts
    sys.path[:] = [
        path for path in sys.path if path
    ]  # Python 3.10 has no PYTHONSAFEPATH
    try:
        redirect_output(folder / LOG_FILE)
        stack = (folder / STACK_FILE).open("w", encoding="utf-8")
    except FileNotFoundError:
        os._exit(0)  # the tool ended and cleaned up while this Python started
    faulthandler.register(processes.STACK, file=stack, all_threads=True)
    folders.temporary()

    # The server ends when the tool does, even by SIGKILL: the last chance to remove the
    # session's folder and to kill processes that user code started in ranks.
    def clean_up() -> None:
        processes.leave_within(_CLEAN_UP_S)
        processes.kill_children(os.getpid())
        folders.remove(folder)

    atexit.register(clean_up)
    processes.call_after_parent(clean_up)  # while it imports, too
    if not folder.exists():
        os._exit(0)
    gc.disable()  # 10 % of the time of importing torch goes to collections
    status = _import_all(settings)
    _prepare_forks()
    (folder / INSTALLED_FILE).write_text(json.dumps(installed()), encoding="utf-8")
    part = folder / (STATUS_FILE + ".part")
    part.write_text(json.dumps(status), encoding="utf-8")
    part.rename(folder / STATUS_FILE)


def _prepare_forks() -> None:
    gc.enable()
    leftovers.watched()
    for prepare in BEFORE_FORKS:
        prepare()
    SEARCH[:] = sys.path
    # Keeps the collector of every fork from touching, and so copying, these pages.
    gc.freeze()


def installed() -> list[str]:
    """Returns the modules that are no user code, in the order of their import."""
    files = {
        name: getattr(module, "__dict__", {}).get("__file__")
        for name, module in list(sys.modules.items())
    }
    return [n for n, f in files.items() if f and not code_origin.is_users(str(f))]


def _fork_spare(settings: dict[str, Any]) -> None:
    """Forks a server that has imported what this one has until now, and no user code.

    It waits for `forkserver.Server.woken`, or for the end of this process.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(settings["folder"]) / SPARE_FILE))
    listener.listen()
    here, there = os.pipe()
    if os.fork():
        listener.close()
        os.close(here)
        return  # the other end stays open as long as this process lives
    try:
        os.close(there)
        _serve_spare(listener, here, settings)
    finally:
        os._exit(0)  # the folder is that of the first server


def _serve_spare(
    listener: socket.socket, parent: int, settings: dict[str, Any]
) -> None:
    processes.kill_with_parent()
    ready, _, _ = select.select([listener.fileno(), parent], [], [])
    if parent in ready:
        return
    folder = Path(settings["folder"])
    with listener.accept()[0] as connection:
        (alive,) = reduction.recvfds(connection, 1)
        installed = json.loads((folder / INSTALLED_FILE).read_text(encoding="utf-8"))
        for name in (*settings["later"], *installed):
            if name not in sys.modules:
                with contextlib.suppress(Exception, SystemExit):
                    _import([name], settings["folder"])
                if _is_unfit():
                    return
        _prepare_forks()
        connection.sendall(str(os.getpid()).encode())
    forkserver.main(listener.detach(), alive, [])


def redirect_output(path: Path) -> None:
    """Sends file descriptors 1 and 2 to `path`, appending."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with contextlib.suppress(ValueError, OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _import_all(settings: dict[str, Any]) -> dict[str, Any]:
    global RESULT  # noqa: PLW0603 (inherited by forks: it must live in a module)
    try:
        # Entries that the caller added (pytest's `pythonpath`), after our own.
        sys.path += [path for path in settings["search"] if path not in sys.path]
        _import(settings["modules"], settings["folder"])
        if settings.get("call"):
            _fork_spare(settings)
        (Path(settings["folder"]) / MODULES_FILE).touch()
        if settings.get("call"):
            module, function = settings["call"].split(":")
            call = getattr(importlib.import_module(module), function)
            RESULT = call(**settings["arguments"])
        (Path(settings["folder"]) / CALLED_FILE).touch()
        if getattr(RESULT, "needs_later", True):
            _import(settings["later"], settings["folder"])
        unfit = _import_libraries(settings["libraries"], settings["folder"])
        if settings["has_spare"] and not unfit:
            _fork_spare(settings)
    except Exception as error:  # noqa: BLE001 (the parent reports it)
        return {"error": raised.whole_stack(error), "unfit": ""}
    return {"error": None, "unfit": unfit}


def _import_libraries(modules: list[str], folder: str) -> str:
    """Imports modules; returns the one whose import made forking unsafe, "" for none.

    A module that cannot be imported here raises in the ranks that need it.
    """
    for name in modules:
        with contextlib.suppress(Exception, SystemExit):
            _import([name], folder)
        if _is_unfit():
            return name
    return ""


def _is_unfit() -> bool:
    """Returns whether forks of this process would be unsafe."""
    return _count_threads() > 1 or _has_opened_a_gpu()


def _import(modules: list[str], folder: str) -> None:
    """Imports modules, with `folder` as the folder of temporary files.

    torch 2.6 creates a temporary folder that it removes when Python exits normally;
    this process is ended by a signal.
    """
    before = tempfile.tempdir
    tempfile.tempdir = folder
    try:
        for text in modules:
            name, _, attribute = text.partition(":")
            module = importlib.import_module(name)
            if attribute:  # some packages import what they hold when it is asked for
                getattr(module, attribute, None)
    finally:
        tempfile.tempdir = before


def _has_opened_a_gpu() -> bool:
    """Returns whether CUDA has been initialised, which then fails in every fork."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


# What jemalloc calls its own: it stops it before a fork. pyarrow has one.
_READY_TO_FORK = "jemalloc_bg_thd"


def _count_threads() -> int:
    """Returns the number of threads: forking a process with several is unsafe."""
    try:
        names = [
            (task / "comm").read_text(encoding="utf-8", errors="replace").strip()
            for task in Path("/proc/self/task").iterdir()
        ]
    except OSError:
        return threading.active_count()
    return len(names) - names.count(_READY_TO_FORK)


if SETTINGS in os.environ:
    main(json.loads(os.environ.pop(SETTINGS)))
