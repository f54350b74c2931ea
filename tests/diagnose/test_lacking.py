"""What a step asks a wrapper for that only the model inside has."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from ddpcheck.report.render import wording
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.usefixtures("causes_alone")

HEAD = """\
import torch
from torch import nn
class Net(nn.Linear):
    scale = 2.0
    def __init__(self):
        super().__init__(8, 1)
        self.head = nn.Linear(1, 1)
    def body(self, x):
        return super().forward(x)
    def forward(self, x):
        return self.head(self.body(x))
    def training_step(self, batch, index):
        return nn.functional.mse_loss(self(batch[0]), batch[1])
def model():
    torch.manual_seed(0)
    return Net()
x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
batch = x, x.sum(1, keepdim=True)
mse = nn.functional.mse_loss
def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    LOSS.backward()
    optimizer.step()
"""
CALLS = {
    "method": ("model.training_step(batch, 0)", "training_step"),
    "two": ("mse(model.head(model.body(x)), y)", "head"),
    "method-and-model": ("(mse(model(x), y) + model.body(x).mean())", "body"),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_of_what_the_wrapper_lacks_goes_past_it(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    loss, asked = CALLS[name]
    report = checked(pool, tmp_path, HEAD.replace("LOSS", loss))
    assert report.exit_code == 1
    assert [f.slug for f in report.findings] == ["ddp/forward-bypassed"]
    (found,) = report.findings
    assert found.summary == (
        f"the step calls {asked} on the wrapper, which DistributedDataParallel does "
        "not have; the single-process run calls it on the bare model"
    )
    assert found.fix is not None
    assert found.fix.verified is True
    # A step that calls two methods, or the model as well, needs more than one call.
    assert found.fix.code == ""
    assert found.fix.text == (
        "wrap a module whose forward makes all calls of the model in the step, "
        f"{asked} included, and call the wrapped module once before backward"
    )
    assert wording.verdict_line(report) == "DIVERGENT: 1 of 1 run failed on ranks"
    assert wording.verdict_sentence(report) == (
        "Single-process training works, but ranks failed in 1 of 1 run before "
        "anything was "
        "compared."
    )


@pytest.mark.parametrize(
    ("loss", "asked"),
    [
        ("(model.scale * mse(model(x), y))", "scale"),
        ("(mse(model(x), y) + model.head.weight.square().sum())", "head"),
    ],
    ids=["value", "part"],
)
def test_attribute_that_the_wrapper_lacks_is_read_inside(
    loss: str, asked: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD.replace("LOSS", loss))
    (found,) = report.findings
    assert (report.exit_code, found.slug) == (1, "sync/rank-raised")
    assert found.fix is not None
    assert found.fix.text == (
        f"the wrapper has no {asked}: read getattr(model, 'module', model).{asked}; "
        "calls in training must go through the wrapped model"
    )


def test_attribute_that_the_model_lacks_too_is_another_fault(
    pool: Pool, tmp_path: Path
) -> None:
    loss = "(mse(model(x), y) * getattr(model, 'module', x.mean()).mean())"
    report = checked(pool, tmp_path, HEAD.replace("LOSS", loss))
    (found,) = report.findings
    assert found.slug == "sync/rank-raised"
    assert found.fix is not None
    assert found.fix.text == (
        "make this code work on every rank: with its shard, its rank number and "
        "the wrapped model"
    )
