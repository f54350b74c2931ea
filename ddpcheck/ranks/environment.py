"""The surroundings of the fork server, and so of all ranks: variables, a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Keeps `python -c`, which a fork server is, from importing from the working folder.
SAFE_PATH = "PYTHONSAFEPATH"
_TUNABLES = "GLIBC_TUNABLES"
_LARGE_PAGES = "glibc.malloc.hugetlb"


def interface(*, loopback: bool) -> dict[str, str]:
    """Returns the variable that keeps gloo to this machine.

    It would take the address of the host's name. With ranks on other machines it must,
    or follow the user's own GLOO_SOCKET_IFNAME.
    """
    if not loopback:
        return {}
    name = "lo" if Path("/sys/class/net/lo").exists() else "lo0"
    return {"GLOO_SOCKET_IFNAME": name}


def large_pages() -> dict[str, str]:
    """Returns the variable by which glibc asks for large pages, beside the user's own.

    What the imports left in memory is then copied for each rank, and taken down, by
    large pages: a fifth of the time that a rank costs. Nothing where there is no glibc.
    """
    own = [t for t in os.environ.get(_TUNABLES, "").split(":") if t]
    if not any(t.startswith(_LARGE_PAGES) for t in own):
        own.append(f"{_LARGE_PAGES}=1")
    return {_TUNABLES: ":".join(own)}


def working_folder() -> list[str]:
    """Returns where the tool was started: what lies there can be imported, too."""
    try:
        return [os.getcwd()]  # noqa: PTH109 (a Path would be resolved)
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def changed(values: dict[str, str]) -> Iterator[None]:
    """Sets variables for a child that is started inside, and puts them back."""
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


def variables() -> dict[Any, Any]:
    """Returns a copy of all, to be compared with a later one or put back.

    As bytes where they are kept so: decoding them would take ten times as long.
    """
    return dict(getattr(os.environ, "_data", os.environ))


def put_back(before: dict[Any, Any]) -> None:
    """Makes the variables what `variables` returned."""
    if variables() != before:
        os.environ.clear()
        os.environ.update({os.fsdecode(k): os.fsdecode(v) for k, v in before.items()})
