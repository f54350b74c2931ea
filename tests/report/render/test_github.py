"""GitHub output: a hostile name starts no command, breaks no table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpcheck.report.data import Report
from ddpcheck.report.render.github import to_annotations, to_summary

from . import sample

EVERY = pytest.mark.parametrize("report", sample.ALL.values(), ids=sample.ALL)
LEVELS = ("::error ", "::warning ", "::notice ")


@EVERY
def test_annotations_are_one_command_per_line(report: Report) -> None:
    lines = to_annotations(report).splitlines()
    assert lines
    assert all(line.startswith(LEVELS) for line in lines)


def test_annotations_escape_properties_and_message() -> None:
    finding = replace(
        sample.local_normalizer(),
        slug="a:b,c%d",
        where="dir,x:y.py:41",
        facts=("50 %\r\nhalf",),
        summary="x: y, z",
        fix=None,
        controls=(),
    )
    report = replace(sample.divergent(), findings=(finding,), warnings=())
    assert to_annotations(report) == (
        "::error title=a%3Ab%2Cc%25d,file=dir%2Cx%3Ay.py,line=41::"
        "50 %25\\r%0Ahalf%0Ax: y, z%0Ano fix is known\n"
    )


def test_annotation_shows_what_ran_and_that_the_code_did_not() -> None:
    finding = replace(sample.local_normalizer(), facts=(), controls=())
    report = replace(sample.divergent(), findings=(finding,), warnings=())
    assert to_annotations(report) == (
        "::error title=loss/local-normalizer,file=mymodel.py,line=41::"
        "each rank divides by its own mask count, not by the global one%0A"
        "sum the mask over ranks before dividing by it%0A"
        "example, not run:%0A"
        "count = mask.sum()%0Atorch.distributed.all_reduce(count)%0A"
        "return W * (error * mask).sum() / count%0A"
        "confirmed by intervention: with each rank's loss weighted by its share of the "
        "count the runs are equal (excess 4e+13 before, 0.0213 after)\n"
    )


def test_summary_shows_what_ran_and_that_the_code_did_not() -> None:
    text = to_summary(sample.divergent())
    assert (
        "**Fix** (safe: single-process training is unchanged): sum the mask over "
        "ranks before dividing by it\n\n"
        "Example, not run&#58;\n\n"
        "```python\ncount = mask.sum()\n"
    ) in text.replace("run:", "run&#58;")
    assert (
        "confirmed by intervention&#58; with each rank&#39;s loss weighted by its share"
        in text
    )


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("divergent", ["error", "warning"]),
        ("two-findings", ["error", "error", "warning"]),
        ("equivalent", ["notice"]),
        ("not-checked", ["error", "error"]),
        ("nothing-compared", ["error", "error"]),
        ("without-runs", ["error"]),
        ("accepted", ["warning", "notice", "notice"]),
    ],
)
def test_annotations_have_the_level_of_the_verdict(
    name: str, levels: list[str]
) -> None:
    lines = to_annotations(sample.ALL[name]).splitlines()
    assert [line[2:].split(" ")[0] for line in lines] == levels


def test_annotations_of_a_divergence_without_cause_still_fail() -> None:
    report = replace(sample.divergent(), findings=(), warnings=())
    assert to_annotations(report) == (
        "::error title=ddpcheck,file=examples/mymodel.py::"
        "DIVERGENT: 2 of 3 runs, 60 of 216 comparisons differ\n"
    )


def test_unchecked_run_next_to_an_accepted_one_is_a_warning() -> None:
    report = replace(sample.accepted(), warnings=())
    unchecked = sample.not_checked().runs[-1]
    report = replace(report, runs=(*report.runs, replace(unchecked, faults=())))
    assert to_annotations(report).splitlines()[0] == (
        "::warning title=ddpcheck,file=examples/mymodel.py::"
        "ddp W=4 not checked: 2 of 4 ranks failed before the first comparison"
    )


def test_summary_matrix() -> None:
    lines = to_summary(sample.divergent()).splitlines()
    assert lines[:11] == [
        "## ddpcheck: divergent",
        "",
        (
            "<code>mymodel.py</code>: Data-parallel training differs from "
            "single-process training in 2 of 3 runs, with 60 of 216 tensor comparisons "
            "above tolerance."
        ),
        "",
        "Worst excess of each quantity, at most 1 passes:",
        "",
        (
            "| mode | W | settings | gradients | weights | buffers | loss "
            "| ranks | verdict |"
        ),
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | --- | --- |",
        "| dp | 2 | - | 6.7e-07 | 6.7e-07 | 0 | - | agree | **= equivalent** |",
        ("| ddp | 2 | - | 4e+13 | 1.23e+12 | 0 | 5.1e+07 | agree | **x divergent** |"),
        (
            "| ddp | 4 | - | 6.81e+13 | 1.23e+12 | 0 | 5.1e+07 | agree "
            "| **x divergent** |"
        ),
    ]


@EVERY
def test_summary_rows_have_as_many_cells_as_the_head(report: Report) -> None:
    rows = [line for line in to_summary(report).splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) <= 1


def test_summary_of_hostile_names_holds_no_markup() -> None:
    text = to_summary(sample.hostile())
    outside = text.replace("<code>", "").replace("</code>", "").split("````")[::2]
    assert "<" not in "".join(outside)
    assert "](" not in "".join(outside)


@pytest.mark.parametrize("fact", ["- x", "+ x", "3. x", "=="])
def test_summary_of_a_fact_like_a_block_stays_text(fact: str) -> None:
    finding = replace(sample.local_normalizer(), facts=(fact,))
    text = to_summary(replace(sample.divergent(), findings=(finding,)))
    assert f"\n- {fact}\n" not in text
