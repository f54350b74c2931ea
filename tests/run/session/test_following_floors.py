"""Differences that follow from amplified rounding are rounding too."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = pytest.mark.corpus

# The bias before a norm has no gradient but rounding, of which Rprop takes the sign.
TARGET = """\
import copy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 3)
        self.norm = nn.BatchNorm1d(32)
        self.kept = copy.deepcopy(self.a).requires_grad_(False)
        self.register_buffer("last", torch.zeros(16))
    def forward(self, x):
        self.last = LAST
        return self.b(self.norm(self.a(x)).relu())

def model():
    torch.manual_seed(0)
    return Net()

def batch(step):
    noise = torch.Generator().manual_seed(step)
    return torch.randn(16, 16, generator=noise), torch.arange(16) % 3

def optimizer(params):
    return torch.optim.Rprop([p for p in params if p.requires_grad], lr=1e-3)

def wrap(model):
    return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    net = getattr(model, "module", model)
    with torch.no_grad():
        net.kept.bias.lerp_(net.a.bias, 0.1)
"""


def _check(pool: Pool, folder: Path, last: str) -> Report:
    path = folder / "mymodel.py"
    path.write_text(TARGET.replace("LAST", last), encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    return checking.check(pool, TargetRef(path=str(path)), options)


def test_buffers_and_copies_of_what_rounding_moves_have_floors_of_their_own(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, "self.last")
    assert (report.verdict, report.findings) == ("equivalent", ())
    assert report.tolerance.rtol == 1e-9
    (warning,) = report.warnings
    assert warning.startswith(
        "the optimizer amplifies rounding in a.bias, and with it "
    )
    assert "kept.bias" in warning
    assert "norm.running_mean" in warning
    (run,) = report.runs
    assert run.buffers.compared == 4 * 3
    assert run.buffers.worst is not None
    assert 0 < run.buffers.worst.excess < 1


def test_buffer_of_samples_beside_amplified_rounding_is_judged_as_ever(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, "x[-1].square()")
    assert report.verdict == "divergent"
    (run,) = report.runs
    assert {t.name for t in run.buffers.tensors if t.excess > 1} == {"last"}
    assert "last" not in "".join(report.warnings)
