"""Where the code of a file comes from: torch, ddpcheck, another package, or the user.

Decided by its path, on this machine or the one that a report comes from; a folder of
the user may have the name of a package. Nothing is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import PurePath

# Debian's Python, and so many containers, have the second.
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_INTERPRETERS = re.compile(r"/lib(64)?/python3")
_OWN = str(PurePath(__file__).parents[1]) + "/"


def inside_packages(file: str) -> str:
    """Returns the part behind the folder of installed packages; "" for other files.

    >>> inside_packages("/usr/lib/python3/dist-packages/yaml/nodes.py")
    'yaml/nodes.py'
    """
    found = _PACKAGES.match(file)
    return file[found.end() :] if found else ""


def inside_own(file: str) -> str:
    """Returns the part behind ddpcheck's folder; "" for other files."""
    if file.startswith(_OWN):
        return file[len(_OWN) :]
    package, _, inside = inside_packages(file).partition("/")
    return inside if package == "ddpcheck" else ""


def inside_torch(file: str) -> str:
    """Returns the part behind torch's folder; "" for other files."""
    built = _folder_of_torch()
    if built and file.startswith(built):
        return file[len(built) :]
    package, _, inside = inside_packages(file).partition("/")
    return inside if package == "torch" else ""


def is_library(file: str) -> bool:
    """Returns whether it is code of a package other than ddpcheck, or of Python."""
    if inside_own(file):
        return False
    installed = inside_packages(file) or _INTERPRETERS.search(file)
    return bool(installed or inside_torch(file)) or file.startswith("<")


def is_users(file: str) -> bool:
    """Returns whether it is code of the user: no package, not Python, not ddpcheck."""
    return not is_library(file) and not inside_own(file)


@functools.cache
def _folder_of_torch() -> str:
    """Returns torch's folder here: one that was built from source lies anywhere."""
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return ""
    places = found.submodule_search_locations if found else None
    return f"{places[0]}/" if places else ""
