"""Bugs as training code has them come out by their names, with verified fixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
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


@pytest.mark.parametrize("name", list(SOUND))
def test_what_looks_like_a_bug_and_is_none_is_equivalent(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + SOUND[name])
    assert (report.verdict, report.findings) == ("equivalent", ())
