"""The judge of the files: a script in plain torch, in one process for a module."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.diagnose.fixed import judge

Differences = Callable[[Path], list[float]]


@pytest.fixture(scope="module")
def differences() -> Iterator[Differences]:
    """What a script in plain torch finds of a file at two and four ranks.

    One process for all files: importing torch and its compiler takes as long as three
    of these tests. The script forks a process for each training.
    """
    command = [sys.executable, judge.__file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        given, answers = process.stdin, process.stdout
        assert given is not None
        assert answers is not None

        def found(path: Path) -> list[float]:
            given.write(f"{path}\n")
            given.flush()
            return [float(answers.readline()) for _ in judge.WORLD_SIZES]

        yield found
