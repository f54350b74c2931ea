"""A fix says which lines of this file it is about, with what ranks read there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.diagnose.search.acts import with_lines
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.facts import Act
from ddpcheck.run.intervention import OffsetLabels, Switch
from tests.corpus import programs
from tests.diagnose.test_rules import checked

# Bug -> how its fix ends.
LINES = {
    "collective/labels-without-offset-in-uneven-shards": "which count the rank's own "
    "rows from 0; here `labels = torch.arange(len(output))` at target.py:33",
    "sync/momentum-that-rank-0-alone-takes-up": "only logs and files belong to rank "
    "0; here `if not optimizer.state and rank() == 0:` at target.py:31",
}


@pytest.mark.usefixtures("causes_alone")
@pytest.mark.parametrize("name", LINES)
def test_fix_ends_with_the_line_that_its_run_changed(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, programs.source(name))
    fix = report.findings[0].fix
    assert fix is not None
    assert fix.text.endswith(LINES[name])


OVERFLOW = """
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Linear(3, 1)

def batch():
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    return x, torch.tensor([[9.0]] + [[0.5]] * 7)

def optimizer(params):
    return torch.optim.SGD(list(params), lr=0.01)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    overflows = bool(loss.detach() > 12.0)
    if not overflows:
        optimizer.step()
    return loss
"""
CLIPPED = """
import torch
import torch.distributed as dist
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

def batch():
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    return x, 5 * x.sum(1, keepdim=True)

def optimizer(params):
    return torch.optim.SGD(list(params), lr=0.01)

def train_step(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    named = list(model.parameters())
    rank, world = 0, 1
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    own = [p.grad for p in named[rank::world]]
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in own]))
    for p in named:
        p.grad *= 1 / norm
    optimizer.step()
    return loss
"""


@pytest.mark.usefixtures("causes_alone")
@pytest.mark.parametrize(
    ("source", "fix"),
    [
        (
            OVERFLOW,
            "all-reduce the number that decides, so that all ranks make the same "
            "decision; here `overflows = bool(loss.detach() > 12.0)` at target.py:21 "
            "(22.6, 2.61 on the ranks)",
        ),
        (
            CLIPPED,
            "all-reduce the values that change the gradients; here "
            "`p.grad *= 1 / norm` at target.py:29",
        ),
    ],
    ids=["overflow", "norm-of-the-own-part"],
)
def test_fix_says_the_line_and_what_the_ranks_read(
    source: str, fix: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, source)
    assert report.findings[0].fix is not None
    assert report.findings[0].fix.text == fix


LOSS = """
import torch
import torch.nn.functional as F
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Linear(5, 8)

def batch():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(8, 5, generator=draw) * torch.linspace(0.2, 2, 8)[:, None]
    return x, torch.randn(8, 8, generator=draw)

"""
GATHER = (
    "all-reduce the statistics that the loss needs, with autograd, or gather outputs "
    "and targets with autograd and compute the loss on the global batch; here "
)


@pytest.mark.usefixtures("causes_alone")
@pytest.mark.parametrize(
    ("lines", "here"),
    [
        (
            """
def loss(z, y):
    spread = (z**2).mean(0) / 2
    spread = spread.clamp(min=0.4).sum()
    return ((z - y) ** 2).mean() + spread
""",
            "`spread = spread.clamp(min=0.4).sum()` at target.py:18",
        ),
        (
            """
def loss(z, y):
    p, y = z.sigmoid(), (y > 0).double()
    both = 2 * (p * y).sum() + 1
    ratio = both / (p.sum() + y.sum() + 1)
    return 1 - ratio
""",
            "`ratio = both / (p.sum() + y.sum() + 1)` at target.py:19",
        ),
        (
            """
def loss(z, y):
    logits = F.normalize(z, dim=1) @ y.T
    return F.cross_entropy(logits, torch.arange(len(z)))
""",
            "`logits = F.normalize(z, dim=1) @ y.T` at target.py:17",
        ),
        (
            """
def loss(z, y):
    worst = ((z - y) ** 2).sum(1)
    return worst.topk(3).values.mean()
""",
            "`return worst.topk(3).values.mean()` at target.py:18",
        ),
    ],
    ids=["clamp-after-the-mean", "quotient", "product", "largest"],
)
def test_fix_of_a_loss_says_the_line_at_which_samples_meet(
    lines: str, here: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, LOSS + lines)
    assert [f.slug for f in report.findings] == ["loss/batch-coupled"]
    assert report.findings[0].fix is not None
    assert report.findings[0].fix.text == GATHER + here


def _act(line: int, code: str, value: float | None = None) -> Act:
    return Act(by="MEAN_OF_NUMBERS", place=f"a.py:{line}", code=code, value=value)


def test_lines_that_decide_come_first_and_others_are_counted() -> None:
    acts = [_act(line, f"log({line}.item())", float(line)) for line in (1, 2)]
    known = {"MEAN_OF_NUMBERS": [[*acts, _act(3, "if late:", 1.0)], []]}
    assert with_lines("reduce it", (Switch.MEAN_OF_NUMBERS,), known) == (
        "reduce it; here `if late:` at a.py:3 (1 on the ranks), `log(1.item())` at "
        "a.py:1 (1 on the ranks) and 1 more"
    )


def test_fix_of_another_intervention_has_no_line() -> None:
    known = {"MEAN_OF_NUMBERS": [[_act(1, "x.item()")]]}
    assert with_lines("offset them", (OffsetLabels(),), known) == "offset them"
