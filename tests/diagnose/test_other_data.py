"""Programs of the corpus on other numbers than those of their own seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from ddpcheck.report.pages import pages
from tests.corpus.programs import programs
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]

# What differs may begin later, or a count fit at first by chance.
OTHER_DATA = [
    ("loss/balance-of-counts-and-probabilities", 300),
    ("loss/largest-error-of-the-batch", 100),
    ("loss/mean-over-what-the-model-is-sure-of", 100),
    ("loss/noise-of-one-generator-beside-a-count-of-the-outputs", 200),
    ("loss/noise-of-one-generator-beside-a-count-of-the-outputs", 300),
    ("loss/router-probabilities-as-output", 300),
]


@pytest.mark.parametrize(("name", "seed"), OTHER_DATA)
def test_bug_is_found_in_other_data(
    name: str, seed: int, pool: Pool, tmp_path: Path
) -> None:
    program = programs()[name]
    report = checked(pool, tmp_path, _seeded(program.source, seed))
    found = tuple((f.slug, f.fix and f.fix.verified) for f in report.findings)
    assert found == program.findings


def test_shares_that_rounding_leaves_of_no_token_choose_none(
    pool: Pool, tmp_path: Path
) -> None:
    source = _seeded(pages.targets("loss/router-aux")[0], 200)
    report = checked(pool, tmp_path, source)
    assert [f.slug for f in report.findings] == ["loss/router-aux"]


def _seeded(source: str, seed: int) -> str:
    seeded = source.replace("manual_seed(0)", f"manual_seed({seed})")
    assert seeded != source
    return seeded
