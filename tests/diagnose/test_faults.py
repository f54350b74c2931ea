"""A rank that hangs by itself is told from ranks that wait for it."""

from __future__ import annotations

from pathlib import Path

from ddpcheck.ranks.pool import Pool
from tests.diagnose.negative_controls import HEAD
from tests.diagnose.test_rules import checked

SLEEPS = """
import time
model = nn.Linear(4, 3)
def loss(output, target):
    if dist.is_initialized() and rank() == 1:
        time.sleep(600)
    return nn.functional.cross_entropy(output, target)
"""


def test_rank_that_sleeps_is_no_skipped_backward(short: Pool, tmp_path: Path) -> None:
    report = checked(short, tmp_path, HEAD + SLEEPS)
    assert [f.slug for f in report.findings] == ["unknown"]
    line = (HEAD + SLEEPS).splitlines().index("        time.sleep(600)") + 1
    where = f"{tmp_path / 'target.py'}:{line}"
    told = f"rank 1 hangs in its own code, at {where}; the others wait for it"
    assert told in report.findings[0].facts
