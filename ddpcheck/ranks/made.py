"""What a session's processes made outside of its folder: a list, and its removal.

The processes write down each path before they make it (run/script/traces.py). The list
is in the session's folder; when that is removed, what is in the list is removed first,
also by the fork server of a tool that was killed. A later session that finds the folder
leaves it: by then a path may be the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIST = "made.jsonl"  # entries: "made", "kept", "refused" or "program", and a path


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What a script was not allowed to do, whether or not it noticed.

    `how`: "overwrite", "remove", "move", "change".
    """

    path: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What the processes of a check have written down, in order, each once."""

    paths: tuple[str, ...]
    refused: tuple[Refused, ...]
    programs: tuple[str, ...]  # that the script started; what they write is not seen


def read(folder: Path) -> Made:
    """Returns what the processes of a check have written down."""
    entries = _entries(folder)
    refused = [
        Refused(path=path, how=how)
        for kind, path, *how_ in entries
        if kind == "refused"
        for how in how_
    ]
    return Made(
        paths=tuple(dict.fromkeys(e[1] for e in entries if e[0] == "made")),
        refused=tuple(dict.fromkeys(refused)),
        programs=tuple(dict.fromkeys(e[1] for e in entries if e[0] == "program")),
    )


def remove(folder: Path) -> list[str]:
    """Removes what a check has made, newest first; returns what it could not remove.

    Folders that existed before get back their time of modification.
    """
    entries = _entries(folder)
    kept = {entry[1] for entry in entries if entry[0] == "kept"}
    made = [entry for entry in entries if entry[0] == "made"]
    left = [
        path
        for path in dict.fromkeys(entry[1] for entry in reversed(made))
        if not is_within_any(kept, path) and not _removed(path, kept)
    ]
    for _, _, parent, times, _ in reversed(made):  # the earliest is written last
        if times and not any(os.path.dirname(path) == parent for path in left):  # noqa: PTH120
            with contextlib.suppress(OSError):
                os.utime(parent, ns=tuple(times))
    return left


def _removed(path: str, kept: set[str]) -> bool:
    """Removes a path; returns whether it is gone."""
    try:
        if path in kept:
            return False
        if not os.path.isdir(path) or os.path.islink(path):  # noqa: PTH112, PTH114
            os.unlink(path)  # noqa: PTH108
        elif any(is_within(one, path) for one in kept):
            for name in os.listdir(path):  # noqa: PTH208
                _removed(f"{path}/{name}", kept)
            return False
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _entries(folder: Path) -> list[list[Any]]:
    try:
        text = (folder / LIST).read_text(encoding="utf-8")
    except OSError:
        return []
    # The last line is incomplete if the process was killed while it wrote.
    return [json.loads(line) for line in text.split("\n")[:-1]]


def is_within(path: str, folder: str) -> bool:
    """Returns whether a path is a folder or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_within_any(folders: Container[str], path: str) -> bool:
    """Returns whether a path, or a folder that it is in, is among these."""
    while path not in folders:
        above = os.path.dirname(path)  # noqa: PTH120
        if above == path:
            return False
        path = above
    return True
