"""Whole checks in ranks of a torch without any private name that is looked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.report.data import Report
from ddpcheck.suite import runner
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.usefixtures("causes_alone"),
    pytest.mark.xdist_group("without"),
]
OPTIONS = Options(world_sizes=(2,), modes=("ddp",), steps=2)

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3

def loss(output, target):
    return nn.functional.cross_entropy(output, target)

def net(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 3))
"""
NORM = """
def model():
    norm = nn.BatchNorm1d(4)
    return net(norm, nn.Tanh(), norm)
"""
DROPOUT = """
def model():
    return net(nn.Dropout(0.5))
"""
CONVERTED = """
def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 2, 4, 4, generator=g), torch.arange(8) % 3

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 3))

def wrap(model):
    return DDP(model).to(memory_format=torch.channels_last)
"""
PENALTY = """
nets = []

def model():
    nets[:] = [net(nn.Tanh())]
    return nets[0]

def loss(output, target):
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    penalty = nets[0][0].weight.pow(2).sum()
    return nn.functional.cross_entropy(output, target) + world_size * penalty
"""
OPAQUE = """
class Output:
    def __init__(self, logits):
        self.logits = logits

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = net(), nn.Linear(4, 3)

    def forward(self, x):
        return Output(self.used(x))

def model():
    torch.manual_seed(0)
    return Net()

def wrap(model):
    return DDP(model, find_unused_parameters=True)

def loss(output, target):
    return nn.functional.cross_entropy(output.logits, target)
"""
HOOKS = """
def model():
    made = net(nn.Tanh())
    for parameter in made.parameters():
        parameter.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    return made
"""
COUNTER = """
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))
        self.register_buffer("nothing", None)

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        return x * self.calls

def model():
    return net(Counter())
"""


@pytest.fixture(scope="module")
def poor() -> Iterator[Pool]:
    """The engine, in a torch that lacks them all."""
    names = list(runner.PRELOAD_MODULES)
    names.insert(1, "tests.run.preloaded_without")
    with Pool(Preload(modules=tuple(names))) as made:
        made.start()
        made.wait_for_imports()
        yield made


def _check(pool: Pool, folder: Path, source: str, options: Options = OPTIONS) -> Report:
    path = folder / "mymodel.py"
    path.write_text(HEAD + source, encoding="utf-8")
    return checking.check(pool, TargetRef(path=str(path)), options)


def _found(report: Report) -> list[tuple[str, bool | None]]:
    return [(f.slug, f.fix.verified if f.fix else None) for f in report.findings]


@pytest.mark.parametrize(
    ("source", "slug"),
    [
        (CONVERTED, "ddp/converted-after-wrap"),
        (PENALTY, "loss/regularizer-scale"),
        (OPAQUE, "graph/opaque-output"),
    ],
    ids=["converted", "penalty", "opaque"],
)
def test_cause_is_found_and_its_fix_verified(
    poor: Pool, tmp_path: Path, source: str, slug: str
) -> None:
    report = _check(poor, tmp_path, source)
    assert report.verdict == "divergent"
    assert _found(report) == [(slug, True)]


def test_batch_norm_is_found_and_converted(poor: Pool, tmp_path: Path) -> None:
    options = replace(OPTIONS, batch_norm=("asis", "local", "sync", "frozen"))
    report = _check(poor, tmp_path, NORM, options)
    assert [run.verdict for run in report.runs] == [
        *("divergent", "divergent"),
        *("equivalent", "equivalent"),
    ]
    assert _found(report) == [("norm/local-batch-stats", True)]


def test_buffers_are_kept_and_what_cannot_run_is_refused(
    poor: Pool, tmp_path: Path
) -> None:
    options = replace(OPTIONS, modes=("dp", "ddp"), simulate=(4,))
    report = _check(poor, tmp_path, COUNTER, options)
    found = {run.mode: run.verdict for run in report.runs}
    assert found == {"dp": "not-checked", "ddp": "equivalent", "sim": "equivalent"}
    (refused,) = (run for run in report.runs if run.mode == "dp")
    assert refused.why == (
        "DataParallel cannot run this target: NotImplementedError: "
        "torch.nn.parallel._functions.Broadcast, under which DataParallel is emulated "
        f"on one device, is not in torch {torch.__version__}"
    )


def test_data_parallel_that_no_torch_emulates_is_no_divergence(
    poor: Pool, tmp_path: Path
) -> None:
    options = replace(OPTIONS, modes=("dp",))
    (run,) = _check(poor, tmp_path, COUNTER, options).runs
    assert run.verdict == "not-checked"
    assert run.why.startswith("DataParallel cannot run this target: NotImplemented")


def test_cause_that_cannot_be_proven_is_unknown(poor: Pool, tmp_path: Path) -> None:
    report = _check(poor, tmp_path, HOOKS)
    assert report.verdict == "divergent"
    assert _found(report) == [("unknown", None)]


def test_sample_noise_is_refused(poor: Pool, tmp_path: Path) -> None:
    assert _check(poor, tmp_path, "\nmodel = net()\n").verdict == "equivalent"
    with pytest.raises(UsageError, match="--noise sample does not work with this"):
        _check(poor, tmp_path, DROPOUT, replace(OPTIONS, noise="sample"))


@pytest.mark.parametrize(
    ("source", "slug"),
    [(HOOKS, "sync/clip-before-reduce"), (COUNTER, "dp/replica-state-lost")],
    ids=["hooks", "counter"],
)
def test_what_is_lost_without_them_is_found_with_them(
    pool: Pool, tmp_path: Path, source: str, slug: str
) -> None:
    options = replace(OPTIONS, modes=("dp", "ddp")) if source == COUNTER else OPTIONS
    assert _found(_check(pool, tmp_path, source, options)) == [(slug, True)]
