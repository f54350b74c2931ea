"""The data link of targets that choose their samples themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.corpus import programs
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]


def test_samples_are_told_in_numbers(pool: Pool, tmp_path: Path) -> None:
    source = programs.source("data/padding-by-hand")
    finding = checked(pool, tmp_path, source).findings[0]
    line = source.splitlines().index("def train_step(model, optimizer, batch):") + 1
    assert str(finding.where).endswith(f"target.py:{line}")
    assert finding.facts == (
        "in step 1 the single-process run trains on 13 samples, the 2 ranks on 7 "
        "each; repeated at the end of a shard, from the beginning of another shard: 1",
    )
    assert finding.evidence == {
        "step": 0,
        "one_process": 13,
        "ranks": [7, 7],
        "repeated": 1,
        "missing": 0,
        "foreign": 0,
    }
