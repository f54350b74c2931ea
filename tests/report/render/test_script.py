"""The report of a training script: its verdicts and facts, in every renderer."""

from __future__ import annotations

from dataclasses import replace

from ddpcheck.report import data as reports
from ddpcheck.report.render import github, html, junit, terminal
from tests.report.render import sample


def _text(report: reports.Report, *, verbose: bool = False) -> str:
    return terminal.to_text(report, color=False, width=80, verbose=verbose)


def test_terminal_shows_three_verdicts_and_what_follows_the_world_size() -> None:
    text = _text(sample.script())
    assert (
        "  W=2: gradient equivalent, update equivalent, data divergent\n"
        "  W=4: gradient equivalent, update equivalent, data divergent\n"
        "                     W=1  W=2  W=4  W=8\n"
        "  learning rate      0.1  0.2  0.4  0.8\n"
        "    updates grow with the world size\n"
        "  updates of a pass   12   12   12   12\n"
    ) in text
    assert len(text.splitlines()) <= 25


def test_terminal_with_little_room_shows_what_is_another_number() -> None:
    report = sample.script()
    many = [f"warning {number}" for number in range(9)]
    text = _text(replace(report, warnings=tuple(many)))
    assert "  learning rate  0.1  0.2  0.4  0.8\n" in text
    assert "updates of a pass" not in text
    assert len(text.splitlines()) <= 25


def test_cause_and_fix_are_whole_before_effects_are_told() -> None:
    report = sample.script()
    cause = "all ranks train on the same samples: " + "the data are not sharded, " * 5
    findings = [replace(report.findings[0], summary=f"{cause}{n}") for n in range(2)]
    rows = [replace(row, effect=f"{row.effect}, {cause}") for row in report.facts]
    text = _text(replace(report, findings=tuple(findings), facts=tuple(rows)))
    told = " ".join(text.split())
    assert f"cause {cause}0" in told
    assert f"cause {cause}1" in told
    assert "updates grow" not in told
    assert "  learning rate  0.1  0.2  0.4  0.8\n" in text


def test_all_effects_are_shown_with_v() -> None:
    text = _text(sample.script(), verbose=True)
    assert "    a pass has as many updates as in the single process\n" in text


def test_one_world_size_is_not_repeated_and_a_reason_is_shown() -> None:
    report = sample.script()
    open_part = replace(report.parts[2], verdict="not-checked", why="no pass ended")
    one = replace(report, parts=(*report.parts[:2], open_part))
    shown = "  gradient equivalent, update equivalent, data not checked\n"
    assert shown in _text(one)
    assert "no pass ended" in html.to_html(one)


def test_page_has_the_verdicts_the_table_and_how_to_reproduce() -> None:
    page = html.to_html(sample.script())
    assert '<h2 id="verdicts-title">The script&#39;s three verdicts</h2>' in page or (
        '<h2 id="verdicts-title">The script\'s three verdicts</h2>' in page
    )
    assert '<th scope="row">learning rate</th>' in page
    assert "it runs ddpcheck on the script" in page
    assert "needs torch only" not in page


def test_other_formats_have_the_verdicts_and_no_count_of_nothing() -> None:
    report = sample.script()
    line = "W=2: gradient equivalent, update equivalent, data divergent"
    xml = junit.to_junit(report)
    assert line in xml
    assert 'message="the samples of the ranks: data/shard-overlap"' in xml
    summary = github.to_summary(report)
    assert line.removeprefix("W=2: ") in summary
    assert "| learning rate | 0.1 | 0.2 | 0.4 | 0.8 |" in summary


def test_json_has_the_verdicts() -> None:
    report = sample.script()
    assert reports.from_json(reports.to_json(report)).parts == report.parts
