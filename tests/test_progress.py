"""The live line: on terminals, and nowhere else."""

from __future__ import annotations

import io
import time

import pytest

from ddpcheck.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Returns True."""
        return True


@pytest.fixture(autouse=True)
def _xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")


def test_terminal_gets_a_line_that_is_erased() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress("2 of 6 runs")
    assert stream.getvalue() == "\r\x1b[Kddpcheck: 2 of 6 runs (0 s)\r\x1b[K"


def test_line_never_fills_the_last_column() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress("x" * 100)
    shown = stream.getvalue().split("\r\x1b[K")[1]
    assert len(shown) == 39


def test_line_goes_on_counting_seconds() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress("waiting")
        deadline = time.monotonic() + 10
        while stream.getvalue().count("waiting") < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("case", ["file", "dumb", "quiet"])
def test_elsewhere_nothing_is_written(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO() if case == "file" else Terminal()
    if case == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    with Progress(stream, wanted=case != "quiet") as progress:
        progress("2 of 6 runs")
    assert stream.getvalue() == ""
