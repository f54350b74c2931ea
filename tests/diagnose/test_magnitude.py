"""How large a divergence is: told of one cause alone."""

from __future__ import annotations

from pathlib import Path

from ddpcheck.ranks.pool import Pool
from tests.diagnose.head import HEAD
from tests.diagnose.test_rules import checked

_SUM = """
model = nn.Linear(4, 3)
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""


def test_size_is_told_where_one_finding_is_alone(pool: Pool, tmp_path: Path) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + _SUM).findings
    assert finding.magnitude is not None
    assert finding.magnitude.startswith("all gradients differ by the factor 0.5: ")


_NORM_AND_SCALE = """
import torch.distributed as dist
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
def loss(output, target):
    scale = 1.001 if dist.is_initialized() else 1
    return scale * nn.functional.cross_entropy(output, target)
"""


def test_factor_of_the_loss_is_no_size_of_a_cause_in_the_forward(
    pool: Pool, tmp_path: Path
) -> None:
    (finding,) = checked(pool, tmp_path, HEAD + _NORM_AND_SCALE, fix=False).findings
    assert finding.slug == "norm/local-batch-stats"
    assert finding.magnitude is None
