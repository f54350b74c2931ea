"""The pytest fixture, used as in a user's project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """\
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=g), torch.randint(0, 3, (8,), generator=g)


def test_mean(ddpcheck):
    assert ddpcheck(model, batch, nn.functional.cross_entropy, world_sizes=[2])


def test_sum(ddpcheck):
    loss = lambda output, target: nn.functional.cross_entropy(
        output, target, reduction="sum"
    )
    ddpcheck(model, batch, loss, world_sizes=[2])
"""


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=180, check=False
    )


def test_fixture_passes_the_sound_loss_and_names_the_cause_of_the_other(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_user.py").write_text(TESTS, encoding="utf-8")
    done = _pytest(tmp_path, "-q")
    assert "1 failed, 1 passed" in done.stdout
    assert "DivergenceError" in done.stdout
    assert "loss/sum-reduction" in done.stdout


@pytest.mark.parametrize("module", ["torch", "ddpcheck.checking", "rich"])
def test_plugin_costs_nothing_where_it_is_not_used(tmp_path: Path, module: str) -> None:
    test = f"import sys\n\n\ndef test_it():\n    assert {module!r} not in sys.modules\n"
    (tmp_path / "test_user.py").write_text(test, encoding="utf-8")
    assert "1 passed" in _pytest(tmp_path, "-q").stdout
