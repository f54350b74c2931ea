"""Which samples a loss couples: far apart, and on both sides of a shard's border."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck import checking
from ddpcheck.options import Options
from ddpcheck.ranks.pool import Pool
from ddpcheck.target import TargetRef
from tests.diagnose.negative_controls import HEAD

# Rows 2i and 2i + 1 are a pair; a shard of 3 rows cuts one, and no half of the batch.
NEIGHBOURS = """
model = nn.Linear(4, 1)
batch = torch.randn(12, 4), torch.zeros(12)
def loss(output, target):
    r = output.squeeze(-1)
    return -nn.functional.logsigmoid(r[0::2] - r[1::2]).mean()
"""
# Rows i and i + 8 are a pair: in shards of even numbers both, or of odd ones.
STACKED = """
model = nn.Linear(4, 3)
batch = torch.randn(16, 4), torch.zeros(16)
def loss(output, target):
    first, second = output.chunk(2)
    return (first * second).sum(1).exp().mean()
"""


@pytest.mark.parametrize(
    ("source", "slug"),
    [(NEIGHBOURS, "loss/batch-coupled"), (STACKED, "data/batch-layout")],
    ids=["neighbours", "stacked"],
)
def test_coupling_is_seen_wherever_the_partner_is(
    source: str, slug: str, pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(HEAD + source, encoding="utf-8")
    options = Options(world_sizes=(4,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    (finding,) = report.findings
    assert finding.slug == slug
    assert finding.fix is not None
    assert finding.fix.verified is True
