"""The terminal report: whole texts, the verdict last, 25 lines, 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from ddpcheck.report.data import JUDGED, Fix, Report
from ddpcheck.report.render import terminal
from ddpcheck.report.render.terminal import one_line

from . import sample

EVERY = pytest.mark.parametrize("report", sample.ALL.values(), ids=sample.ALL)
PATH = "reports/mymodel/report.html"

DIVERGENT = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, float64
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)
  excess of gradients, weights, buffers: at most 1 passes
  mode W gradients rel diff worst          weights buffers ranks verdict
  dp   2   6.7e-07  6.7e-16 body.0.weight  6.7e-07       0 agree = equivalent
  ddp  2     4e+13    0.333 head.weight   1.23e+12       0 agree x divergent
  ddp  4  6.81e+13    0.333 head.weight   1.23e+12       0 agree x divergent
loss/local-normalizer at mymodel.py:41 in ddp W=2, ddp W=4
  facts  on the reference's outputs, rank 0's loss gradient is 1.5 times and
         rank 1's 3 times the reference's; 2 is right
         the constants are N/n_r for n_r = (4, 2): the ones in targets[1]
  cause  each rank divides by its own mask count, not by the global one
  size   gradients off by up to 33.3 %
  fix    sum the mask over ranks before dividing by it; example, not run:
           count = mask.sum()
           torch.distributed.all_reduce(count)
           return W * (error * mask).sum() / count
  proof  confirmed by intervention: with each rank's loss weighted by its share
         of the count the runs are equal (excess 4e+13 before, 0.0213 after);
         tried instead, the fixes of 3 other causes leave 9.99e+12 or more
warning: dropout was off: p=0.1 in body.2
not compared (1): optimizer state (SGD without momentum has none)
report: reports/mymodel/report.html
more: ddpcheck --explain loss/local-normalizer
DIVERGENT: 2 of 3 runs, 60 of 216 comparisons differ
"""

TWO_FINDINGS = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, float64
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)
  excess of gradients, weights, buffers: at most 1 passes
  mode W gradients rel diff worst          weights buffers ranks verdict
  dp   2   6.7e-07  6.7e-16 body.0.weight  6.7e-07       0 agree = equivalent
  ddp  2     4e+13    0.333 head.weight   1.23e+12       0 agree x divergent
  ddp  4  6.81e+13    0.333 head.weight   1.23e+12       0 agree x divergent
loss/local-normalizer at mymodel.py:41 in ddp W=2, ddp W=4
  facts  on the reference's outputs, rank 0's loss gradient is 1.5 times and ...
  cause  each rank divides by its own mask count, not by the global one
  fix    sum the mask over ranks before dividing by it; example, not run:
           count = mask.sum()
           torch.distributed.all_reduce(count)
           return W * (error * mask).sum() / count
  proof  confirmed by intervention: with each rank's loss weighted by its ...
batchnorm/local-statistics at mymodel.py:12 in ddp W=4
  cause  norm uses the mean and variance of its own shard
  fix    did not remove it: convert the model's batch norms (unsafe: it also
         changes single-process training)

warning: dropout was off: p=0.1 in body.2
not compared (1): optimizer state (SGD without momentum has none)
report: reports/mymodel/report.html
more: ddpcheck --explain loss/local-normalizer (or another slug)
DIVERGENT: 2 of 3 runs, 60 of 216 comparisons differ
"""

EQUIVALENT = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, float64
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)

  excess of gradients, weights, buffers: at most 1 passes
  mode W bn   gradients rel diff worst        weights buffers ranks verdict
  dp   2 sync   6.7e-07  6.7e-16 ..y.0.weight 6.7e-07       0 agree = equivalent
  dp   4 sync   6.7e-07  6.7e-16 ..y.0.weight 6.7e-07       0 agree = equivalent
  dp   8 sync   6.7e-07  6.7e-16 ..y.0.weight 6.7e-07       0 agree = equivalent
  ddp  2 sync   6.7e-07  6.7e-16 ..y.0.weight 6.7e-07       0 agree = equivalent
  ddp  4 sync   6.7e-07  6.7e-16 ..y.0.weight 6.7e-07       0 agree = equivalent
  ddp  8 sync   6.7e-07  6.7e-16 ..y.0.weight 6.7e-07       0 agree = equivalent
  6 more runs equivalent, worst excess 6.7e-07

report: reports/mymodel/report.html
EQUIVALENT: 12 of 12 runs, 504 comparisons equal
"""

NOT_CHECKED = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, float64
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)

  mode W gradients rel diff worst weights buffers ranks verdict
  ddp  4         -        - -           -       - -     ? not checked
  ddp W=4 not checked: 2 of 4 ranks failed before the first comparison
    rank 1 died after step 1: killed by SIGABRT
    rank 3 hung: no answer for 60 s, in all_reduce, at mymodel.py:41 in loss

not compared (1): ddp W=4 (2 ranks failed)
report: reports/mymodel/report.html
NOT CHECKED: nothing was compared
"""

NOTHING_COMPARED = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, float64
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)

  mode W gradients rel diff worst weights buffers ranks verdict
  dp   2         -        - -           -       - -     ? not checked
  dp W=2 not checked: nothing was compared

report: reports/mymodel/report.html
NOT CHECKED: nothing was compared
"""

WITHOUT_RUNS = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, no run
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)

  no run was made

report: reports/mymodel/report.html
NOT CHECKED: nothing was compared
"""

USAGE_ERROR = """\
ddpcheck mymodel.py: nothing was trained

  no run was made

report: reports/mymodel/report.html
NOT CHECKED: nothing was compared
"""

ACCEPTED = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, float64
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)

  excess of gradients, weights, buffers: at most 1 passes
  mode W gradients rel diff worst          weights buffers ranks verdict
  dp   2   6.7e-07  6.7e-16 body.0.weight  6.7e-07       0 agree = equivalent
  ddp  2     4e+13    0.333 head.weight   1.23e+12       0 agree ~ accepted
  worst  gradients of head.weight, ddp W=2, step 1, rank 0: rel diff 0.333,
         excess 4e+13, ratio 1.33

accepted: loss/local-normalizer at mymodel.py:41 in ddp W=2
  facts  on the reference's outputs, rank 0's loss gradient is 1.5 times and
         rank 1's 3 times the reference's; 2 is right
         the constants are N/n_r for n_r = (4, 2): the ones in targets[1]
  cause  each rank divides by its own mask count, not by the global one
  size   gradients off by up to 33.3 %
  reason batch norm per GPU is what the paper trains

warning: dropout was off: p=0.1 in body.2
not compared (1): optimizer state (SGD without momentum has none)
report: reports/mymodel/report.html
ACCEPTED: 1 of 2 runs differs only by accepted causes, 30 of 129 comparisons
  differ, 1 accepted
"""

WHOLE = {
    "divergent": DIVERGENT,
    "two-findings": TWO_FINDINGS,
    "equivalent": EQUIVALENT,
    "not-checked": NOT_CHECKED,
    "nothing-compared": NOTHING_COMPARED,
    "without-runs": WITHOUT_RUNS,
    "usage-error": USAGE_ERROR,
    "accepted": ACCEPTED,
}


@pytest.mark.parametrize(("name", "text"), WHOLE.items(), ids=WHOLE)
def test_text_is_exactly(name: str, text: str) -> None:
    report = sample.ALL[name]
    found = terminal.to_text(report, color=False, width=80, report_path=PATH)
    assert found == text


@EVERY
@pytest.mark.parametrize("width", [80, 100])
def test_text_keeps_to_lines_and_columns(report: Report, width: int) -> None:
    text = terminal.to_text(report, color=False, width=width, report_path=PATH)
    lines = text.splitlines()
    assert len(lines) <= terminal.MAX_LINES
    assert max(map(len, lines)) <= width
    assert text.isascii()
    assert all(line.isprintable() for line in lines)


@EVERY
@pytest.mark.parametrize("width", [60, 80, 120])
def test_verbose_text_keeps_to_columns(report: Report, width: int) -> None:
    text = terminal.to_text(report, color=False, width=width, verbose=True)
    assert max(map(len, text.splitlines())) <= width


@EVERY
def test_text_ends_with_the_verdict_line(report: Report) -> None:
    text = terminal.to_text(report, color=False, width=200, report_path=PATH)
    assert text.splitlines()[-1] == terminal.verdict_line(report)


@EVERY
def test_text_with_color_is_the_same_text(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")  # the caller decides, not this module
    monkeypatch.setenv("TERM", "dumb")
    colored = terminal.to_text(report, color=True, width=80)
    plain = terminal.to_text(report, color=False, width=80)
    assert "\x1b[" in colored
    assert "\x1b" not in plain
    assert _without_color(colored) == plain


def _without_color(text: str) -> str:
    pieces = text.split("\x1b[")
    return pieces[0] + "".join(piece.split("m", 1)[1] for piece in pieces[1:])


def test_render_prints_what_to_text_returns() -> None:
    out = io.StringIO()
    report = sample.two_findings()
    Console(file=out, width=80).print(terminal.render(report, report_path=PATH))
    assert out.getvalue() == TWO_FINDINGS


def test_verbose_text_cuts_nothing() -> None:
    text = terminal.to_text(sample.two_findings(), color=False, width=80, verbose=True)
    for part in (
        "worst  gradients of head.weight, ddp W=4, step 1, rank 0: rel diff 0.333,",
        "the constants are N/n_r for n_r = (4, 2): the ones in targets[1]",
        "facts  norm is the first module whose output differs",
        "model = nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        "(unsafe: it also changes",
    ):
        assert part in text


def test_verbose_text_shows_the_stacks_of_faults() -> None:
    text = terminal.to_text(sample.not_checked(), color=False, width=80, verbose=True)
    assert 'File "mymodel.py", line 41, in loss' in text
    assert "terminate called without an active exception" in text


def test_verbose_text_shows_long_lines_of_a_stack_to_their_end() -> None:
    line = f'File "/{"long/" * 20}mymodel.py", line 41, in loss'
    report = sample.not_checked()
    faults = tuple(replace(fault, stack=line) for fault in report.runs[0].faults)
    report = replace(report, runs=(replace(report.runs[0], faults=faults),))
    text = terminal.to_text(report, color=False, width=80, verbose=True)
    assert line in "".join(row.strip() for row in text.splitlines())


def test_text_of_many_divergent_runs_keeps_them_before_equal_ones() -> None:
    runs = [sample.equal_run(world_size=w) for w in range(2, 12)]
    runs += [sample.divergent_run(w) for w in (2, 3, 4)]
    report = replace(sample.divergent(), runs=tuple(runs), findings=())
    text = terminal.to_text(report, color=False, width=80)
    assert text.count("x divergent") == 3
    assert "  7 more runs equivalent, worst excess 6.7e-07\n" in text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_caption_names_the_columns_whose_numbers_are_excess(width: int) -> None:
    text = terminal.to_text(sample.divergent(), color=False, width=width)
    lines = text.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith("  excess"))
    titles = lines[at + 1].split()
    named = ", ".join(kind for kind in JUDGED if kind in titles)
    of = f" of {named}" if width > 40 else ""
    assert (titles[0], lines[at]) == ("mode", f"  excess{of}: at most 1 passes")


def test_text_where_ranks_differ_shows_it() -> None:
    run = replace(sample.divergent_run(2), ranks_agree=False)
    text = terminal.to_text(
        replace(sample.divergent(), runs=(run,)), color=False, width=80
    )
    assert " DIFFER x divergent\n" in text


def test_text_of_a_fix_without_a_run_shows_not_confirmed() -> None:
    finding = sample.local_normalizer()
    assert finding.fix is not None
    fix = replace(finding.fix, verified=None, excess_before=None, excess_after=None)
    report = replace(
        sample.divergent(), findings=(replace(finding, fix=fix, controls=()),)
    )
    text = terminal.to_text(report, color=False, width=80)
    assert "  proof  not confirmed: nothing was run\n" in text


def _with_fix(**changes: Any) -> Report:
    (finding,) = sample.divergent().findings
    assert finding.fix is not None
    changed = replace(finding, fix=replace(finding.fix, **changes), controls=())
    return replace(sample.divergent(), findings=(changed,))


def test_text_of_a_cause_that_is_only_located_shows_it_and_shows_no_code() -> None:
    sentence = "with the loss computed on the samples of all ranks the runs are equal"
    report = _with_fix(code="", proof="located", intervention=sentence)
    text = terminal.to_text(report, color=False, width=80)
    assert (
        "  fix    sum the mask over ranks before dividing by it\n"
        "  proof  located, no fix proven: with the loss computed on the samples of "
        "all\n"
        "         ranks the runs are equal (excess 4e+13 before, 0.0213 after)\n"
    ) in text


def test_text_of_a_file_that_ran_shows_verified_and_names_the_file() -> None:
    sentence = "with reports/x/fixed.py in the place of the target the runs are equal"
    report = _with_fix(proof="file", file="fixed.py", intervention=sentence)
    text = terminal.to_text(report, color=False, width=80)
    assert (
        "  fix    sum the mask over ranks before dividing by it; from fixed.py, which\n"
        "         ran:\n"
        "           count = mask.sum()\n"
    ) in text
    assert "  proof  verified: with reports/x/fixed.py in the place of the" in text


def test_code_whose_title_is_cut_is_not_shown() -> None:
    report = _with_fix(text="mend " * 300)
    text = terminal.to_text(report, color=False, width=80)
    assert "mend" in text
    assert ("count = mask.sum()" in text) == ("example, not run:" in text)


@EVERY
def test_text_shows_verified_of_nothing_but_a_file_that_ran(report: Report) -> None:
    assert "verified" not in terminal.to_text(report, color=False, width=80)


def test_text_cuts_warnings_and_what_was_not_compared_at_three() -> None:
    report = replace(
        sample.equivalent(),
        warnings=("w1", "w2", "w3", "w4", "w5"),
        not_compared=sample.divergent().not_compared * 5,
    )
    text = terminal.to_text(report, color=False, width=80)
    assert "warning: w3\n  and 2 more\nnot compared (5): optimizer state" in text
    assert "; and 2 more\n" in text


def test_text_of_a_divergent_run_shows_the_ranks_that_failed() -> None:
    faults = sample.not_checked().runs[0].faults[:1]
    run = replace(sample.divergent_run(2), faults=faults)
    report = replace(sample.divergent(), runs=(run,), findings=())
    text = terminal.to_text(report, color=False, width=80)
    assert (
        "  ddp W=2 had ranks that failed:\n"
        "    rank 1 died after step 1: killed by SIGABRT\n"
    ) in text
    # The rank that is left agrees with nobody.
    assert " failed x divergent\n" in text


@pytest.mark.parametrize(("further", "shown"), [(2, 2), (4, 2)], ids=["all", "some"])
def test_text_gives_further_findings_their_cause_and_fix(
    further: int, shown: int
) -> None:
    one = sample.two_findings().findings[1]
    others = tuple(
        replace(one, slug=f"a/{n}", summary=f"cause {n}", fix=Fix(text=f"mend {n}"))
        for n in range(further)
    )
    report = replace(sample.divergent(), findings=(sample.local_normalizer(), *others))
    text = terminal.to_text(report, color=False, width=80, report_path=PATH)
    assert len(text.splitlines()) <= terminal.MAX_LINES
    parts = [
        f"\n  cause  cause {n}\n  fix    not confirmed: mend {n}\n" for n in range(9)
    ]
    assert [part in text for part in parts] == [n < shown for n in range(9)]
    assert ("2 more findings: a/2, a/3" in text) == (further > shown)


def test_letters_of_other_alphabets_stay_and_controls_are_written_out() -> None:
    assert one_line("m\u00f6del \u65e5\n\x1b[31m\u202e \udcff") == (
        "m\u00f6del \u65e5 \\x1b[31m\\u202e \\udcff"
    )


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("mymodel.py:41", "mymodel.py:41"),
        (f"{'folder/' * 3}my.py:41", "folder/folder/folder/my.py:41"),
        (f"{'folder/' * 9}my.py:41", ".../folder/folder/folder/my.py:41"),
        (f"folder/{'long_name' * 9}.py:41", f"...ong_name{'long_name' * 2}.py:41"),
    ],
    ids=["name", "folders", "many-folders", "long-name"],
)
def test_place_of_a_finding_is_cut_from_the_left(where: str, shown: str) -> None:
    report = sample.ALL["two-findings"]
    first, *rest = report.findings
    report = replace(report, findings=(replace(first, where=where), *rest))
    text = terminal.to_text(report, color=False, width=80, report_path=PATH)
    (title,) = (row for row in text.splitlines() if row.startswith(first.slug))
    assert title == f"{first.slug} at {shown} in ddp W=2, ddp W=4"
