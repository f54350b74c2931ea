"""The sample report in the repository is what the code makes today."""

from __future__ import annotations

import pytest

from ddpcheck.report import data as report
from tests import sample_report
from tests.conftest import Digits


def _committed() -> report.Report:
    text = (sample_report.FOLDER / "report.json").read_text(encoding="utf-8")
    return report.from_json(text)


def test_sample_page_is_what_the_renderer_makes_of_the_sample_report() -> None:
    page = (sample_report.FOLDER / "report.html").read_text(encoding="utf-8")
    assert sample_report.to_html(_committed()) == page, (
        "stale: python -m tests.sample_report"
    )


@pytest.mark.xdist_group("digits")
def test_sample_report_is_what_a_new_run_finds(digits: Digits) -> None:
    old, new = _committed(), report.from_json(digits.report)
    assert [(f.slug, f.summary, f.runs) for f in new.findings] == [
        (f.slug, f.summary, f.runs) for f in old.findings
    ], "stale: python -m tests.sample_report"
    assert [(r.mode, r.world_size, r.verdict) for r in new.runs] == [
        (r.mode, r.world_size, r.verdict) for r in old.runs
    ]
    assert new.target == old.target
