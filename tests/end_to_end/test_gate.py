"""--accept and --baseline on real ranks: what is worse than what was accepted fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Terminal
from tests.end_to_end.test_plugin import run

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
ACCEPT = "--accept=loss/local-normalizer=by design"
DDP = "--modes=ddp"


def _check(terminal: Terminal, *options: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code of a check of mymodel.py, and its report."""
    ended = terminal.run("mymodel.py", "--json", "now.json", *options)
    document = json.loads((terminal.folder / "now.json").read_text(encoding="utf-8"))
    assert document["exit_code"] == ended.exit_code
    return ended.exit_code, document


def _findings(document: dict[str, Any]) -> list[tuple[str, list[int], str | None]]:
    return [(f["slug"], f["runs"], f["accepted"]) for f in document["findings"]]


def test_nan_on_one_rank_is_not_covered_by_the_cause_of_other_world_sizes(
    terminal: Terminal,
) -> None:
    terminal.write(MASKED)
    code, document = _check(terminal, DDP, "--world-sizes=2,4,8", ACCEPT)
    assert code == 1
    assert _findings(document) == [
        ("loss/local-normalizer", [0, 1], "by design"),
        ("loss/empty-shard", [2], None),
    ]
    assert document["findings"][0]["proven_runs"] == [0, 1]
    assert document["warnings"] == []
    # Who accepts that by its own name knows of it.
    code, _ = _check(
        terminal, DDP, "--world-sizes=4,8", ACCEPT, "--accept=loss/empty-shard=so"
    )
    assert code == 0


@pytest.mark.slow
def test_nan_on_one_rank_is_not_covered_by_a_baseline_of_other_world_sizes(
    terminal: Terminal,
) -> None:
    terminal.write(MASKED)
    assert _check(terminal, DDP, "--world-sizes=2,4")[0] == 1
    (terminal.folder / "now.json").rename(terminal.folder / "known.json")
    baseline = "--baseline=known.json"
    assert _check(terminal, DDP, "--world-sizes=2,4", baseline)[0] == 0
    code, document = _check(terminal, DDP, "--world-sizes=2,4,8", baseline)
    assert code == 1
    assert _findings(document) == [
        ("loss/local-normalizer", [0, 1], "in the baseline known.json"),
        ("loss/empty-shard", [2], None),
    ]
    assert document["warnings"] == [
        "new since the baseline: loss/empty-shard (the baseline has no such run) in "
        "ddp W=8"
    ]


@pytest.mark.slow
def test_rank_that_raises_is_not_covered_by_the_cause_of_another_world_size(
    terminal: Terminal,
) -> None:
    terminal.write(RAISING)
    code, document = _check(terminal, DDP, "--world-sizes=2,8", ACCEPT)
    assert code == 1
    assert _findings(document) == [
        ("loss/local-normalizer", [0], "by design"),
        ("sync/rank-raised", [1], None),
    ]


@pytest.mark.slow
def test_second_cause_at_one_world_size_is_not_covered(terminal: Terminal) -> None:
    terminal.write(SECOND)
    accept = "--accept=norm/local-batch-stats=by design"
    code, document = _check(terminal, "--world-sizes=2,4", accept)
    assert code == 1
    covered, *rest = _findings(document)
    assert covered == ("norm/local-batch-stats", [0, 1, 2, 3], "by design")
    assert rest
    assert all(runs == [3] and reason is None for _, runs, reason in rest)


@pytest.mark.slow
def test_replicas_that_differ_by_more_than_ddp_does_are_not_covered(
    terminal: Terminal,
) -> None:
    terminal.write(
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
    code, document = _check(terminal, "--world-sizes=2", accept)
    assert code == 1
    assert _findings(document) == [
        ("norm/local-batch-stats", [0, 1], "by design"),
        ("unknown", [0], None),
    ]
    assert document["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("modes", ["dp", "dp,ddp"])
def test_cause_that_explains_every_run_passes_without_a_warning(
    modes: str, terminal: Terminal
) -> None:
    terminal.write(SECOND.replace(" * (2.0 if len(target) == 2 else 1.0)", ""))
    accept = "--accept=norm/local-batch-stats=by design"
    code, document = _check(terminal, f"--modes={modes}", "--world-sizes=2,4", accept)
    assert (code, document["warnings"]) == (0, [])
    (finding,) = document["findings"]
    assert finding["runs"] == finding["proven_runs"] == [*range(len(document["runs"]))]


def test_without_fixes_what_passes_is_reported_as_unproven(terminal: Terminal) -> None:
    terminal.write(MASKED)
    code, document = _check(terminal, DDP, "--world-sizes=2", ACCEPT, "--no-fix")
    assert code == 0
    assert document["warnings"] == [
        "accepted without a proof: loss/local-normalizer in ddp W=2; no run with its "
        "fix shows that nothing else differs there"
    ]


@pytest.mark.slow
def test_acceptances_of_project_and_target_add_up(terminal: Terminal) -> None:
    both = SECOND.replace(".mean() * (2.0 if len(target) == 2 else 1.0)", ".sum()")
    (terminal.folder / "pyproject.toml").write_text(
        '[tool.ddpcheck]\naccept = ["norm/local-batch-stats=of the project"]\n',
        encoding="utf-8",
    )
    terminal.write(both)
    code, document = _check(terminal, DDP, "--world-sizes=2")
    assert code == 1
    assert _findings(document) == [
        ("norm/local-batch-stats", [0], "of the project"),
        ("loss/sum-reduction", [0], None),
    ]
    terminal.write(both + "accept = {'loss/sum-reduction': 'of the file'}\n")
    code, document = _check(terminal, DDP, "--world-sizes=2")
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
    session = run(tmp_path, "--ddpcheck", *items, accept, "-rA")
    shown = [line.partition(" - ")[0] for line in session.lines if ".py::" in line]
    assert session.exit_code == 1
    assert sorted(shown) == [
        "FAILED masked.py::ddp-W8",
        "FAILED raising.py::ddp-W8",
        "XFAIL masked.py::ddp-W2",
        "XFAIL raising.py::ddp-W2",
    ]
