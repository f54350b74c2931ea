"""Checks in a group of processes that a launcher started: two hosts on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpcheck.report import data as reports
from tests.end_to_end.conftest import DEADLINE_S, Terminal
from tests.end_to_end.wrong_files import target
from tests.ports import held_port

BROKEN = target(
    loss="def loss(output, target):\n"
    "    return nn.functional.cross_entropy(output, target, reduction='sum')\n"
)


def _side_by_side(
    commands: list[list[str]], folder: Path, environments: list[dict[str, str]]
) -> list[tuple[int, str, str]]:
    """Returns exit code, output and errors of commands that run together."""
    started = [
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    ended = []
    try:
        for process in started:
            out, err = process.communicate(timeout=DEADLINE_S)
            ended.append((process.returncode, out, err))
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return ended


@pytest.fixture
def environment(terminal: Terminal) -> dict[str, str]:
    """Variables of a terminal on a machine that is alone."""
    # Two machines find each other by names and addresses; this one has loopback.
    return terminal.environment | {"GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture
def port() -> Iterator[int]:
    """A port for the store of a launcher."""
    with held_port() as held:
        yield held


@pytest.mark.slow
def test_two_agents_of_torchrun_make_one_check(
    terminal: Terminal, environment: dict[str, str], port: int
) -> None:
    name = terminal.write(BROKEN)
    launch = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    launch += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = ["-m", "ddpcheck", name, "--modes", "ddp"]
    commands = [
        [sys.executable, "-m", *launch, f"--node-rank={node}", *command]
        for node in (0, 1)
    ]
    first, second = _side_by_side(commands, terminal.folder, [environment] * 2)
    lines = first[1].splitlines()
    assert lines[0].startswith("ddpcheck mymodel.py: Linear, 10 parameters"), first
    assert lines[-1].startswith("DIVERGENT: 1 of 1 run, ")
    assert second[1] == ""
    path = terminal.folder / "reports" / "mymodel" / "report.json"
    report = reports.from_json(path.read_text(encoding="utf-8"))
    assert [(r.mode, r.world_size) for r in report.runs] == [("ddp", 2)]
    (finding,) = report.findings
    assert finding.slug == "loss/sum-reduction"
    assert finding.fix is not None
    assert finding.fix.proof == "file"
    assert (path.parent / "fixed.py").exists()
    here = socket.gethostname()
    assert report.environment["machines"] == f"{here}: rank 0, 1"
    # torchrun's own code is 1 for any failure; it prints those of the ranks.
    for rank, (exit_code, _, err) in enumerate((first, second)):
        assert exit_code == 1
        assert f"rank      : {rank} (local_rank: 0)" in err
        assert "exitcode  : 1 (pid:" in err


RAISES = """
import torch
import torch.distributed as dist
from torch import nn
torch.manual_seed(0)
class Last(nn.Linear):
    def forward(self, x):
        if dist.is_initialized() and dist.get_rank() == 1:
            raise ValueError("bad shard")
        return super().forward(x)
model = Last(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss()
"""


@pytest.mark.slow
def test_rank_that_raises_is_reported_by_all_processes_of_a_group(
    terminal: Terminal, environment: dict[str, str], port: int
) -> None:
    # A rank that fails is run next to others elsewhere; here a process has one rank.
    name = terminal.write(RAISES)
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "ddpcheck", name, "--modes", "ddp"]
    first, second = _side_by_side(
        [command] * 2,
        terminal.folder,
        [environment | group | {"RANK": str(rank)} for rank in (0, 1)],
    )
    assert [first[0], second[0]] == [1, 1], (first, second)
    assert "sync/rank-raised" in first[1]
    assert "rank 1 raises ValueError: bad shard" in first[1]
    assert (first[2], second[1:]) == ("", ("", ""))
