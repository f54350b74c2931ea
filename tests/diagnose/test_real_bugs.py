"""Bugs as training code has them come out by their names, with verified fixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from ddpcheck.report.pages import pages
from tests.diagnose.bugs import BUGS, SOUND
from tests.diagnose.negative_controls import HEAD
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("no_script")]


@pytest.mark.parametrize("name", list(BUGS))
def test_bug_is_found_and_its_fix_verified(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    source, findings = BUGS[name]
    report = checked(pool, tmp_path, HEAD + source)
    found = [(f.slug, f.fix.verified if f.fix else None) for f in report.findings]
    assert found == findings


# Other numbers: what differs may begin later, or a count fit at first by chance.
OTHER_DATA = [
    ("balance-of-counts-and-probabilities", 300),
    ("largest-error-of-the-batch", 100),
    ("mean-over-what-the-model-is-sure-of", 100),
    ("noise-of-one-generator-beside-a-count-of-the-outputs", 200),
    ("noise-of-one-generator-beside-a-count-of-the-outputs", 300),
    ("router-probabilities-as-output", 300),
]


@pytest.mark.parametrize(("name", "seed"), OTHER_DATA)
def test_bug_is_found_in_other_data(
    name: str, seed: int, pool: Pool, tmp_path: Path
) -> None:
    source, findings = BUGS[name]
    source = _seeded(HEAD + source, seed)
    report = checked(pool, tmp_path, source)
    assert [(f.slug, f.fix and f.fix.verified) for f in report.findings] == findings


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


@pytest.mark.parametrize("name", list(SOUND))
def test_what_looks_like_a_bug_and_is_none_is_equivalent(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + SOUND[name])
    assert (report.verdict, report.findings) == ("equivalent", ())
