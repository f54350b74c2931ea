"""Rounding that an optimizer amplifies is separated from differences of training."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]

# The bias before a norm of each sample has no gradient but rounding.
TARGET = """\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.GroupNorm(8, 8), nn.ReLU(), nn.Flatten(),
        nn.Linear(8 * 14, 4),
    )

def batch():
    torch.manual_seed(1)
    y = torch.randint(0, 4, (16,))
    y[:5] = -100
    return torch.randn(16, 3, 16), y

def optimizer(params):
    return torch.optim.Adam(params, lr=RATE)

def loss(output, target):
    return LOSS
"""
MEAN = "F.cross_entropy(output, target.clamp(min=0))"
MASKED = "F.cross_entropy(output, target)"
ONE_RATE = "1e-2"
OWN_RATE = "1e-2 * (1 + dist.get_rank() if dist.is_initialized() else 1)"


def _check(
    pool: Pool, folder: Path, rate: str, loss: str, dtype: str = "float32"
) -> Report:
    path = folder / "mymodel.py"
    source = TARGET.replace("RATE", rate).replace("LOSS", loss)
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",), dtype=dtype)
    return checking.check(pool, TargetRef(path=str(path)), options)


def test_weight_that_rounding_moves_is_judged_by_its_own_floor(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, ONE_RATE, MEAN)
    assert report.verdict == "equivalent"
    assert report.tolerance.rtol == 2e-5
    (warning,) = report.warnings
    assert warning.startswith("the optimizer amplifies rounding in 0.bias: on a ")
    assert warning.endswith("judged by 32 times that (numeric/adam-amplification)")
    (run,) = report.runs
    assert run.weights.compared == 6 * 3
    assert run.weights.worst is not None
    assert 0 < run.weights.worst.excess < 1


def test_cause_is_found_beside_amplified_rounding(pool: Pool, tmp_path: Path) -> None:
    report = _check(pool, tmp_path, ONE_RATE, MASKED)
    (finding,) = report.findings
    assert finding.slug == "loss/local-normalizer"
    assert finding.fix is not None
    assert finding.fix.verified is True


def test_ranks_are_compared_with_each_other_all_the_same(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check(pool, tmp_path, OWN_RATE, MEAN)
    (run,) = report.runs
    assert (run.verdict, run.ranks_agree) == ("divergent", False)


def test_loss_of_a_lower_precision_is_compared_as_such(
    pool: Pool, tmp_path: Path
) -> None:
    loss = MEAN + ".float()"
    report = _check(pool, tmp_path, ONE_RATE, loss, "float64")
    assert report.tolerance.rtol == 1e-9
    losses = report.runs[0].losses
    assert (losses.compared, losses.mismatched) == (3, 0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sound_run_is_measured_no_further(
    pool: Pool, tmp_path: Path, dtype: str
) -> None:
    path = tmp_path / "mymodel.py"
    source = TARGET.replace("Adam(params", "SGD(params")
    source = source.replace("RATE", ONE_RATE).replace("LOSS", MEAN)
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",), dtype=dtype)
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert (report.verdict, report.warnings) == ("equivalent", ())
    assert report.tolerance.noise_floor is None


# Rows 2i and 2i + 1 are a pair: any order of the samples is other mathematics, an
# order of the shards is not. The last layer computes in float32.
PAIRS = """\
import torch
import torch.nn.functional as F
from torch import nn

class Reward(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32))
        self.score = nn.Linear(32, 1, bias=False)
    def forward(self, x):
        return F.linear(self.body(x).float(), self.score.weight.float()).squeeze(-1)

def model():
    torch.manual_seed(0)
    return Reward()

def batch():
    noise = torch.Generator().manual_seed(0)
    return torch.randn(16, 8, generator=noise), torch.zeros(16)

def loss(r, target):
    return -F.logsigmoid(r[0::2] - r[1::2]).SUM()
"""


def _check_pairs(pool: Pool, folder: Path, reduction: str) -> Report:
    path = folder / "mymodel.py"
    path.write_text(PAIRS.replace("SUM", reduction), encoding="utf-8")
    options = Options(world_sizes=(2, 4), modes=("ddp",))
    return checking.check(pool, TargetRef(path=str(path)), options)


def test_rounding_is_measured_where_the_order_of_samples_matters(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check_pairs(pool, tmp_path, "mean")
    assert report.verdict == "equivalent"
    assert 1e-7 < report.tolerance.rtol < 1e-4
    assert "permuted order of shards" in report.tolerance.origin


def test_cause_is_found_where_the_order_of_samples_matters(
    pool: Pool, tmp_path: Path
) -> None:
    report = _check_pairs(pool, tmp_path, "sum")
    (finding,) = report.findings
    assert (finding.slug, finding.runs) == ("loss/sum-reduction", (0, 1))
    assert finding.fix is not None
    assert finding.fix.verified is True


# Frames in a row with a faint term that joins neighbours: a permuted batch differs by
# as little as float32 rounds, and nothing is computed in float32.
FRAMES = """\
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

def batch():
    noise = torch.Generator().manual_seed(1)
    return torch.randn(16, 8, generator=noise), torch.randn(16, 4, generator=noise)

def loss(output, target):
    smooth = (output[1:] - output[:-1]).square().mean()
    return (output - target).square().mean() + 1e-6 * smooth
"""
# A chaotic map doubles every difference 16 times: weights that were rounded otherwise
# in the first step have other gradients in the second. So many weights move so far that
# some are rounded otherwise on every CPU.
CHAOTIC = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 4)
    def forward(self, x):
        y = self.linear(x).sigmoid()
        for _ in range(16):
            y = 4 * y * (1 - y)
        return y

def model():
    torch.manual_seed(0)
    return Net()

def batch():
    noise = torch.Generator().manual_seed(1)
    return torch.randn(256, 32, generator=noise), torch.randn(256, 4, generator=noise)

def loss(output, target):
    return (output - target).square().mean()

def optimizer(params):
    return torch.optim.SGD(params, lr=1e-4)
"""


@pytest.mark.parametrize(
    ("source", "verdict"),
    [(FRAMES, "divergent"), (CHAOTIC, "equivalent")],
    ids=["order", "rounding"],
)
def test_order_of_samples_is_told_from_rounding(
    source: str, verdict: str, pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.verdict == verdict
    assert (report.tolerance.rtol > 1e-9) == (verdict == "equivalent")
    assert report.tolerance.noise_floor is not None


# Dropout whose masks follow the samples, and a head in float32.
DROPOUT = """\
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.2))
        self.head = nn.Linear(32, 3, bias=False)
    def forward(self, x):
        return F.linear(self.body(x).float(), self.head.weight.float())

def model():
    torch.manual_seed(0)
    return Net()

def batch():
    noise = torch.Generator().manual_seed(0)
    return torch.randn(16, 8, generator=noise), torch.arange(16) % 3

loss = nn.CrossEntropyLoss()
"""


def test_noise_follows_the_samples_of_a_permuted_batch(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(DROPOUT, encoding="utf-8")
    options = Options(world_sizes=(2, 4), modes=("ddp",), noise="sample")
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.verdict == "equivalent"
    assert report.tolerance.noise_floor is not None
    assert report.tolerance.noise_floor < 1e-5


def test_rounding_is_told_once_draws_follow_the_samples(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    summed = DROPOUT.replace("Loss()", 'Loss(reduction="sum")')
    path.write_text(summed, encoding="utf-8")
    options = Options(world_sizes=(2, 4), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    found = {f.slug: bool(f.fix and f.fix.verified) for f in report.findings}
    assert found == {"rng/stochastic-layer": True, "loss/sum-reduction": True}
    assert report.tolerance.rtol == 1e-9  # as drawn, rounding cannot be separated


# A linear critic's gradient is the mean of its inputs, here nearly zero: rounding of
# the weights does not show what their sum rounds.
CENTRED = """\
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Linear(6, 1, bias=False)

def batch():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    return (x - x.mean(0) + 1e-4) * 100, torch.zeros(64, 1)

def loss(output, target):
    return output.mean()
"""
# Dropout of a weight with as many rows as there are samples: its noise is no sample's.
DROPPED_WEIGHT = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 1)
    def forward(self, x):
        weight = nn.functional.dropout(self.a.weight, 0.5, self.training)
        return self.b(nn.functional.linear(x, weight, self.a.bias).tanh())

def model():
    torch.manual_seed(0)
    return Net()

def batch():
    noise = torch.Generator().manual_seed(0)
    sign = torch.ones(16, 1)
    sign[torch.randperm(16, generator=noise)[:8]] = -1
    return torch.randn(16, 6, generator=noise) * 1e-4, sign

def loss(output, target):
    return (target * output).mean()
"""


@pytest.mark.parametrize(
    ("source", "noise"),
    [(CENTRED, "asis"), (DROPPED_WEIGHT, "sample")],
    ids=["centred-inputs", "dropped-weight"],
)
def test_cancellation_is_rounding(
    source: str, noise: str, pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",), dtype="float32", noise=noise)
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.verdict == "equivalent"
    assert 2e-5 < report.tolerance.rtol < 0.1
