"""How large a divergence is: told of one cause alone."""

from __future__ import annotations

from pathlib import Path

from ddpcheck.ranks.pool import Pool
from tests.diagnose.negative_controls import HEAD
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
