"""Where no cause can be proven, the finding says where it starts and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.corpus import programs
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

ASKS_FOR_ITS_RANK = """
class Shifted(nn.Module):
    def forward(self, x):
        return x + rank()
model = nn.Sequential(nn.Linear(4, 6), Shifted(), nn.Tanh(), nn.Linear(6, 3))
"""


def test_module_that_asks_for_its_rank_mixes_no_samples(
    pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + ASKS_FOR_ITS_RANK)
    (finding,) = report.findings
    assert (finding.slug, finding.link) == ("unknown", "forward")
    expected = "the cause is unknown; it starts in the forward link, at 1"
    assert finding.summary == expected
    lines = (HEAD + ASKS_FOR_ITS_RANK).splitlines()
    line = 1 + lines.index("class Shifted(nn.Module):")
    assert finding.where is not None
    assert finding.where.endswith(f"target.py:{line}")


GROUPS_OF_ONE = """
model = nn.Linear(4, 3)
def wrap(model):
    own = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return DDP(model, process_group=own[dist.get_rank()])
"""
STEPS_WHEN_BUILT = """
model = nn.Linear(4, 3)
def optimizer(params):
    made = torch.optim.Adam(params)
    if dist.is_initialized():
        for p in made.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p)
        made.step()
    return made
"""


@pytest.mark.parametrize(
    ("source", "link", "definition"),
    [
        (GROUPS_OF_ONE, "reduce", "def wrap(model):"),
        (STEPS_WHEN_BUILT, "update", "def optimizer(params):"),
    ],
    ids=["reduce", "update"],
)
def test_unknown_cause_is_placed_where_its_link_is_written(
    source: str, link: str, definition: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + source)
    (finding,) = report.findings
    line = 1 + (HEAD + source).splitlines().index(definition)
    assert (finding.slug, finding.link) == ("unknown", link)
    assert finding.where is not None
    assert finding.where.endswith(f"target.py:{line}")


LOOKS_AT_HOOKS = """
class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
    def forward(self, x):
        hidden = self.first(x)
        if self.first._forward_hooks:
            raise TypeError("no hooks here")
        return self.second(hidden + rank())
model = Shifted()
"""


def test_why_nothing_could_be_judged_alone_is_told(pool: Pool, tmp_path: Path) -> None:
    report = checked(pool, tmp_path, HEAD + LOOKS_AT_HOOKS)
    (finding,) = report.findings
    assert finding.slug == "unknown"
    expected = "no link could be judged separately: TypeError: no hooks here"
    assert finding.facts[-1] == expected


def test_what_differs_first_is_told(pool: Pool, tmp_path: Path) -> None:
    source = programs.source("unknown/owned-parameters-not-shared")
    report = checked(pool, tmp_path, source)
    (finding,) = report.findings
    expected = "the cause is unknown; it starts in the update link, in step 1"
    assert (finding.link, finding.summary) == ("update", expected)
    assert finding.facts[0] == (
        "first to differ: weights in step 1, of 2.bias, 0.bias; the ranks differ"
    )


WEIGHED = """
model = nn.Linear(4, 3)
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    for p in model.parameters():
        p.grad.mul_(0.7 if world() > 1 else 1.0)
    optimizer.step()
"""


def test_factor_of_all_gradients_is_told(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + WEIGHED).findings
    assert finding.slug == "unknown"
    line = (
        "all gradients that differ in the first step are 0.7 times the "
        "single-process ones"
    )
    assert line in finding.facts
