"""Models of unusual classes: compiled by torch, or with methods of their own.

Each is right with a mean for its loss, and wrong with a sum.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = pytest.mark.usefixtures("causes_alone")

HEAD = """
import torch
from torch import nn

def batch():
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    return nn.functional.mse_loss(output, target, reduction="{reduction}")

def net(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), *between, nn.Linear(4, 1))

class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()
    def forward(self, x):
        return self.net(x)
"""
MODELS = {
    "scripted": "def model():\n    return torch.jit.script(net(nn.Tanh()))\n",
    "scripted-part": """
def model():
    made = net(nn.Tanh())
    made[0] = torch.jit.script(made[0])
    return made
""",
    "traced": """
def model():
    made, x = net(nn.Tanh()), torch.ones(2, 8)
    return torch.jit.trace(made, x)
""",
    "compiled": 'def model():\n    return torch.compile(net(), backend="eager")\n',
    "lists": """
class Lists(Around):
    def parameters(self, recurse=True):
        return list(super().parameters(recurse))
    def children(self):
        return [self.net]
    def modules(self):
        return [self, *self.net.modules()]
model = Lists
""",
    "a-part": """
class Part(Around):
    def parameters(self):
        return self.net[1].parameters()
model = Part
""",
    "groups": """
class Groups(Around):
    def parameters(self):
        first, last = self.net
        return [{"params": [*first.parameters()], "lr": 0.01},
                {"params": [*last.parameters()]}]
model = Groups
""",
    "equal-to-each-other": """
class Same(nn.Linear):
    __hash__ = nn.Module.__hash__
    def __eq__(self, other):
        return isinstance(other, Same)
def model():
    torch.manual_seed(0)
    return nn.Sequential(Same(8, 4), Same(4, 1))
""",
    "not-comparable": """
class Strict(nn.Linear):
    __hash__ = nn.Module.__hash__
    def __eq__(self, other):
        raise TypeError("not comparable")
class SGD(torch.optim.SGD):
    def __eq__(self, other):
        raise TypeError("not comparable")
class Loss:
    def __call__(self, output, target):
        return nn.functional.mse_loss(output, target, reduction=REDUCTION)
    def __eq__(self, other):
        raise TypeError("not comparable")
def optimizer(params):
    return SGD(params, lr=0.01)
loss = Loss()
def model():
    torch.manual_seed(0)
    return nn.Sequential(Strict(8, 4), Strict(4, 1))
""",
    "delegates": """
class Delegates(Around):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.net, name)
model = Delegates
""",
}
NORM = "def model():\n    return torch.jit.script(net(nn.BatchNorm1d(4)))\n"


def check(pool: Pool, folder: Path, source: str, reduction: str) -> Report:
    """Returns the report of a target at world size 2 under DDP."""
    path = folder / "target.py"
    head = HEAD.replace("{reduction}", reduction)
    source = source.replace("REDUCTION", repr(reduction))
    path.write_text(head + source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    return checking.check(pool, TargetRef(path=str(path)), options)


@pytest.mark.parametrize("source", MODELS.values(), ids=MODELS)
def test_unusual_model_that_is_right_is_equivalent(
    source: str, pool: Pool, tmp_path: Path
) -> None:
    report = check(pool, tmp_path, source, "mean")
    assert (report.verdict, report.findings, report.warnings) == ("equivalent", (), ())


@pytest.mark.parametrize("source", MODELS.values(), ids=MODELS)
def test_unusual_model_with_a_summed_loss_has_that_cause(
    source: str, pool: Pool, tmp_path: Path
) -> None:
    report = check(pool, tmp_path, source, "sum")
    found = [(f.slug, f.fix and f.fix.verified) for f in report.findings]
    assert found == [("loss/sum-reduction", True)]


@pytest.mark.parametrize(
    ("reduction", "found"),
    [
        ("mean", ["norm/local-batch-stats"]),
        ("sum", ["norm/local-batch-stats", "loss/sum-reduction"]),
    ],
)
def test_batch_norm_that_torch_jit_compiled_is_the_cause(
    reduction: str, found: list[str], pool: Pool, tmp_path: Path
) -> None:
    report = check(pool, tmp_path, NORM, reduction)
    assert [f.slug for f in report.findings] == found
    assert all(f.fix and f.fix.verified for f in report.findings)
    assert report.findings[0].summary == (
        "batch norm inside the model's own forward, compiled by torch.jit, "
        "normalises with the mean and variance of the rank's shard"
    )


def test_module_that_has_no_hash_is_no_training_of_torchs(
    pool: Pool, tmp_path: Path
) -> None:
    source = """
class Counted(nn.Linear):
    def __eq__(self, other):
        return self is other
def model():
    return nn.Sequential(Counted(8, 1))
"""
    with pytest.raises(UsageError) as caught:
        check(pool, tmp_path, source, "mean")
    assert caught.value.problem.slug == "target-raises"
    assert caught.value.problem.found.startswith(
        "TypeError: unhashable type: 'Counted'"
    )
