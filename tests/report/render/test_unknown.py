"""An unknown as every renderer shows it: where it starts, and what was ruled out."""

from __future__ import annotations

import html
from dataclasses import replace

from ddpcheck.report.data import (
    Finding,
    Report,
    RuledOut,
    Start,
    from_json,
    to_json,
)
from ddpcheck.report.render import terminal, wording
from ddpcheck.report.render.github import to_annotations, to_summary
from ddpcheck.report.render.html import to_html
from ddpcheck.report.render.junit import to_junit
from ddpcheck.report.render.sarif import to_sarif

from . import sample

START = (
    "Adam's state before the first update: step is 1 on all ranks, and the "
    "single-process run has none, for head.weight"
)
UNKNOWN = Finding(
    slug="unknown",
    link="update",
    runs=(1, 2),
    summary="the cause is unknown; it starts in the update link, in step 1",
    facts=("first to differ: weights in step 1, of head.weight; the ranks agree",),
    where="mymodel.py:12",
    start=Start(
        text=START,
        quantity="optimizer state",
        step=0,
        parameters=("head.weight",),
        optimizer="Adam",
        key="step",
    ),
    ruled_out=(
        RuledOut(what="data", why="each rank trains on its shard of the batch"),
        RuledOut(what="loss", why="its gradient at the outputs is 2 times as large"),
        RuledOut(
            what="loss/sum-reduction", why="its fix leaves excess 4e+08", excess=4e8
        ),
        RuledOut(
            what="sync/control-desync", why="its fix leaves excess 3e+08", excess=3e8
        ),
    ),
)
REPORT = replace(sample.divergent(), findings=(UNKNOWN,), warnings=())

SHORT = """\
unknown at mymodel.py:12 in ddp W=2, ddp W=4
  facts  first to differ: weights in step 1, of head.weight; the ranks agree
  cause  the cause is unknown; it starts in the update link, in step 1
  start  Adam's state before the first update: step is 1 on all ranks, and the
         single-process run has none, for head.weight
  not    data, loss; the fixes of 2 causes leave 3e+08 or more
  proof  no fix is known
"""
WHOLE = """\
  not    data: each rank trains on its shard of the batch
         loss: its gradient at the outputs is 2 times as large
         loss/sum-reduction: its fix leaves excess 4e+08
         sync/control-desync: its fix leaves excess 3e+08
  proof  no fix is known
"""
SENTENCES = [
    f"starts at: {START}",
    "not the cause: data: each rank trains on its shard of the batch",
    "not the cause: loss: its gradient at the outputs is 2 times as large",
    "not the cause: loss/sum-reduction: its fix leaves excess 4e+08",
    "not the cause: sync/control-desync: its fix leaves excess 3e+08",
]


def _with(finding: Finding) -> Report:
    return replace(REPORT, findings=(finding,))


def test_terminal_names_what_was_ruled_out_and_verbose_says_how() -> None:
    assert SHORT in terminal.to_text(REPORT, color=False, width=80)
    assert WHOLE in terminal.to_text(REPORT, color=False, width=80, verbose=True)


def test_start_that_facts_tell_is_not_repeated() -> None:
    start = Start(text="step 1, weights of head.weight", quantity="weights", step=0)
    text = terminal.to_text(_with(replace(UNKNOWN, start=start)), color=False, width=80)
    assert "  start  " not in text
    assert wording.start(UNKNOWN) == START
    assert wording.start(sample.local_normalizer()) == ""


def test_one_fix_that_was_tried_is_counted_as_one() -> None:
    finding = replace(UNKNOWN, ruled_out=UNKNOWN.ruled_out[2:3])
    expected = "the fix of a cause leaves 4e+08"
    assert wording.ruled_out_in_brief(finding) == expected


def test_other_formats_hold_every_sentence() -> None:
    assert wording.beside_facts(UNKNOWN) == SENTENCES
    texts = (
        to_annotations(REPORT).replace("%0A", "\n"),
        to_summary(REPORT),
        to_junit(REPORT),
        to_sarif(REPORT, pages={}).replace("\\n", "\n"),
    )
    for text in texts:
        for sentence in SENTENCES[1:3]:
            assert sentence in html.unescape(text)


def test_html_has_both_as_sections() -> None:
    page = to_html(REPORT)
    assert "<h4>Where it starts</h4>\n<p>Adam&#39;s state before the first" in page
    assert (
        "<h4>Not the cause</h4>\n<ul>\n<li><code>data</code>: each rank trains on its "
        "shard of the batch</li>\n" in page
    )
    assert "<h4>Where it starts</h4>" not in to_html(sample.divergent())


def test_json_keeps_both() -> None:
    (finding,) = from_json(to_json(REPORT)).findings
    assert (finding.start, finding.ruled_out) == (UNKNOWN.start, UNKNOWN.ruled_out)
