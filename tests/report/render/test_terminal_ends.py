"""The terminal report: causes to their end, a reason once, where there is more."""

from __future__ import annotations

from dataclasses import replace

from ddpcheck.report.data import Fault, NotCompared, Report, Run
from ddpcheck.report.render import terminal

from . import sample

PATH = "reports/mymodel/report.html"

LONG_CAUSE = (
    "each micro-batch's loss is divided by its own number of `batch.1 != -100`; with "
    "ranks micro-batches hold other samples, and the means of means differ"
)


def _with_cause(summary: str) -> Report:
    finding = replace(sample.local_normalizer(), summary=summary)
    others = tuple(replace(finding, slug=f"a/{n}") for n in range(2))
    return replace(sample.divergent(), findings=(finding, *others))


def test_text_of_many_findings_wraps_the_first_cause_to_its_end() -> None:
    text = terminal.to_text(_with_cause(LONG_CAUSE), color=False, width=80)
    lines = text.splitlines()
    (at,) = (i for i, line in enumerate(lines) if "its own number of" in line)
    assert lines[at : at + 3] == [
        "  cause  each micro-batch's loss is divided by its own number of `batch.1 !=",
        "         -100`; with ranks micro-batches hold other samples, and the means of",
        "         means differ",
    ]


def test_text_of_a_cause_of_many_lines_shows_where_all_of_it_is() -> None:
    finding = replace(sample.local_normalizer(), summary="word " * 80)
    report = replace(sample.divergent(), findings=(finding,))
    text = terminal.to_text(report, color=False, width=80, report_path=PATH)
    (last,) = (line for line in text.splitlines() if "(all with -v)" in line)
    assert last == f"{' ' * 9}{'word ' * 10}... (all with -v)"


def test_text_names_the_page_of_a_cause_and_the_script_next_to_the_report() -> None:
    report = replace(sample.divergent(), reproduce="import torch\n")
    text = terminal.to_text(report, color=False, width=80, report_path=PATH)
    assert (
        f"\nreport: {PATH}\n"
        "more: ddpcheck --explain loss/local-normalizer; reproduce.py next to the "
        "report\n"
    ) in text
    unwritten = terminal.to_text(report, color=False, width=80)
    assert "reproduce.py" not in unwritten
    assert "\nmore: ddpcheck --explain loss/local-normalizer\n" in unwritten


STANDS_STILL = """\
ddpcheck mymodel.py: Net, 1,234 parameters in 6 tensors, batch 8, float64
  reference: single process, SGD lr 0.1, 3 steps; rtol 1e-09 (float64 default)

  excess of gradients, weights, buffers: at most 1 passes
  mode W gradients rel diff worst         weights buffers ranks verdict
  dp   2   6.7e-07  6.7e-16 body.0.weight 6.7e-07       0 agree ? not checked
  ddp  2   6.7e-07  6.7e-16 body.0.weight 6.7e-07       0 agree ? not checked
  ddp  4   6.7e-07  6.7e-16 body.0.weight 6.7e-07       0 agree ? not checked
  none of the 3 runs was checked: the single-process run changes no weight in 3
    steps

NOT CHECKED: 3 of 3 runs; 126 equal comparisons prove nothing
"""


def _still(*runs: Run) -> Report:
    """Returns a report whose runs were not checked, all for one reason."""
    why = "the single-process run changes no weight in 3 steps"
    idle = tuple(replace(run, verdict="not-checked", why=why) for run in runs)
    listed = tuple(
        NotCompared(what=f"{run.mode} at world size {run.world_size}", why=why)
        for run in runs
    )
    return replace(
        sample.not_checked(), runs=idle, not_compared=listed, verdict="not-checked"
    )


def test_text_gives_one_reason_of_all_runs_once() -> None:
    runs = sample.equal_run(), sample.equal_run("ddp"), sample.equal_run("ddp", 4)
    assert terminal.to_text(_still(*runs), color=False, width=80) == STANDS_STILL


def test_text_gives_one_reason_of_some_runs_once() -> None:
    idle = _still(*(sample.equal_run("dp", w) for w in (2, 3, 4, 8)))
    report = replace(idle, runs=(*idle.runs, sample.equal_run("ddp")))
    text = terminal.to_text(report, color=False, width=80)
    assert text.count("single-process run changes") == 1
    assert (
        "  dp W=2, dp W=3, dp W=4, and 1 more not checked: the single-process "
        "run changes\n"
        "    no weight in 3 steps\n"
    ) in text


def test_text_shows_once_what_a_rank_raised_where_it_is_the_reason() -> None:
    error = "ValueError: Expected more than 1 value per channel"
    fault = Fault(kind="raised", rank=0, step=0, summary=error, stack="Traceback\n")
    why = f"DataParallel cannot run this target: {error}"
    run = replace(sample.equal_run(), verdict="not-checked", why=why, faults=(fault,))
    report = replace(sample.divergent(), runs=(run, sample.divergent_run()))
    text = terminal.to_text(report, color=False, width=120)
    assert text.count(error) == 1
    assert "Traceback" in terminal.to_text(report, color=False, width=120, verbose=True)
