"""The live line on terminals, and a line now and then in a log."""

from __future__ import annotations

import io
import time

import pytest

from ddpcheck.report.progress import Progress


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


def _lines(stream: io.StringIO, wanted: int) -> list[str]:
    deadline = time.monotonic() + 10
    while stream.getvalue().count("\n") < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return stream.getvalue().splitlines()


def test_log_gets_phase_part_step_and_time_left() -> None:
    stream = io.StringIO()
    with Progress(stream, log_s=0.05) as progress:
        progress("making runs, 1 of 6 done")
        progress.detail("trying loss/sum-reduction")
        progress.expect(600)
        progress.follow(lambda: "ddp W=2 step 2 of 3")
        lines = _lines(stream, 2)
    assert set(lines) == {
        "ddpcheck: making runs, 1 of 6 done, trying loss/sum-reduction, "
        "ddp W=2 step 2 of 3 (0 s, about 10 min left)"
    }


def test_next_phase_forgets_part_and_time_left() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress("making runs")
        progress.detail("the first")
        progress.expect(600)
        progress("diagnosing")
    shown = stream.getvalue().split("\r\x1b[K")
    assert "ddpcheck: diagnosing (0 s)" in shown


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_announcement_stays(kind: type[io.StringIO]) -> None:
    stream = kind()
    with Progress(stream) as progress:
        progress.announce("6 runs take about 4 min")
    assert "ddpcheck: 6 runs take about 4 min\n" in stream.getvalue()
    silent = io.StringIO()
    with Progress(silent, wanted=False) as progress:
        progress.announce("6 runs take about 4 min")
    assert silent.getvalue() == ""
