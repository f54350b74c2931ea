"""What is made once per test process: warm ranks, a run of the README's example."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ddpcheck.checking import opening, scripts
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.run.session.session import Session
from ddpcheck.suite import runner

# The compiler, and what its backends import.
_COMPILER = ("torch._dynamo", "torch._dynamo.backends.common")
_MODULES = (*_COMPILER, *runner.PRELOAD_MODULES, *opening.PRELOAD_MODULES)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The engine with torch and its compiler; ranks are forked once per world size.

    Without the compiler every rank in which something asks for it would import it.
    """
    with Pool(Preload(modules=_MODULES)) as made:
        made.start()
        made.wait_for_imports()
        yield made


@pytest.fixture(scope="session")
def warm() -> Iterator[Pool]:
    """A pool that has imported torch, for the scripts of many tests."""
    with Pool(scripts.preload()) as pool:
        pool.wait_for_imports()
        yield pool


LOOK_S = 0.2  # what early_looks makes of ranks/task.py's


@pytest.fixture
def early_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that wait for each other are looked at more often than twice a second."""
    monkeypatch.setattr("ddpcheck.ranks.task.LOOK_S", LOOK_S)


@pytest.fixture
def same_generators() -> Iterator[None]:
    """Puts the generators of Python and numpy back."""
    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    random.setstate(python)
    np.random.set_state(arrays)  # noqa: NPY002


@pytest.fixture
def no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """No search for the smallest run that reproduce.py makes: a sixth of the time.

    Tests of the script are test_reproduce's; the examples of all pages have theirs.
    """
    monkeypatch.setattr("ddpcheck.diagnose.shrink.smallest", lambda _, it, *__: it)


@pytest.fixture
def no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run of fixed.py, which takes as long as the search: new processes train it.

    It is written, but like a recorded case's it is not run, so each fix keeps the proof
    that the search gave it. Tests of the file are those of diagnose/fixed.
    """
    monkeypatch.setattr(Session, "of_file", lambda *_: contextlib.nullcontext())


@pytest.fixture
def causes_alone(no_script: None, no_file: None) -> None:
    """Neither a smaller run nor fixed.py: for tests of findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """The output of `ddpcheck examples/digits_conv.py`; `report` is JSON."""

    exit_code: int
    stdout: str
    stderr: str
    report: str
    reports: Path


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """The README's example, for all tests of the xdist group "digits"."""
    folder = tmp_path_factory.mktemp("digits")
    options = ("--json", str(folder / "out.json"), "--report-dir", str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "ddpcheck", "examples/digits_conv.py", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    report = (folder / "out.json").read_text(encoding="utf-8")
    return Digits(
        exit_code=done.returncode,
        stdout=done.stdout,
        stderr=done.stderr,
        report=report,
        reports=folder,
    )
