"""Where a session keeps its files: in memory, and large ones on a disk.

Both folders are named alike, so that whoever knows one can remove the other.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def on_disk(folder: Path) -> Path:
    """Returns the place for large files of the session whose folder this is.

    Made by whoever needs it, in the folder for temporary files.
    """
    return Path(tempfile.gettempdir()) / f"{folder.name}-large"


def remove(folder: Path) -> None:
    """Removes both folders of a session."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(on_disk(folder), ignore_errors=True)
