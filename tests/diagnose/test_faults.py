"""Ranks that raise, die or hang by themselves: told as that, and nothing lost after."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil
import pytest

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool
from ddpcheck.report import output
from ddpcheck.report.data import Finding, RankRow, Report
from ddpcheck.report.output import Outputs
from ddpcheck.report.pages import pages
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.usefixtures("causes_alone")

HEAD = """\
import ctypes, os, random, resource, signal, subprocess, sys, threading, time
import torch
import torch.distributed as dist
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 3
def rank():
    return dist.get_rank() if dist.is_initialized() else -1
def loss(output, target):
    if rank() == 1:
        fault()
    return nn.functional.cross_entropy(output, target)
def fault():
"""
LINE = HEAD.count("\n") + 1  # of the fault
PIDS = Job(function="tests.ranks.jobs:pid")


@dataclass(frozen=True, slots=True)
class Bad:
    """A fault of rank 1: its code, and what the report says."""

    code: str
    slug: str
    summary: str


WHERE = f", at target.py:{LINE} in fault; the single-process run does not"
FAULTS = {
    "raises": Bad(
        "raise ValueError('bad shard')",
        "sync/rank-raised",
        f"rank 1 raises ValueError: bad shard{WHERE}",
    ),
    "exits": Bad(
        "sys.exit(4)", "sync/rank-raised", f"rank 1 raises SystemExit: 4{WHERE}"
    ),
    "os._exit": Bad(
        "os._exit(7)",
        "sync/rank-died",
        "rank 1 exited with code 7; the single-process run does not",
    ),
    "sigkill": Bad(
        "os.kill(os.getpid(), signal.SIGKILL)",
        "sync/rank-died",
        "rank 1 was killed by SIGKILL; the single-process run does not",
    ),
    "sigsegv": Bad(
        "ctypes.string_at(0)",
        "sync/rank-died",
        f"rank 1 was killed by SIGSEGV{WHERE}",
    ),
    "sigabrt": Bad(
        "os.abort()", "sync/rank-died", f"rank 1 was killed by SIGABRT{WHERE}"
    ),
    "memory": Bad(
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30,) * 2); bytearray(1 << 31)",
        "sync/rank-raised",
        f"rank 1 raises MemoryError{WHERE}",
    ),
    "hangs": Bad("time.sleep(600)", "sync/rank-hung", f"rank 1 hangs{WHERE} wait"),
    "waits for a message that nobody sends": Bad(
        "dist.recv(torch.zeros(1), 0)", "sync/rank-hung", f"rank 1 hangs{WHERE} wait"
    ),
    "hangs in C, holding the GIL": Bad(
        "while True: ctypes.PyDLL(None).sleep(600)",
        "sync/rank-hung",
        f"rank 1 hangs{WHERE} wait",
    ),
}
COLLECTIVE = "dist.all_reduce(torch.zeros(1))"


def _target(code: str) -> str:
    return f"{HEAD}    {code}\n"


def _only(report: Report) -> Finding:
    assert (report.verdict, report.exit_code) == ("divergent", 1)
    (finding,) = report.findings
    return finding


def _pids(pool: Pool) -> list[int]:
    return [outcome.value for outcome in pool.run(PIDS, 2)]


def _are_gone(pids: list[int]) -> bool:
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_one_rank_is_told_and_ranks_are_replaced(
    name: str, short: Pool, tmp_path: Path
) -> None:
    bad, before = FAULTS[name], _pids(short)
    if bad.slug != "sync/rank-hung":  # then only a busy machine meets the deadline
        short.timeout_s = 60.0
    finding = _only(checked(short, tmp_path, _target(bad.code), fix=False))
    assert (finding.slug, finding.summary) == (bad.slug, bad.summary)
    assert finding.evidence["differs"] == [1]
    rows = cast("list[RankRow]", finding.evidence["ranks"])
    assert [row["rank"] for row in rows] == [0, 1]
    assert _are_gone(before)
    assert not set(_pids(short)) & set(before)


@pytest.mark.slow
def test_ranks_that_all_work_wait_for_nobody(short: Pool, tmp_path: Path) -> None:
    source = _target("time.sleep(600)").replace("rank() == 1", "rank() >= 0")
    summary = _only(checked(short, tmp_path, source)).summary
    where = f"at target.py:{LINE} in fault"
    assert summary == (
        f"every rank is computing, {where}; the single-process run is done"
    )


@pytest.mark.slow
def test_facts_say_what_every_rank_did_last(short: Pool, tmp_path: Path) -> None:
    code = f"{COLLECTIVE}\n    print('odd', file=sys.stderr)\n    raise OSError('x')"
    source = (
        _target(code)
        .replace("== 1", ">= 0")
        .replace("    raise", "    if rank() == 1: raise")
    )
    report = checked(short, tmp_path, source)
    finding = _only(report)
    call = f"number 1, all_reduce of float64 (1,) at target.py:{LINE}"
    at = f"at target.py:{LINE + 2} in fault"
    assert finding.facts == (
        f"rank 1 differs from the others, {at}",
        f"rank 1 in step 1: raised OSError: x, {at}; backwards begun: 0; "
        f"last collective: {call}",
        "rank 0 in step 1: waited for the others, in the backward; "
        f"backwards begun: 1; last collective: {call}",
        "rank 1 wrote last: odd",
    )
    assert finding.where == f"{tmp_path / 'target.py'}:{LINE + 2}"
    html = output.render(report, "html")
    for text in ("rank 0", "rank 1", "the backward", call, "raised OSError: x", "odd"):
        assert text in html
    assert "sync/rank-raised: rank 1 raises OSError" in output.render(report, "junit")
    assert "sync/rank-raised at " in output.terminal(report, Outputs(), "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "index", "told"),
    [
        (
            _target(COLLECTIVE),
            1,
            "collective 1: rank 0: no collective of the target; rank 1: "
            f"call all_reduce of float64 (1,) at target.py:{LINE}",
        ),
        (
            _target("dist.all_reduce(torch.zeros(2 + rank()))").replace("== 1", ">= 0"),
            1,
            "collective 1: "
            f"rank 0: call all_reduce of float64 (2,) at target.py:{LINE}; "
            f"rank 1: call all_reduce of float64 (3,) at target.py:{LINE}",
        ),
        # What it met on rank 0 is not the same call: the exception follows from that.
        (
            _target(
                "dist.barrier()\n"
                f"    if rank() == 1: {COLLECTIVE}; raise ValueError('garbage')\n"
                "    dist.broadcast(torch.zeros(1), 0)"
            ).replace("== 1:\n", ">= 0:\n"),
            2,
            "collective 2: "
            f"rank 0: call broadcast of float64 (1,) at target.py:{LINE + 2}; "
            f"rank 1: call all_reduce of float64 (1,) at target.py:{LINE + 1}",
        ),
    ],
    ids=["one more", "another size", "another one, then an exception"],
)
def test_different_collectives_are_the_cause_of_what_follows(
    source: str, index: int, told: str, short: Pool, tmp_path: Path
) -> None:
    finding = _only(checked(short, tmp_path, source, fix=False))
    assert finding.slug == "sync/collective-mismatch"
    assert finding.evidence["collective"] == index
    assert finding.facts[1] == told


@pytest.mark.parametrize(
    ("code", "slug"),
    [
        ("raise ValueError", "sync/rank-raised"),
        ("os._exit(3)", "sync/rank-died"),
        ("time.sleep(600)", "sync/rank-hung"),
    ],
)
def test_rank_that_never_comes_to_a_collective_calls_no_other(
    code: str, slug: str, short: Pool, tmp_path: Path
) -> None:
    source = _target(code).replace(
        "    return nn.", f"    if rank() >= 0: {COLLECTIVE}\n    return nn."
    )
    finding = _only(checked(short, tmp_path, source, fix=False))
    assert (finding.slug, finding.evidence["differs"]) == (slug, [1])


@pytest.mark.slow
def test_import_that_fails_on_one_rank_is_that_ranks_exception(
    short: Pool, tmp_path: Path
) -> None:
    source = (
        f"import os\nif os.environ.get('RANK') == '1':\n    1 / 0\n{_target('pass')}"
    )
    finding = _only(checked(short, tmp_path, source))
    assert finding.summary == (
        "rank 1 raises ZeroDivisionError: division by zero, at target.py:3 in "
        "<module>; the single-process run does not"
    )


# Changed by rank 1 in every step: harmless to its own run, if not to the next.
DIRT = {
    "prints megabytes": "sys.stderr.write(4096 * 'long\\n'); print((4 << 20) * 'x')",
    "changes directory": "os.chdir('/')",
    "closes stdout": "sys.stdout.close(); os.dup2(2, 1)",
    "starts threads": "threading.Thread(target=time.sleep, args=(600,)).start()",
    "leaves children": "subprocess.Popen(['sleep', '600'])",
    "forks": "os.fork()",
    "destroys the group": "dist.is_initialized() and dist.destroy_process_group()",
    "default dtype": "torch.set_default_dtype(torch.float32)",
    "default device": "torch.set_default_device('meta')",
    "seeds everything": "torch.manual_seed(5); random.seed(5)",
    "slow import": "pass",
}
REPLACED = {
    "closes stdout",
    "starts threads",
    "leaves children",
    "forks",
    "destroys the group",
    "default device",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DIRT)
def test_harmless_deed_is_equivalent_and_reaches_no_other_case(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    source = _target(DIRT[name])
    if name == "slow import":
        source += "if os.environ.get('RANK') == '1': time.sleep(0.5)\n"
    before = _pids(pool)
    report = checked(pool, tmp_path, source)
    assert (report.verdict, report.findings) == ("equivalent", ())
    after = _pids(pool)
    assert (set(after) == set(before)) is (name not in REPLACED)
    children = psutil.Process(after[1]).children()
    assert children == []


def test_every_fault_rule_has_a_page_with_its_limits() -> None:
    for bad in FAULTS.values():
        assert (
            "is not known" in pages.sections(pages.page(bad.slug))["How it was found"]
        )
