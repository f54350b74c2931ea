"""Numbers of the optimizer that part ranks too slowly for a check are warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

# Rates so small that no weight moves beyond rounding; shards have losses of their own.
TARGET = """\
import torch
import torch.distributed as dist

def model():
    torch.manual_seed(0)
    return torch.nn.Linear(2, 1)

def batch(step):
    noise = torch.Generator().manual_seed(step)
    return torch.randn(8, 2, generator=noise), torch.arange(8.0)[:, None] / 8

def optimizer(params):
    return torch.optim.SGD(params, lr=1e-9)

def mean(value):
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] = 1e-12 * RATE
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("rate", "warned"),
    [
        ("loss.item()", True),
        ("(2 if dist.is_initialized() else 1)", True),
        ("mean(loss.detach()).item()", False),
    ],
    ids=["own-loss", "by-group", "mean-loss"],
)
def test_learning_rate_unlike_one_process_is_warned_of(
    pool: Pool,
    tmp_path: Path,
    rate: str,
    warned: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(TARGET.replace("RATE", rate), encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert (report.verdict, report.findings) == ("equivalent", ())
    if not warned:
        assert report.warnings == ()
        return
    (warning,) = report.warnings
    assert warning.startswith("lr at the update of step 1: ")
    if "loss" not in rate:
        told = (
            "2e-12, 2e-12 on the ranks, 1e-12 in the single-process run at world size 2"
        )
        assert told in warning
