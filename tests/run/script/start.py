"""Runs a script to its end by the driver, as a single process of a check does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from ddpcheck.ranks.messages import Seat
from ddpcheck.run.script.driver import Driver
from ddpcheck.target.script import Script

path, folder, *flags = sys.argv[1:]
seat = Seat(rank=0, world_size=0, folder=folder, name="solo-0", timeout_s=60.0)
here = path.rpartition("/")[0]
script = Script(path=path, folder=here, **dict.fromkeys(flags, True))
driver = Driver(script, seat)
while driver.resume() != "ended":
    pass
"""


def to_its_end(
    script: Path, folder: Path, **flags: bool
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own.

    Args:
        script: the file.
        folder: of the check.
        flags: fields of Script.
    """
    on = [name for name, value in flags.items() if value]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(script), str(folder), *on],
        check=False,
        capture_output=True,
        text=True,
    )
