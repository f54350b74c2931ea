"""What a finding's picture draws is what its facts say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Evidence
from ddpcheck.report.pages import pages
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = pytest.mark.usefixtures("causes_alone")


def _evidence(pool: Pool, folder: Path, slug: str) -> tuple[str, Evidence]:
    path = folder / "mymodel.py"
    path.write_text(pages.targets(slug)[0], encoding="utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    (finding,) = report.findings
    assert finding.slug == slug
    return finding.facts[0], finding.evidence


def test_ratios_of_micro_batches_are_theirs_and_not_those_of_ranks(
    pool: Pool, tmp_path: Path
) -> None:
    fact, evidence = _evidence(pool, tmp_path, "loss/accum-normalizer")
    drawn = evidence["ratios"]
    assert fact.endswith("per rank and micro-batch: 1.5, 3, 2, 2, expected 2")
    assert drawn["ranks"] == pytest.approx([1.5, 3, 2, 2])
    assert drawn["places"] == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_ratios_of_ranks_that_have_no_factor_are_not_for_drawing(
    pool: Pool, tmp_path: Path
) -> None:
    fact, evidence = _evidence(pool, tmp_path, "loss/batch-coupled")
    assert fact.startswith("changing the outputs of some samples changes")
    assert list(evidence) == ["fitted_ratios"]
