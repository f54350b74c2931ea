"""A check that is ended before it is complete reports the runs that were made."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import signal
import threading
import xml.etree.ElementTree as ET
from typing import Any

import psutil
import pytest

from ddpcheck.ranks.server import preload
from tests.end_to_end.conftest import Command, Ended, Terminal
from tests.end_to_end.wrong_files import target

# Rank 0 counts its forwards, and hangs in one of them. A run has three.
COUNTING = """\
import os, pathlib, time
import torch
from torch import nn

COUNT = pathlib.Path({count!r})


class Net(nn.Linear):
    def forward(self, x):
        group = torch.distributed
        if group.is_initialized() and group.get_rank() == 0:
            with COUNT.open("a") as file:
                file.write("x")
            if COUNT.stat().st_size == {hangs}:
                COUNT.with_name("mark").touch()
                time.sleep(600)
        return super().forward(x)


def model():
    torch.manual_seed(0)
    return Net(4, 2)


def batch():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction={reduction!r})
"""
# Runs of one world size are made one after the other.
TWO_RUNS = ("--world-sizes", "2", "--modes", "ddp", "--timeout-s", "600")


def _start(terminal: Terminal, *more: str, hangs: int, reduction: str) -> Command:
    """Starts the command; returns once rank 0 hangs in that forward."""
    source = COUNTING.format(
        count=str(terminal.folder / "count"), hangs=hangs, reduction=reduction
    )
    name = terminal.write(source)
    command = terminal.start(name, *TWO_RUNS, *more, "--json", "out.json")
    command.wait_for((terminal.folder / "mark").exists)
    return command


def _report(terminal: Terminal) -> Any:
    return json.loads((terminal.folder / "out.json").read_text("utf-8"))


def test_ctrl_c_reports_the_divergence_that_was_seen(terminal: Terminal) -> None:
    loss = ("--loss", "sum,mean")
    command = _start(
        terminal, *loss, "--junit-xml", "out.xml", hangs=4, reduction="mean"
    )
    command.signal(signal.SIGINT)
    ended = command.end()
    lines = ended.stdout.splitlines()
    why = "interrupted by SIGINT (Ctrl-C) after 1 of 2 runs"
    assert (ended.exit_code, ended.stderr) == (130, "")
    assert lines[0] == f"Not complete: {why}"
    assert " ".join("".join(lines[-2:]).split()).startswith("DIVERGENT: 1 of 1 run, ")
    document = _report(terminal)
    assert (document["verdict"], document["exit_code"], document["ended"]) == (
        "divergent",
        130,
        why,
    )
    assert [(r["mode"], r["loss"], r["verdict"]) for r in document["runs"]] == [
        ("ddp", "sum", "divergent")
    ]
    assert document["not_compared"][0] == {
        "what": "ddp at world size 2",
        "why": "the check ended before this run",
    }
    folder = terminal.folder / "reports" / "mymodel"
    assert f"Not complete: {why}" in (folder / "report.html").read_text("utf-8")
    suite = ET.parse(terminal.folder / "out.xml").find("testsuite")
    assert suite is not None
    ended_property = suite.find("properties/property[@name='ended']")
    assert ended_property is not None
    assert ended_property.get("value") == why
    terminal.assert_clean(command)


def test_termination_makes_no_verdict_of_equal_runs(terminal: Terminal) -> None:
    command = _start(terminal, "--loss", "mean,sum", hangs=4, reduction="mean")
    command.process.send_signal(signal.SIGTERM)
    ended = command.end()
    why = "terminated by SIGTERM after 1 of 2 runs"
    assert (ended.exit_code, ended.stderr) == (143, "")
    verdict = " ".join(ended.stdout[ended.stdout.index("NOT CHECKED") :].split())
    assert verdict.startswith(f"NOT CHECKED: {why}; ")
    assert verdict.endswith(" comparisons equal so far")
    document = _report(terminal)
    assert (document["verdict"], document["exit_code"], document["ended"]) == (
        "not-checked",
        143,
        why,
    )
    assert [run["verdict"] for run in document["runs"]] == ["equivalent"]
    terminal.assert_clean(command)


def test_ctrl_c_in_the_diagnosis_keeps_the_verdicts(terminal: Terminal) -> None:
    command = _start(terminal, hangs=4, reduction="sum")
    command.signal(signal.SIGINT)
    ended = command.end()
    why = "interrupted by SIGINT (Ctrl-C) in the diagnosis"
    assert (ended.exit_code, ended.stderr) == (130, "")
    assert ended.stdout.splitlines()[0] == f"Not complete: {why}"
    document = _report(terminal)
    assert (document["verdict"], document["ended"]) == ("divergent", why)
    assert [run["verdict"] for run in document["runs"]] == ["divergent"]
    terminal.assert_clean(command)


def test_signal_in_the_reference_reports_that_nothing_was_checked(
    terminal: Terminal,
) -> None:
    mark = terminal.folder / "mark"
    source = target(
        loss="def loss(output, target):\n"
        f"    open({str(mark)!r}, 'w').close()\n"
        "    import time\n"
        "    time.sleep(600)\n"
    )
    command = terminal.start(terminal.write(source), *TWO_RUNS, "--json", "out.json")
    command.wait_for(mark.exists)
    command.signal(signal.SIGINT)
    why = (
        "interrupted by SIGINT (Ctrl-C) while running the reference: single process on "
        "the global batch"
    )
    says = f"ddpcheck: not checked: {why}\n"
    assert command.end() == Ended(exit_code=130, stdout="", stderr=says)
    document = _report(terminal)
    assert (document["verdict"], document["exit_code"], document["ended"]) == (
        "not-checked",
        130,
        why,
    )
    terminal.assert_clean(command)


@pytest.mark.slow
def test_end_of_the_fork_server_reports_the_runs_that_were_made(
    terminal: Terminal,
) -> None:
    command = _start(terminal, "--loss", "sum,mean", hangs=4, reduction="mean")
    (server,) = [
        child
        for child in psutil.Process(command.process.pid).children()
        if preload.__name__ in " ".join(child.cmdline())
        or "forkserver" in " ".join(child.cmdline())
    ]
    server.kill()
    ended = command.end()
    why = "the fork server was killed, and all ranks with it, after 1 of 2 runs"
    document = _report(terminal)
    assert ended.exit_code == 1
    assert (document["verdict"], document["exit_code"], document["ended"]) == (
        "divergent",
        1,
        why,
    )
    terminal.assert_clean(command)


@pytest.mark.slow
def test_ctrl_c_while_the_script_is_shrunk_keeps_verdict_and_script(
    terminal: Terminal,
) -> None:
    mark = terminal.folder / "mark"
    # A batch of fewer samples is made for the script alone.
    source = target(
        loss="def loss(output, target):\n"
        "    if len(target) == 2 and not torch.distributed.is_initialized():\n"
        f"        open({str(mark)!r}, 'w').close()\n"
        "        import time\n"
        "        time.sleep(600)\n"
        "    return nn.functional.cross_entropy(output, target, reduction='sum')\n"
    )
    name = terminal.write(source)
    options = ("--world-sizes", "2", "--modes", "ddp", "--no-fix")
    command = terminal.start(name, *options, "--json", "out.json")
    command.wait_for(mark.exists)
    folder = terminal.folder / "reports" / "mymodel"
    document = _report(terminal)
    assert (document["verdict"], document["exit_code"]) == ("divergent", 1)
    assert (folder / "reproduce.py").read_text("utf-8") == document["reproduce"]
    command.signal(signal.SIGINT)
    ended = command.end()
    assert (ended.exit_code, ended.stderr) == (130, "")
    assert ended.stdout.splitlines()[-1].startswith("DIVERGENT: 1 of 1 run, ")
    assert ended.stdout.count("DIVERGENT") == 1
    assert _report(terminal) == {**document, "exit_code": 130}
    assert document["reproduce"] == (folder / "reproduce.py").read_text("utf-8")
    terminal.assert_clean(command)


SLOW = """\
def loss(output, target):
    import time
    time.sleep(1.0 if torch.distributed.is_initialized() else 0.5)
    return nn.functional.cross_entropy(output, target)
"""


def test_limit_that_is_too_short_is_no_hang(terminal: Terminal) -> None:
    name = terminal.write(target(loss=SLOW))
    options = ("--world-sizes", "2", "--modes", "ddp", "--json", "out.json")
    command = terminal.start(name, *options, "--timeout-s", "2")
    ended = command.end()
    assert ended.exit_code == 3
    (run,) = _report(terminal)["runs"]
    assert run["seconds"] < 5
    assert re.fullmatch(
        r"it did not end within --timeout-s 2, which is no hang: from the single-"
        r"process time it may need about \d+ s",
        run["why"],
    )
    terminal.assert_clean(command)


SLOW_AT_4 = """\
def loss(output, target):
    import time
    slow = torch.distributed.is_initialized() and len(target) == 2
    time.sleep(2.0 if slow else 0.5)
    return nn.functional.cross_entropy(output, target)
"""


def test_run_that_the_limit_cuts_off_makes_no_pass(terminal: Terminal) -> None:
    name = terminal.write(target(loss=SLOW_AT_4))
    options = ("--world-sizes", "2,4", "--modes", "ddp", "--json", "out.json")
    ended = terminal.run(name, *options, "--timeout-s", "4")
    assert ended.exit_code == 3
    assert [run["verdict"] for run in _report(terminal)["runs"]] == [
        "equivalent",
        "not-checked",
    ]
    assert ended.stdout.splitlines()[-1] == (
        "NOT CHECKED: 1 of 2 runs; 18 comparisons equal in the others"
    )


class _Screen:
    """The other end of a terminal: keeps what was written to it."""

    def __init__(self) -> None:
        self.end, self.name = pty.openpty()
        self.text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.end, 4096)
            except OSError:  # nobody has it open any more
                return
            self.text += data.decode()

    def close(self) -> None:
        """Closes both ends."""
        os.close(self.name)
        self._thread.join(10)
        os.close(self.end)


def test_terminal_shows_runs_left_and_the_step(terminal: Terminal) -> None:
    screen = _Screen()
    count = str(terminal.folder / "count")
    source = COUNTING.format(count=count, hangs=5, reduction="mean")
    terminal.environment |= {"TERM": "xterm", "COLUMNS": "100"}
    command = terminal.start(
        terminal.write(source), *TWO_RUNS, "--loss", "mean,sum", stderr=screen.name
    )
    shown = "ddpcheck: making runs, 1 of 2 done, ddp W=2 step 2 of 3 ("
    command.wait_for(lambda: shown in screen.text)
    command.process.send_signal(signal.SIGTERM)
    assert command.end().exit_code == 143
    screen.close()
    assert "ddpcheck: importing torch and the target (" in screen.text
    assert screen.text.endswith("\r\x1b[K")
    terminal.assert_clean(command)


@pytest.mark.slow
def test_log_gets_a_line_every_15_seconds(terminal: Terminal) -> None:
    log = terminal.folder / "log"
    count = str(terminal.folder / "count")
    source = COUNTING.format(count=count, hangs=1, reduction="mean")
    name = terminal.write(source)
    with log.open("w") as file:
        command = terminal.start(name, *TWO_RUNS, stderr=file.fileno())
        command.wait_for(lambda: log.read_text("utf-8").count("\n") > 1)
    command.process.send_signal(signal.SIGTERM)
    assert command.end().exit_code == 143
    lines = log.read_text("utf-8").splitlines()
    assert lines[-1] == (
        "ddpcheck: not checked: terminated by SIGTERM while making runs, 0 of 1 done"
    )
    shown = "ddpcheck: making runs, 0 of 1 done, ddp W=2 step 1 of 3"
    assert {line.rpartition(" (")[0] for line in lines[:-1]} == {shown}
    seconds = [float(line.rpartition(" (")[2].split(" ")[0]) for line in lines[:-1]]
    assert seconds[0] >= 15
    assert min(b - a for a, b in itertools.pairwise(seconds)) >= 14
