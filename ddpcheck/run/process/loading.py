"""Loads the target in a rank: imported once in the fork server, or here.

A target that reads RANK or WORLD_SIZE at its import is imported again in each rank:
`torchrun` sets them before the file is read, the fork server has none.

Functions that user code imports by name (`from torch.distributed import all_reduce`)
are rebound: they look up the current function when called, so that patches of a run
apply to them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddpcheck.errors.problem import Problem, UsageError, usage_error
from ddpcheck.ranks import devices
from ddpcheck.ranks.server import preload
from ddpcheck.run.process import isolation, modules
from ddpcheck.run.process.fingerprint import of_module
from ddpcheck.run.process.replacing import replaced
from ddpcheck.target import target as target_module
from ddpcheck.target.importing import UNLIKE_THE_FILE, file_of
from ddpcheck.target.target import Target, TargetRef

_MOST = 64  # modules of other folders in a fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The target, or the problem with it."""

    ref: TargetRef
    target: Target | None = None
    problem: Problem | None = None
    asks_rank: bool = False  # at its import: ranks import it again

    @property
    def needs_later(self) -> bool:
        """Whether ranks will train it; see ranks.pool.Preload."""
        return self.problem is None


def load_in_server(path: str, names: list[list[str]]) -> Loaded:
    """Imports the target before any fork; called in the fork server."""
    torch.set_num_threads(1)  # thread pools would not survive the fork
    ref = TargetRef(path=path, names=tuple((a, b) for a, b in names))
    try:
        with rank_variables_read(_folders(path)) as asked:
            target = _without_group(ref)
        devices.check_untouched(target.name)
        return Loaded(ref=ref, target=target, asks_rank=bool(asked))
    except UsageError as error:
        return Loaded(ref=ref, problem=error.problem)


def _without_group(ref: TargetRef) -> Target:
    """Returns the target; raises if importing it creates a process group.

    All ranks forked from here would share that group.

    Raises:
        UsageError: target-import, or as ddpcheck.target.target.load.
    """
    had_one = dist.is_initialized()
    target = target_module.load(ref)
    _let_children_import(target)
    rebind_late(modules.users(), is_plain=ref.is_plain)
    if had_one or not dist.is_initialized():
        return target
    dist.destroy_process_group()
    raise usage_error(
        slug="target-import",
        message=f"{target.name}: importing it starts distributed training",
        expected="no process group: ddpcheck makes the one of each run",
        found="torch.distributed.init_process_group was called",
        fix='put what only a script does under `if __name__ == "__main__":`',
    )


def _let_children_import(target: Target) -> None:
    """Makes the target importable by name in child interpreters of user code.

    A file whose name is no module name, or that of another module, gets a name that is
    not on sys.path: a module of that name that runs the file is written there.
    """
    names = [m.__name__ for m in _own_modules(target) if file_of(m) == target.path]
    name = names[0] if names else ""
    if preload.FOLDER is None or not name.startswith(UNLIKE_THE_FILE):
        return
    folder = preload.FOLDER / "importable"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(
        "from importlib.machinery import SourceFileLoader\n"
        f"__file__ = {target.path!r}\n"
        "exec(SourceFileLoader(__name__, __file__).get_code(__name__))\n",
        encoding="utf-8",
    )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load(ref: TargetRef) -> Target:
    """Returns the target, that of the fork server if it has imported it.

    Raises:
        UsageError: as ddpcheck.target.target.load.
    """
    made = preload.RESULT
    if isinstance(made, Loaded) and made.ref == ref and not _has_changed:
        if made.problem is not None:
            raise UsageError(made.problem)
        assert made.target is not None
        if not (made.asks_rank and dist.is_initialized()):
            return made.target
        forget(made.target)
    return _load_here(ref)


@contextlib.contextmanager
def borrowed(ref: TargetRef) -> Iterator[Target]:
    """Yields the target for a job that does not check its fingerprint.

    If the fingerprint changes, the next job loads the target again. Jobs that return
    the result of a run compare it themselves, and the rank is replaced.
    """
    target = load(ref)
    before = fingerprint(target)
    try:
        yield target
    finally:
        if fingerprint(target) != before:
            forget(target)


def forget(target: Target) -> None:
    """Makes the next load import the target's modules again."""
    global _has_changed, _last, _left
    for module in _own_modules(target):
        sys.modules.pop(module.__name__, None)
    _has_changed, _last, _left = True, None, None


@dataclass(slots=True)
class _Imported:
    """The modules and search path that targets of one folder added."""

    folders: tuple[str, ...]
    modules: set[str]
    search: list[str]  # sys.path without the folder


_imported: _Imported | None = None
_has_changed = False  # the target that the fork server has loaded
_last: tuple[tuple[TargetRef, tuple[int, ...]], Target] | None = None
_left: tuple[Target, int] | None = None  # the last fingerprint


def _load_here(ref: TargetRef) -> Target:
    """Loads the target once for all consecutive jobs of this rank that use it.

    As with the fork server, a rank in which its module has changed gets no more jobs.
    """
    global _last  # noqa: PLW0603 (of this process, as sys.modules is)
    if ref.path is None:
        return target_module.load(ref)
    key = ref, _version(ref.path)
    if _last is None or _last[0] != key:
        _last = None
        _last = key, _import(ref, ref.path)
    return _last[1]


def _version(path: str) -> tuple[int, ...]:
    """Returns numbers that change when the file is written; () without a file."""
    try:
        found = os.stat(path)  # noqa: PTH116 (a third of the time, in every job)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _import(ref: TargetRef, path: str) -> Target:
    """Loads the target; removes modules that a target of another folder imported.

    Two folders may both have a models.py: the second target would get the first one.
    """
    global _imported  # noqa: PLW0603 (of this process, as sys.modules is)
    folders = _folders(path)
    if _imported is not None:
        sys.path[:] = _imported.search
        if _imported.folders != folders:
            for name in _imported.modules:
                sys.modules.pop(name, None)
            _imported = None
    if _imported is None:
        _imported = _Imported(folders=folders, modules=set(), search=list(sys.path))
    last = modules.last()
    isolation.ignore_absent_devices()  # a target may seed at its import
    try:
        return _without_group(ref)
    finally:
        new = modules.since(last)
        _imported.modules |= {name for name in new if _is_below(name, folders)}


@functools.lru_cache(maxsize=4)
def _folders(path: str) -> tuple[str, ...]:
    """Returns the folder of a file, as given and resolved: modules have both."""
    paths = os.path.abspath(path), os.path.realpath(path)  # noqa: PTH100
    return tuple(os.path.dirname(p) + os.sep for p in paths)  # noqa: PTH120


def _is_below(name: str, folders: tuple[str, ...]) -> bool:
    """Returns whether a module's file is the user's own, in a folder or below."""
    return _file(name).startswith(folders) and modules.is_users(name)


def _file(name: str) -> str:
    return file_of(sys.modules.get(name))


def left(target: Target) -> int:
    """Returns the fingerprint after the last job of this rank.

    Between jobs no user code runs.
    """
    if _left is not None and _left[0] is target:
        return _left[1]
    return fingerprint(target)


def fingerprint(target: Target) -> int:
    """Returns a hash of the state of the user's modules.

    Those of the target's folder, and the last others that it imported: a large package
    of the user would take longer than a job.
    """
    global _left  # noqa: PLW0603 (of this process, as its modules are)
    own = {id(module): module for module in _own_modules(target)}
    others = {id(m): m for m in map(sys.modules.get, modules.users()[-_MOST:])}
    found = hash(tuple(map(of_module, (own | others).values())))
    _left = target, found
    return found


def _own_modules(target: Target) -> list[types.ModuleType]:
    """Returns the target's module and those it imported from its folder."""
    if not target.path:
        return []
    folders = _folders(target.path)
    found = [name for name in modules.users() if _file(name).startswith(folders)]
    return [sys.modules[name] for name in found]


_NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}


@contextlib.contextmanager
def rank_variables_read(folders: tuple[str, ...]) -> Iterator[set[str]]:
    """Yields the rank variables that files below these folders have read."""
    asked: set[str] = set()
    kind = type(os.environ)
    read, has = kind.__getitem__, kind.__contains__

    def note(name: object) -> None:
        if name in _NAMES and _asker().startswith(folders):
            asked.add(str(name))

    def watched_read(self: os._Environ[str], name: str) -> str:
        note(name)
        return read(self, name)

    def watched_has(self: os._Environ[str], name: object) -> bool:
        note(name)
        return has(self, name)

    with replaced(kind, __getitem__=watched_read, __contains__=watched_has):
        yield asked


def _asker() -> str:
    """Returns the file of the code that called os.getenv or os.environ."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame.f_back is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename


def _is_between(file: str) -> bool:
    """Returns whether a file is this one, or one of Python's in between."""
    return file in (__file__, os.__file__) or file.startswith("<frozen ")


_OF_AUTOGRAD = ("backward", "grad")


class _Late:
    """A stand-in for a function of a module: calling it calls the current function.

    The function is looked up by a property, so no frame of this class is on the stack:
    callers are identified by their frames.
    """

    def __init__(self, owner: types.ModuleType, name: str) -> None:
        self._owner, self._name = owner, name
        functools.update_wrapper(self, getattr(owner, name))

    @property
    def __call__(self) -> Any:
        """The current function of the module."""
        return getattr(self._owner, self._name)


def rebind_late(names: Iterable[str], *, is_plain: bool = False) -> None:
    """Replaces these functions in the globals of modules by stand-ins.

    Args:
        names: of the user's modules, as in sys.modules.
        is_plain: not those of torch.distributed: what a file does in plain torch is to
            be seen, where no patch reaches a function imported by name.
    """
    late = _late(is_plain=is_plain)
    for name in names:
        own = vars(sys.modules[name])
        found = {
            key: late[value]
            for key, value in own.items()
            if type(value) is types.FunctionType and value in late
        }
        if found and not _is_traced_whole(sys.modules[name]):
            own.update(found)


def _is_traced_whole(module: types.ModuleType) -> bool:
    """Returns whether a module uses fullgraph=True, which cannot trace a stand-in."""
    try:
        return "fullgraph" in inspect.getsource(module)
    except (OSError, TypeError):
        return False


@functools.cache
def _late(*, is_plain: bool) -> dict[types.FunctionType, _Late]:
    """Returns the stand-in of each function, by the unpatched function."""
    names = [(torch.autograd, name) for name in _OF_AUTOGRAD]
    if not is_plain:
        names += [(dist, name) for name in vars(dist) if not name.startswith("_")]
    # By type: reading attributes of some other objects warns of a deprecation.
    return {
        vars(owner)[name]: _Late(owner, name)
        for owner, name in names
        if type(vars(owner)[name]) is types.FunctionType
    }
