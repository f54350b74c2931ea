"""Stacks of ranks, as Python and faulthandler write them: where a rank was."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from pathlib import PurePath

from ddpcheck.errors import code_origin
from ddpcheck.errors.problem import visible

# 'File "x.py", line 3, in f' in a traceback, without the second comma in the stacks
# of faulthandler.
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
# Frames that only a rank's main thread has; a script runs in a coroutine of it, whose
# stack is its own.
_MAIN = re.compile("in (?:rank_main|script_main)$", re.MULTILINE)
# Code of this package that handles tensors and calls no code of the target. Paths are
# relative to the package; a test holds that they exist.
_OWN_WORK = (
    "compare/",
    "run/record/",
    "run/model/contents.py",
    "run/model/names.py",
    "run/model/sizing.py",
    "run/private.py",
)
# Code that calls objects of the target, or stands in for functions that the target
# calls: an exception from it without a frame of the target may be the target's mistake.
_CALLS_USERS = (
    "ranks/",
    "run/interventions/",
    "run/model/",
    "run/modes/data_parallel.py",
    "run/modes/jobs/batches.py",
    "run/modes/jobs/rounding.py",
    "run/modes/jobs/virtual/",
    "run/modes/ps.py",
    "run/observe/",
    "run/process/",
    "run/steps.py",
    "run/surroundings.py",
    "suite/zoo/",
    "target/",
)
# Where ranks wait for each other: collectives, what DDP exchanges in addition to
# gradients, and backward, which waits for the gradients at its end.
_EXCHANGES = (
    "distributed/distributed_c10d.py",
    "distributed/utils.py",
    "distributed/nn/functional.py",
    "distributed/_functional_collectives.py",
    "nn/parallel/distributed.py",
    "autograd/graph.py",
    "autograd/__init__.py",
)
# Parts of torch that raise if other ranks, or DDP, are at fault.
_DISTRIBUTED = ("distributed/", "nn/parallel/")
# Where ddpcheck itself waits in a process group.
_OWN_EXCHANGES = ("run/interventions/collectives/exact.py",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    name: str

    @property
    def place(self) -> str:
        """The file and line: "/home/me/mymodel.py:12"."""
        return f"{self.file}:{self.line}"

    @property
    def short(self) -> str:
        """The place for use in a sentence: "mymodel.py:12 in loss"."""
        file = code_origin.inside_packages(self.file) or PurePath(self.file).name
        return f"{file}:{self.line} in {self.name}"

    @property
    def is_torch(self) -> bool:
        """Whether it is code of torch."""
        return bool(code_origin.inside_torch(self.file))

    @property
    def is_distributed(self) -> bool:
        """Whether it is code of torch for several processes."""
        return code_origin.inside_torch(self.file).startswith(_DISTRIBUTED)

    @property
    def is_exchange(self) -> bool:
        """Whether it is code of torch or ddpcheck where ranks wait for each other."""
        is_of_torch = code_origin.inside_torch(self.file) in _EXCHANGES
        return is_of_torch or code_origin.inside_own(self.file) in _OWN_EXCHANGES

    @property
    def is_own(self) -> bool:
        """Whether it is code of ddpcheck."""
        return bool(code_origin.inside_own(self.file))

    @property
    def is_own_work(self) -> bool:
        """Whether it is code of ddpcheck with which the target has nothing to do."""
        return code_origin.inside_own(self.file).startswith(_OWN_WORK)

    @property
    def is_library(self) -> bool:
        """Whether it is code of a package other than ddpcheck, or of Python."""
        return code_origin.is_library(self.file)

    @property
    def is_users(self) -> bool:
        """Whether it is code of the user: no package, not Python, not ddpcheck."""
        return code_origin.is_users(self.file)


def main_first(dump: str) -> str:
    """Returns what faulthandler has written, with the main thread before the others.

    It writes the newest thread first, and the main thread last.
    """
    starts = [found.start() for found in _THREAD.finditer(dump)]
    if len(starts) < 2:  # noqa: PLR2004
        return dump
    ends = [*starts[1:], len(dump)]
    threads = [dump[a:b].strip("\n") for a, b in zip(starts, ends, strict=True)]
    main = next((t for t in threads if _MAIN.search(t)), None)
    main = main or next((t for t in threads if t.startswith("Current")), threads[-1])
    others = [t for t in threads if t is not main]
    return dump[: starts[0]] + "\n\n".join([main, *others]) + "\n"


def frames(stack: str) -> list[Frame]:
    """Returns the frames of a rank's main thread, the innermost first."""
    parts = _THREAD.split(stack)
    is_dump = len(parts) > 1
    text = next((part for part in parts if _MAIN.search(part)), parts[-1])
    return _frames(text) if is_dump else _frames(text)[::-1]


def _frames(text: str) -> list[Frame]:
    return [
        Frame(file=m["file"], line=int(m["line"]), name=m["name"])
        for m in _FRAME.finditer(text)
    ]


def exchanges(stack: str) -> bool:
    """Returns whether the rank does nothing but wait in an exchange with others.

    That is: in code of torch or ddpcheck, and no other thread runs code of the user,
    which might send what the rank waits for.
    """
    found = frames(stack)
    is_ours = bool(found) and found[0].is_own and found[0].is_exchange
    frame = found[0] if is_ours else innermost(stack)
    others = [_frames(part) for part in _THREAD.split(stack) if not _MAIN.search(part)]
    is_busy = any(
        f.is_users or f.file == "<string>"  # what was given to exec
        for thread in others
        for f in thread
    )
    return frame is not None and frame.is_exchange and not is_busy


def innermost(stack: str) -> Frame | None:
    """Returns the innermost frame outside of ddpcheck."""
    return next((f for f in frames(stack) if not f.is_own), None)


def raised_in_own_work(stack: str) -> Frame | None:
    """Returns where ddpcheck itself failed, whatever library it called; else None.

    That is in its work on what it has recorded, in a line of its own that hands no call
    of the target's on, or in a library that no code of the target's has led to.
    """
    found = frames(stack)
    frame = next((f for f in found if not f.is_library), None)
    if frame is None or not frame.is_own:
        return None
    if frame.is_own_work:
        return frame
    inside = code_origin.inside_own(frame.file)
    if found[0] is not frame:  # a library raises; in a probe there are many reasons
        may_be_users = any(f.is_users for f in found) or inside.startswith(
            (*_CALLS_USERS, "diagnose/")
        )
        return None if may_be_users else frame
    line = linecache.getline(frame.file, frame.line).strip()
    # A `raise` statement is intended; a line with `*args` calls code of the target or
    # of a library, with its arguments.
    is_meant = line.startswith("raise ") or "*args" in line
    return None if is_meant or _calls_users_directly(inside, line) else frame


def _calls_users_directly(file: str, line: str) -> bool:
    """Returns whether a line of ddpcheck may call code of the target."""
    return file.startswith(_CALLS_USERS) and "(" in line


def in_users(stack: str) -> str:
    """Returns ", at mymodel.py:12 in loss", the user's innermost line; "" for none."""
    frame = users(stack)
    return f", at {visible(frame.short)}" if frame else ""


def users(stack: str) -> Frame | None:
    """Returns the user's innermost frame."""
    return next((f for f in frames(stack) if f.is_users), None)
