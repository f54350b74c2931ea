"""A training script and its arguments: what `ddpcheck run` checks, as plain data."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpcheck.errors import code_origin
from ddpcheck.errors.problem import Problem, UsageError

USAGE = "ddpcheck run [options] [-m MODULE | train.py] ARGS..."
USAGE_CODE = 2  # with which argparse exits
_PACKAGE = re.compile("[.:]")
# What stands for a number of the process in the arguments of a script.
_WORLD_SIZE, _RANK = "{world_size}", "{rank}"


class OtherNumberError(Exception):
    """The script starts as many processes itself as the message says, not W."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the recordings of W ranks, and of one process, have shown of a script.

    `folder` has the ranks' batches of `steps` steps. `model`: the class and parameter
    names of what the ranks wrap, if they do. `passes`: how many batches a pass over a
    loader had that came to its end, by (loader, pass). `split`: how many batches one
    process draws for each of a rank's. `ahead`: of each loader that draws some of
    the next step's batches before: (loader, how many a step uses, how many ahead).
    `looks`: passes, by (loader, pass), that are left before the training begins.
    `draws`: whether loaders have the batches; else they are what the model is given.
    Then with `has_all` one process gives its model what the ranks do, by itself.
    With `has_numbers` the ranks draw random numbers themselves; with `gives_numbers`
    these are given to the process that draws its own, in place of what models get; but
    for the first `first_numbers`, which are not drawn in each step.
    `has_others`: several loaders draw, one of them to evaluate, perhaps.
    `collates_shards`: a shard is collated anew, of its samples; else it has rows of the
    global batch.
    `shards`: the model is sharded by `fully_shard`; with `keeps_whole` it is not, and
    DistributedDataParallel averages the gradients in its place. `places`: lines of the
    script by what they do, see run/script/driver.py.
    """

    folder: str
    world_size: int
    steps: int
    model: tuple[str, tuple[str, ...]] | None = None
    passes: tuple[tuple[tuple[int, int], int], ...] = ()
    split: int = 1
    ahead: tuple[tuple[int, int, int], ...] = ()
    looks: tuple[tuple[int, int], ...] = ()
    draws: bool = True
    has_all: bool = False
    has_numbers: bool = False
    first_numbers: int = 0
    gives_numbers: bool = False
    has_others: bool = False
    collates_shards: bool = False
    shards: bool = False
    keeps_whole: bool = False
    places: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script as torchrun would start it.

    One of `path` (a file) and `module` (as after `python -m`) is set. `arguments` are
    the script's own; "{world_size}" and "{rank}" are replaced in each process.
    `source`: the file's text, read once, so that all runs are of one script. `folder`
    is the working folder of the script. `allows_writes`: it may change files and
    folders that existed before the check. `cuda_as_cpu`: it runs on the CPU where it
    asks for CUDA, where it finds `devices`, by default one for each process. Runs of
    the same name in `shares` see each other's files; others do not.
    """

    path: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()
    folder: str = ""
    source: bytes = field(default=b"", repr=False)
    allows_writes: bool = False
    cuda_as_cpu: bool = False
    devices: int = 0
    shares: str = ""

    @property
    def name(self) -> str:
        """The name for messages: "train.py", "package.train"."""
        return self.module or Path(self.path).name

    def arguments_at(self, world_size: int, rank: int) -> list[str]:
        """Returns the arguments of a process of a run with this many.

        >>> script = Script(arguments=("--local_rank={rank}", "-n", "{world_size}"))
        >>> script.arguments_at(2, rank=1)
        ['--local_rank=1', '-n', '2']
        """
        return [
            text.replace(_WORLD_SIZE, str(world_size)).replace(_RANK, str(rank))
            for text in self.arguments
        ]


def script(path: str, arguments: tuple[str, ...]) -> Script:
    """Returns the script in a file.

    Raises:
        UsageError: script-missing-file.
    """
    if not os.path.isfile(path):  # noqa: PTH113 (as the user wrote it)
        raise UsageError(
            Problem(
                slug="script-missing-file",
                message=f"there is no file {path}",
                expected="ddpcheck run [options] train.py ARGS, or -m MODULE ARGS",
                found="a folder" if Path(path).is_dir() else "nothing of that name",
                fix="give the path of the training script; what follows it is its own",
            )
        )
    full = Path(path).absolute()
    try:
        source = full.read_bytes()
    except OSError as error:
        raise UsageError(
            Problem(
                slug="script-missing-file",
                message=f"{path} cannot be read",
                expected="a training script",
                found=error.strerror or str(error),
                fix="make the file readable",
            )
        ) from None
    folder = str(Path.cwd())
    return Script(path=str(full), arguments=arguments, folder=folder, source=source)


def parsed(started: Sequence[str]) -> Script:
    """Returns the script that is started by these arguments.

    As after torchrun: the file's path or "-m" and a module, then the script's own
    arguments.

    Raises:
        UsageError: script-missing-file.
    """
    first, *rest = started or [""]
    if first != "-m":
        return script(first, tuple(rest))
    if not rest:
        raise UsageError(
            Problem(
                slug="script-missing-file",
                message="-m was given no module",
                expected=USAGE,
                found="nothing after -m",
                fix="name the module, as after `python -m`",
            )
        )
    return Script(module=rest[0], arguments=tuple(rest[1:]), folder=str(Path.cwd()))


def libraries(script: Script) -> tuple[str, ...]:
    """Returns what a script's file imports of installed packages, by its source.

    As "package" or "package:name", without the user's own modules. Imported once,
    before the ranks are forked, they need not be imported by each.
    """
    try:
        tree = ast.parse(script.source or _source_of(script.module))
    except (SyntaxError, ValueError, ImportError, OSError):
        return ()
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}:{alias.name}": None for alias in node.names}
    return tuple(name for name in names if _is_installed(package(name)))


def package(name: str) -> str:
    """Returns the package of a name in `libraries`."""
    return _PACKAGE.split(name)[0]


def _source_of(module: str) -> bytes:
    """Returns the source of a module, b"" without one; nothing is imported for it."""
    first, *others = module.split(".")
    found = importlib.util.find_spec(first) if first else None
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [
        file
        for folder in folders
        for file in (
            Path(folder, *others).with_suffix(".py"),
            Path(folder, *others, "__main__.py"),
        )
        if file.is_file()
    ]
    if not files and found and found.origin and not others:
        files = [Path(found.origin)]
    return files[0].read_bytes() if files else b""


def _is_installed(package: str) -> bool:
    if package in sys.stdlib_module_names or package in ("torch", "ddpcheck"):
        return False
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return found is not None and bool(code_origin.inside_packages(found.origin or ""))
