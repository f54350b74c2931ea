"""--accept and --baseline on real ranks: what is worse than what was accepted fails.

The command line runs in this process, on the ranks of the session: what decides an exit
code is the same as in a process of its own, which would import torch for each command.
One test has the command in its own process, and one has pytest's.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpcheck.api import DivergenceError
from ddpcheck.checking import checking
from ddpcheck.checking.plan import Cell
from ddpcheck.cli import main as cli
from ddpcheck.plugin import items
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Fault, Run
from ddpcheck.run.spec import CUT_OFF
from ddpcheck.target.options import Options
from tests.end_to_end.conftest import Terminal
from tests.end_to_end.test_plugin import run as run_pytest
from tests.report.render import sample

# A mean over what a mask leaves: a local count. Of 8 ranks the first has nothing to
# count; of 4, and of 2, every rank has something.
MASKED = """\
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Linear(8, 1)


def batch():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(32, 8, generator=g)
    m = torch.rand(32, 1, generator=g) < 0.6
    m[:4] = False
    return x, torch.cat([x.sum(1, keepdim=True), m.double()], 1)


def loss(output, target):
    t, m = target[:, :1], target[:, 1:]
    return ((output - t) ** 2 * m).sum() / m.sum()
"""
RAISING = (
    MASKED
    + """

divided = loss


def loss(output, target):
    if target[:, 1:].sum() == 0:
        raise ValueError("nothing to count")
    return divided(output, target)
"""
)
# Two causes at 4 ranks, one at 2: only a rank of 4 has as few as 2 samples.
SECOND = """\
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=g), torch.randn(8, 3, generator=g)


def loss(output, target):
    return (output - target).square().mean() * (2.0 if len(target) == 2 else 1.0)
"""
RAISED = Fault(kind="raised", rank=0, step=0, summary="TypeError: a list")
ACCEPT = "--accept=loss/local-normalizer=by design"
DDP = "--modes=ddp"
ARGUMENTS = ("mymodel.py", "--json", "now.json")


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks of mymodel.py in a folder of its own."""

    folder: Path

    def write(self, text: str) -> None:
        """Writes mymodel.py."""
        (self.folder / "mymodel.py").write_text(text, encoding="utf-8")

    def check(self, *options: str) -> tuple[int, dict[str, Any]]:
        """Returns the exit code of a check of mymodel.py, and its report."""
        code = cli.main([*ARGUMENTS, *options])
        return code, self.report(code)

    def report(self, code: int) -> dict[str, Any]:
        """Returns the report of a check that had this exit code."""
        text = (self.folder / "now.json").read_text(encoding="utf-8")
        document: dict[str, Any] = json.loads(text)
        assert document["exit_code"] == code
        return document


@pytest.fixture
def gate(
    pool: Pool,
    causes_alone: None,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Gate:
    """The command line on the ranks of the session, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    check = functools.partial(checking.check, pool)
    monkeypatch.setattr(checking, "check_file", check)
    return Gate(tmp_path)


def _findings(document: dict[str, Any]) -> list[tuple[str, list[int], str | None]]:
    return [(f["slug"], f["runs"], f["accepted"]) for f in document["findings"]]


def test_nan_on_one_rank_is_not_covered_by_the_cause_of_other_world_sizes(
    gate: Gate,
) -> None:
    gate.write(MASKED)
    code, document = gate.check(DDP, "--world-sizes=2,4,8", ACCEPT)
    assert code == 1
    assert _findings(document) == [
        ("loss/empty-shard", [2], None),
        ("loss/local-normalizer", [0, 1], "by design"),
    ]
    assert document["findings"][1]["proven_runs"] == [0, 1]
    assert document["warnings"] == []
    # Who accepts that by its own name knows of it.
    also = "--accept=loss/empty-shard=so"
    code, _ = gate.check(DDP, "--world-sizes=4,8", ACCEPT, also)
    assert code == 0


@pytest.mark.slow
def test_nan_on_one_rank_is_not_covered_by_a_baseline_of_other_world_sizes(
    gate: Gate,
) -> None:
    gate.write(MASKED)
    assert gate.check(DDP, "--world-sizes=2,4")[0] == 1
    (gate.folder / "now.json").rename(gate.folder / "known.json")
    baseline = "--baseline=known.json"
    assert gate.check(DDP, "--world-sizes=2,4", baseline)[0] == 0
    code, document = gate.check(DDP, "--world-sizes=2,4,8", baseline)
    assert code == 1
    assert _findings(document) == [
        ("loss/empty-shard", [2], None),
        ("loss/local-normalizer", [0, 1], "in the baseline known.json"),
    ]
    assert document["warnings"] == [
        "new since the baseline: loss/empty-shard (the baseline has no such run) in "
        "ddp W=8"
    ]


@pytest.mark.slow
def test_rank_that_raises_is_not_covered_by_the_cause_of_another_world_size(
    gate: Gate,
) -> None:
    gate.write(RAISING)
    code, document = gate.check(DDP, "--world-sizes=2,8", ACCEPT)
    assert code == 1
    assert _findings(document) == [
        ("sync/rank-raised", [1], None),
        ("loss/local-normalizer", [0], "by design"),
    ]


@pytest.mark.slow
def test_second_cause_at_one_world_size_is_not_covered(gate: Gate) -> None:
    gate.write(SECOND)
    accept = "--accept=norm/local-batch-stats=by design"
    code, document = gate.check("--world-sizes=2,4", accept)
    assert code == 1
    *rest, covered = _findings(document)
    assert covered == ("norm/local-batch-stats", [0, 1, 2, 3], "by design")
    assert rest
    assert all(runs == [3] and reason is None for _, runs, reason in rest)


@pytest.mark.slow
def test_replicas_that_differ_by_more_than_ddp_does_are_not_covered(
    gate: Gate,
) -> None:
    gate.write(
        SECOND.replace(" * (2.0 if len(target) == 2 else 1.0)", "").replace(
            "    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))",
            "    return Net(nn.Linear(6, 3), nn.BatchNorm1d(3))\n\n\n"
            "class Net(nn.Sequential):\n"
            "    def forward(self, x):\n"
            "        factor = 1.5 if getattr(self, '_is_replica', False) else 1.0\n"
            "        return super().forward(x) * factor",
        )
    )
    accept = "--accept=norm/local-batch-stats=by design"
    code, document = gate.check("--world-sizes=2", accept)
    assert code == 1
    assert _findings(document) == [
        ("unknown", [0], None),
        ("norm/local-batch-stats", [0, 1], "by design"),
    ]
    assert document["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("modes", ["dp", "dp,ddp"])
def test_cause_that_explains_every_run_passes_without_a_warning(
    modes: str, gate: Gate
) -> None:
    gate.write(SECOND.replace(" * (2.0 if len(target) == 2 else 1.0)", ""))
    accept = "--accept=norm/local-batch-stats=by design"
    code, document = gate.check(f"--modes={modes}", "--world-sizes=2,4", accept)
    assert (code, document["warnings"]) == (0, [])
    (finding,) = document["findings"]
    assert finding["runs"] == finding["proven_runs"] == [*range(len(document["runs"]))]


def test_what_passes_without_fixes_is_proven_all_the_same(terminal: Terminal) -> None:
    terminal.write(MASKED)
    options = (DDP, "--world-sizes=2", ACCEPT, "--no-fix")
    code = terminal.run(*ARGUMENTS, *options).exit_code
    document = Gate(terminal.folder).report(code)
    assert (code, document["warnings"]) == (0, [])
    (finding,) = document["findings"]
    assert finding["proven_runs"] == finding["runs"] == [0]


def test_second_cause_is_not_covered_without_fixes_either(gate: Gate) -> None:
    gate.write(SECOND.replace(".mean() * (2.0 if len(target) == 2 else 1.0)", ".sum()"))
    accept = "--accept=norm/local-batch-stats=by design"
    code, document = gate.check(DDP, "--world-sizes=2", accept, "--no-fix")
    assert code == 1
    assert _findings(document) == [
        ("loss/sum-reduction", [0], None),
        ("norm/local-batch-stats", [0], "by design"),
    ]


@pytest.mark.slow
def test_acceptances_of_project_and_target_add_up(gate: Gate) -> None:
    both = SECOND.replace(".mean() * (2.0 if len(target) == 2 else 1.0)", ".sum()")
    (gate.folder / "pyproject.toml").write_text(
        '[tool.ddpcheck]\naccept = ["norm/local-batch-stats=of the project"]\n',
        encoding="utf-8",
    )
    gate.write(both)
    code, document = gate.check(DDP, "--world-sizes=2")
    assert code == 1
    assert _findings(document) == [
        ("loss/sum-reduction", [0], None),
        ("norm/local-batch-stats", [0], "of the project"),
    ]
    gate.write(both + "accept = {'loss/sum-reduction': 'of the file'}\n")
    code, document = gate.check(DDP, "--world-sizes=2")
    assert code == 0
    assert [f["accepted"] for f in document["findings"]] == [
        "of the project",
        "of the file",
    ]


@pytest.mark.xdist_group("plugin")
def test_item_of_a_run_that_is_worse_is_no_xfail(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "masked.py").write_text(MASKED, encoding="utf-8")
    (tmp_path / "raising.py").write_text(RAISING, encoding="utf-8")
    items = [f"{name}.py::ddp-W{w}" for name in ("masked", "raising") for w in (2, 8)]
    accept = "--ddpcheck-accept=loss/local-normalizer=by design"
    session = run_pytest(tmp_path, "--ddpcheck", *items, accept, "-rA")
    shown = [line.partition(" - ")[0] for line in session.lines if ".py::" in line]
    assert session.exit_code == 1
    assert sorted(shown) == [
        "FAILED masked.py::ddp-W8",
        "FAILED raising.py::ddp-W8",
        "XFAIL masked.py::ddp-W2",
        "XFAIL raising.py::ddp-W2",
    ]


@pytest.mark.parametrize(
    ("run", "ended", "outcome"),
    [
        # Of an accepted cause, whose run was not diagnosed to the end.
        (Run(mode="ddp", world_size=2, verdict="divergent"), "ended by x", None),
        (Run(mode="ddp", world_size=2, verdict="divergent"), "", pytest.xfail),
        (Run(mode="dp", world_size=2, verdict="not-checked", why=CUT_OFF), "", None),
        (
            Run(mode="dp", world_size=2, verdict="not-checked", faults=(RAISED,)),
            "",
            pytest.skip,
        ),
    ],
    ids=["ended", "complete", "cut-off", "refused"],
)
def test_item_that_was_cut_off_does_not_pass(
    run: Run, ended: str, outcome: Any
) -> None:
    known = sample.divergent()
    cause = replace(known.findings[0], runs=(0,), accepted="by design")
    report = replace(known, runs=(run,), findings=(cause,), ended=ended)
    item: Any = SimpleNamespace(options=Options())
    expected = DivergenceError if outcome is None else outcome.Exception
    judge = items.RunItem._judge  # noqa: SLF001 (what an item does with a report)
    with pytest.raises(expected):
        judge(item, report, Cell(mode=run.mode, world_size=2))
