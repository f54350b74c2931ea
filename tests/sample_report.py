"""Makes reports/sample from the digits example: `python -m tests.sample_report`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ddpcheck.checking.checking import check_file
from ddpcheck.report import data as report
from ddpcheck.report.pages import pages
from ddpcheck.report.render import html
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "reports" / "sample"
TARGET = "examples/digits_conv.py"


def make() -> report.Report:
    """Returns the report of a new run, without what names this machine."""
    made = check_file(TargetRef(path=str(ROOT / TARGET)), Options())
    return dataclasses.replace(
        made,
        target=dataclasses.replace(made.target, path=TARGET),
        command=f"ddpcheck {TARGET}",
        reproduce="",
    )


def to_html(made: report.Report) -> str:
    """Returns the page that the command line would write."""
    return html.to_html(made, pages=pages.rule_pages({f.slug for f in made.findings}))


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    new = make()
    (FOLDER / "report.json").write_text(report.to_json(new), encoding="utf-8")
    (FOLDER / "report.html").write_text(to_html(new), encoding="utf-8")
