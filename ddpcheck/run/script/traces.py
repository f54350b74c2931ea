"""Leaves no trace: what existed before the check stays, what a script makes is removed.

An audit hook of Python sees each file that is opened, moved, removed or changed. It
refuses to change what existed before the check, with an exception that names the path
and the option that allows it. New files and folders are written down first, in a list
in the session's folder, and removed with it (ranks/made.py).

A check runs the script several times, also at the same time. What one run has made is
hidden from the others, so that each starts as the first: a script that resumes from a
checkpoint finds that of the user alone. Runs at the same time that write one path write
the same file; temporary files are apart.

Not seen: libraries that open files outside of Python (h5py, pyarrow; torch.save,
torch.jit.save and safetensors are watched by themselves), and child processes other
than forks. What these make in a folder that the script made is removed with it.

*Source*: https://docs.python.org/3/library/audit_events.html
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import json
import os
import stat
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpcheck.ranks import made

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

OPTION = "--allow-writes"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_TRUNC | os.O_APPEND | os.O_CREAT
# Of clients that send runs to a server: a check must not appear among a team's runs.
_TRACKERS = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_MODE": "DISABLED",
    "COMET_START_ONLINE": "0",
    "SWANLAB_MODE": "disabled",
}
# Of clients that load models and data, unless the user says otherwise.
_HUBS = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# Folders of caches, which no program may rely on.
_CACHES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "MPLCONFIGDIR",
    "NUMBA_CACHE_DIR",
)
_IN_HOME = (".cache", ".triton", ".nv", ".config/matplotlib")
_ASKS = "asks_ddpcheck"  # a function that is wrapped already
_OF_SQLITE = ("", "-journal", "-wal", "-shm")
_SYSTEM = ("/dev", "/proc", "/sys", "/var/tmp")  # noqa: S108 (scripts use it)
# Folders of installed packages, in which a script makes nothing that it looks for.
_INSTALLED = tuple(
    {f"{sysconfig.get_path(n)}/" for n in ("stdlib", "purelib", "platlib")}
)
# Functions that open files outside of Python: module, name, place of the path.
_WRITERS = (
    ("torch", "save", 1, "f"),
    ("torch.serialization", "save", 1, "f"),
    ("torch.jit", "save", 1, "f"),
    ("safetensors", "serialize_file", 1, "filename"),
    ("safetensors.torch", "serialize_file", 1, "filename"),
    ("safetensors.numpy", "serialize_file", 1, "filename"),
)


class WriteRefusedError(PermissionError):
    """The script was about to change what existed before the check."""


@contextlib.contextmanager
def watched(
    folder: str, name: str, own: tuple[str, ...], *, allows_writes: bool = False
) -> Iterator[None]:
    """Watches what this process writes, within the context.

    Args:
        folder: of the check, where the list is.
        name: of the processes that share a folder for temporary files.
        own: the script's folders, protected also within the temporary folder.
        allows_writes: whether it may change what existed.
    """
    global _keeper  # noqa: PLW0603 (a hook cannot be removed, and reads this)
    before = _keeper
    if before is None or before.folder != Path(folder):
        _keeper = _Keeper(Path(folder), name, own, allows_writes=allows_writes)
        _hook_once()
    else:
        before.starts += 1
    with contextlib.ExitStack() as stack:
        assert _keeper is not None
        _set_environment(_keeper)
        for writer in _WRITERS:
            stack.enter_context(_wrapped(*writer[:2], _checked_first(*writer[2:])))
        for function, make in _OF_OS.items():
            stack.enter_context(_wrapped("os", function, make))
        for module in ("sqlite3", "sqlite3.dbapi2"):
            stack.enter_context(_wrapped(module, "connect", _read_only))
        try:
            yield
        finally:
            _keeper = before


def offline() -> dict[str, str]:
    """Returns the variables that keep clients of trackers and hubs off the network.

    Some read them when they are imported: they are set before that, and in each rank.
    """
    return _TRACKERS | {k: os.environ.get(k, value) for k, value in _HUBS.items()}


def _set_environment(keeper: _Keeper) -> None:
    tracking = {"MLFLOW_TRACKING_URI": f"file:{keeper.temporary}/mlruns"}
    os.environ.update(offline() | tracking)
    os.environ["TMPDIR"] = tempfile.tempdir = keeper.temporary
    # No __pycache__ appears next to the user's modules.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


_keeper: _Keeper | None = None
_within_hook = threading.local()


@functools.cache
def _hook_once() -> None:
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _keeper is None:
        return
    handle = _EVENTS.get(event)
    if handle is None or getattr(_within_hook, "is_on", False):
        return
    with _unwatched():
        handle(_keeper, arguments)


@contextlib.contextmanager
def _unwatched() -> Iterator[None]:
    """Lets this thread use files as they are, within the context."""
    before = getattr(_within_hook, "is_on", False)
    _within_hook.is_on = True
    try:
        yield
    finally:
        _within_hook.is_on = before


@dataclass(slots=True)
class _Keeper:
    """Decides on each write, and writes down what is made and what is refused."""

    folder: Path
    name: str
    own: tuple[str, ...]
    allows_writes: bool = field(kw_only=True)
    descriptor: int = field(init=False)
    # Processes of other runs, which do the same at the same time, have another.
    temporary: str = field(init=False)
    places: dict[str, bool] = field(init=False)  # folder: whether all is allowed in it
    # What was made, and by which runs.
    runs: dict[str, set[str]] = field(default_factory=dict)
    read_bytes: int = 0
    starts: int = 0  # of the script, in this process

    def __post_init__(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(self.folder / made.LIST, flags, 0o600)
        home = os.path.expanduser("~")  # noqa: PTH111
        system = os.path.realpath(tempfile.gettempdir())
        self.temporary = f"{system}/{self.folder.name}-{self.name}"
        self.write("made", self.temporary, system, None, self.run)
        os.makedirs(self.temporary, exist_ok=True)  # noqa: PTH103
        free = [system, *_SYSTEM]
        free += [f"{home}/{name}" for name in _IN_HOME]
        free += [os.environ[name] for name in _CACHES if os.environ.get(name)]
        self.places = {os.path.realpath(place): True for place in free}
        self.places |= {os.path.realpath(place): False for place in self.own if place}
        self.places |= {os.path.realpath(self.folder): True, self.temporary: True}

    def is_free(self, path: str) -> bool:
        """Returns whether anything may be done to a path: by the innermost place."""
        inside = [place for place in self.places if made.is_within(path, place)]
        return bool(inside) and self.places[max(inside, key=len)]

    @property
    def run(self) -> str:
        """Names this run of the script; the ranks of a run have one name."""
        return f"{self.name}/{self.starts}"

    def is_made(self, path: str) -> bool:
        """Returns whether the check has made a path, in this or another process."""
        self.look()
        return made.is_within_any(self.runs, path)

    def is_hidden(self, path: str) -> bool:
        """Returns whether only other runs of the script have made a path.

        A run finds what was there before the check, and what it has made itself: else
        it would resume from the checkpoint of an earlier run.
        """
        self.look()
        while path not in self.runs:
            above = os.path.dirname(path)  # noqa: PTH120
            if above == path:
                return False
            path = above
        return self.run not in self.runs[path]

    def look(self) -> None:
        """Reads what other processes have written down since the last time."""
        while data := os.pread(self.descriptor, 1 << 20, self.read_bytes):
            whole = data[: data.rfind(b"\n") + 1]
            if not whole:
                break
            self.read_bytes += len(whole)
            for line in whole.splitlines():
                entry = json.loads(line)
                if entry[0] == "made":
                    self.runs.setdefault(entry[1], set()).add(entry[-1])

    def write(self, *entry: Any) -> None:
        """Adds a line to the list, whole, whatever other processes write."""
        os.write(self.descriptor, json.dumps(entry).encode("ascii") + b"\n")

    def makes(self, path: str) -> None:
        """Writes down what is about to be made, unless it existed before."""
        if self.is_free(path):
            return
        parent = os.path.dirname(path)  # noqa: PTH120
        if self.is_made(path):
            if self.run not in self.runs.get(path, ()):
                self.write("made", path, parent, None, self.run)
            return
        if os.path.lexists(path):
            return
        try:
            status = os.stat(parent)  # noqa: PTH116
        except OSError:
            return  # it cannot be made
        times = [status.st_atime_ns, status.st_mtime_ns]
        self.write("made", path, parent, times, self.run)

    def keeps(self, path: str) -> bool:
        """Returns whether a path existed before the check, and must stay as it was."""
        if self.allows_writes or self.is_free(path) or self.is_made(path):
            return False
        return os.path.lexists(path)

    def changes(self, path: str, how: str) -> None:
        """Raises unless a path is free, is made by the check, or does not exist.

        Raises:
            WriteRefusedError: it existed before.
        """
        if not self.keeps(path):
            return
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode) and how == "overwrite":
            return  # a device, a pipe
        self.write("refused", path, how)
        raise WriteRefusedError(
            f"ddpcheck refuses to {how} {path}, which existed before the check; "
            f"{OPTION} allows it"
        )

    def moves(self, source: str, target: str) -> None:
        """Decides on a file that gets another name."""
        self.changes(source, "move")
        self.changes(target, "overwrite")
        if self.is_free(source) or self.is_made(source):
            self.makes(target)
        else:  # the user's, as writes are allowed
            self.write("kept", target)

    def opens(self, path: str, *, creates: bool) -> None:
        """Decides on a file that is opened to be written."""
        path = os.path.realpath(path)
        if os.path.isdir(path):  # noqa: PTH112
            return  # O_TMPFILE, or an error
        if self.is_hidden(path):
            if not creates:
                raise _missing(path)
            if os.path.exists(path):  # noqa: PTH110
                os.truncate(path, 0)
        if os.path.exists(path):  # noqa: PTH110
            self.changes(path, "overwrite")
        if creates:
            self.makes(path)


def _named(path: Any, folder: Any = -1) -> str | None:
    """Returns a path without links in its folders; None for what is no path."""
    if isinstance(path, int) or path is None:
        return None
    text = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0:
        try:
            text = f"{os.readlink(f'/proc/self/fd/{folder}')}/{text}"  # noqa: PTH115
        except OSError:
            return None
    text = os.path.abspath(text)  # noqa: PTH100
    parent, name = os.path.split(text)
    return os.path.join(os.path.realpath(parent), name)  # noqa: PTH118


def _open(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    path, _, flags = arguments
    if not isinstance(flags, int) or not (named := _named(path)):
        return
    if flags & _WRITES:
        keeper.opens(named, creates=bool(flags & os.O_CREAT))
    elif keeper.is_hidden(named):
        raise _missing(path)


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _mkdir(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    if path := _named(arguments[0], arguments[-1]):
        keeper.makes(path)


def _rename(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    source, target = _named(arguments[0], arguments[2]), _named(*arguments[1:4:2])
    if source and target:
        keeper.moves(source, target)


def _link(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    source, target = _named(arguments[0], arguments[2]), _named(*arguments[1:4:2])
    if source and target:
        # What is written by the one name changes the other.
        keeper.changes(source, "change")
        keeper.makes(target)


def _symlink(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    if path := _named(*arguments[1:3]):
        keeper.makes(path)


def _remove(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    if path := _named(arguments[0], arguments[-1]):
        if keeper.is_hidden(path):
            raise _missing(arguments[0])
        keeper.changes(path, "remove")


def _change(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    """Decides on a call whose last argument is the descriptor of a folder."""
    if path := _named(arguments[0], arguments[-1]):
        keeper.changes(path, "change")


def _truncate(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    if path := _named(arguments[0]):
        keeper.changes(path, "change")


def _move(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    """Writes down where a file of the user's goes that is copied and removed."""
    source, target = map(_named, arguments[:2])
    if source and target:
        if os.path.isdir(target):  # noqa: PTH112
            target = f"{target}/{os.path.basename(source)}"  # noqa: PTH119
        keeper.moves(source, target)


def _sqlite(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    path = _database(arguments[0])
    if path and not os.path.exists(path):  # noqa: PTH110
        for suffix in _OF_SQLITE:
            keeper.makes(path + suffix)


def _database(given: Any) -> str | None:
    """Returns the file of a database, None for one in memory."""
    text = os.fsdecode(given)
    name = text.removeprefix("file:").partition("?")[0]
    in_memory = "mode=memory" in text or name in ("", ":memory:")
    return None if in_memory else _named(name)


def _program(keeper: _Keeper, arguments: tuple[Any, ...]) -> None:
    keeper.write("program", os.fsdecode(arguments[0] or b""))


_EVENTS: dict[str, Callable[[_Keeper, tuple[Any, ...]], None]] = {
    "open": _open,
    "os.chmod": _change,
    "os.chown": _change,
    "os.link": _link,
    "os.mkdir": _mkdir,
    "os.remove": _remove,
    "os.rename": _rename,
    "os.rmdir": _remove,
    "os.setxattr": _truncate,
    "os.symlink": _symlink,
    "os.system": _program,
    "os.truncate": _truncate,
    "os.utime": _change,
    "shutil.move": _move,
    "shutil.rmtree": _remove,
    "sqlite3.connect": _sqlite,
    "subprocess.Popen": _program,
}


Function = Callable[..., Any]


@contextlib.contextmanager
def _wrapped(
    module: str, name: str, make: Callable[[Function], Function]
) -> Iterator[None]:
    """Replaces a function of a module, if it has it, by what `make` makes of it."""
    try:
        owner = importlib.import_module(module)
        function = getattr(owner, name)
    except (ImportError, AttributeError):
        function = None
    if function is None or hasattr(function, _ASKS):
        yield
        return
    wrapper = functools.wraps(function)(make(function))
    setattr(wrapper, _ASKS, True)
    setattr(owner, name, wrapper)
    for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if function in supported:
            supported.add(wrapper)
    try:
        yield
    finally:
        setattr(owner, name, function)


def _checked_first(place: int, keyword: str) -> Callable[[Function], Function]:
    """Makes a function that opens a file outside of Python ask before."""

    def make(function: Function) -> Function:
        def asking(*args: Any, **kwargs: Any) -> Any:
            path = args[place] if len(args) > place else kwargs.get(keyword)
            if _keeper is not None and isinstance(path, (str, bytes, os.PathLike)):
                with _unwatched():
                    _open(_keeper, (path, None, os.O_WRONLY | os.O_CREAT))
            return function(*args, **kwargs)

        return asking

    return make


def _read_only(connect: Function) -> Function:
    """Opens a database that existed to be read: sqlite3 does not say what for."""

    def connecting(*args: Any, **kwargs: Any) -> Any:
        path = _database(args[0] if args else kwargs["database"])
        keeps = _keeper is not None and path is not None and _keeper.keeps(path)
        connection = connect(*args, **kwargs)
        if keeps:
            connection.execute("PRAGMA query_only = ON")
        return connection

    return connecting


def _is_hidden(path: Any, folder: Any = None) -> bool:
    if _keeper is None or getattr(_within_hook, "is_on", False):
        return False
    if isinstance(path, str) and path.startswith(_INSTALLED):
        return False  # imports ask for each file
    with _unwatched():
        named = _named(path, -1 if folder is None else folder)
        return named is not None and _keeper.is_hidden(named)


def _stat(stat: Function) -> Function:
    def of_visible(path: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_hidden(path, kwargs.get("dir_fd")):
            raise _missing(path)
        return stat(path, *args, **kwargs)

    return of_visible


def _access(access: Function) -> Function:
    def of_visible(path: Any, *args: Any, **kwargs: Any) -> Any:
        return not _is_hidden(path) and access(path, *args, **kwargs)

    return of_visible


def _mkdir_again(mkdir: Function) -> Function:
    def of_this_run(path: Any, *args: Any, **kwargs: Any) -> None:
        """Makes a folder, which may be there if another run has made it."""
        hidden = _is_hidden(path, kwargs.get("dir_fd"))
        try:
            mkdir(path, *args, **kwargs)
        except FileExistsError:
            if not hidden:
                raise

    return of_this_run


def _listdir(listdir: Function) -> Function:
    def of_visible(path: Any = ".") -> Any:
        if _is_hidden(path):
            raise _missing(path)
        names = listdir(path)
        if isinstance(path, int):
            return names
        join = os.path.join
        return [n for n in names if not _is_hidden(join(os.fspath(path), n))]

    return of_visible


class _Entries:
    """What os.scandir returns, without what is hidden."""

    def __init__(self, found: Any) -> None:
        self.found = found
        self.entries = (e for e in found if not _is_hidden(e.path))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self.entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the folder."""
        self.found.close()


def _scandir(scandir: Function) -> Function:
    def of_visible(path: Any = ".") -> Any:
        if _is_hidden(path):
            raise _missing(path)
        found = scandir(path)
        return found if isinstance(path, int) else _Entries(found)

    return of_visible


_OF_OS: dict[str, Callable[[Function], Function]] = {
    "access": _access,
    "listdir": _listdir,
    "lstat": _stat,
    "mkdir": _mkdir_again,
    "scandir": _scandir,
    "stat": _stat,
}
