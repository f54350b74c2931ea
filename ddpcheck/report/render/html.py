"""A report as one HTML file: offline, without scripts, the same bytes every time."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Report
from ddpcheck.report.render import (
    html_views,
    left_out,
    numbers,
    page,
    pictures,
    status,
    wording,
)

_NO_PAGES: Mapping[str, str] = {}


def to_html(report: Report, *, pages: Mapping[str, str] = _NO_PAGES) -> str:
    """Returns the report as a complete HTML document.

    `pages` maps a rule's slug to its page; findings without one show none.
    """
    template = _environment().get_template("report.html.jinja")
    return template.render(_context(report, pages)).rstrip("\n") + "\n"


def _context(report: Report, pages: Mapping[str, str]) -> dict[str, Any]:
    table = html_views.tensor_table(report)
    return {
        "report": report,
        "status": status.report_status(report),
        "sentence": wording.verdict_sentence(report),
        "formula": wording.EXCESS_FORMULA,
        "setup": html_views.setup(report),
        "extremes": html_views.extremes(report, table),
        "findings": html_views.findings(report, pages),
        "columns": [status.KIND_WORDS[kind] for kind in html_views.columns(report)],
        "runs": html_views.runs(report, table),
        "not_compared": left_out.items(report),
        "pictures": pictures.pictures(report),
        "unchecked": wording.unchecked(report),
        "tensors": table,
        "open_tensors": html_views.OPEN_TENSORS,
        "provenance": html_views.provenance(report),
    }


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ddpcheck.report.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(
        number=numbers.number,
        excess=numbers.excess,
        count=numbers.count,
        counted=numbers.counted,
        spans=page.spans,
        fault_line=wording.fault_line,
        safety=wording.safety,
        code_title=wording.code_title,
    )
    environment.globals["words"] = status.WORDS
    return environment


def _visible(value: object) -> object:
    """Writes control characters out; markup that is already safe is left alone."""
    return visible(value) if type(value) is str else value
