"""The words for what is proven, and the code, are the same in every form of a report.

DESIGN section 12 says which word goes with which proof.
"""

from __future__ import annotations

import dataclasses
import html
from typing import Any
from urllib.parse import unquote

import pytest

from ddpcheck.report import output
from ddpcheck.report.data import Report
from ddpcheck.report.render import github
from tests.report.render import sample

RAN = "with x the runs are equal"
CODE = "total = count(mask)"
FIXES: dict[str, dict[str, Any]] = {
    "file": {"proof": "file", "file": "fixed.py", "code": CODE},
    "intervention": {"proof": "intervention", "code": CODE},
    "located": {"proof": "located", "code": ""},
}
WORDS = {
    "file": f"verified: {RAN}",
    "intervention": f"confirmed by intervention: {RAN}",
    "located": f"located, no fix proven: {RAN}",
}
TITLES = {"file": "from fixed.py, which ran", "intervention": "example, not run"}
FORMS = ("terminal", "html", "junit", "sarif", "github", "summary")


def _report(**changes: Any) -> Report:
    report = sample.divergent()
    finding = report.findings[0]
    assert finding.fix is not None
    fix = dataclasses.replace(finding.fix, verified=True, intervention=RAN, **changes)
    finding = dataclasses.replace(finding, fix=fix, facts=(), controls=())
    return dataclasses.replace(report, findings=(finding,))


def _text(report: Report, form: str) -> str:
    """Returns what a reader of this form sees, lower case."""
    if form == "summary":
        text = github.to_summary(report)
    else:
        text = output.render(report, form)
    text = html.unescape(unquote(text) if form == "github" else text)
    return " ".join(text.replace("\\n", "\n").split()).lower()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("proof", FIXES)
def test_form_says_what_is_proven(form: str, proof: str) -> None:
    text = _text(_report(**FIXES[proof]), form)
    assert WORDS[proof] in text
    others = {word.partition(":")[0] for word in WORDS.values()} - {
        WORDS[proof].partition(":")[0]
    }
    assert not [word for word in others if f"{word}:" in text]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("proof", TITLES)
def test_form_shows_the_code_and_whether_it_ran(form: str, proof: str) -> None:
    text = _text(_report(**FIXES[proof]), form)
    assert CODE in text
    assert TITLES[proof] in text
    assert [title in text for title in TITLES.values()].count(True) == 1


@pytest.mark.parametrize("form", FORMS)
def test_form_says_what_an_unsafe_fix_changes(form: str) -> None:
    changes = "single-process gradients differ from those of the file"
    text = _text(_report(**FIXES["file"], safe=False, changes=changes), form)
    assert f"unsafe: {changes}" in text
