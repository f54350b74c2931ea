"""A report against an earlier one: only what is new fails."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.checking import baseline, checking
from ddpcheck.cli import main as cli
from ddpcheck.errors.problem import UsageError
from ddpcheck.report import data as report
from ddpcheck.report.data import Fault, Finding, ModuleRow, Quantity, Report, Run
from ddpcheck.report.render import junit, terminal
from tests.report.render import sample

SECOND = Finding(slug="norm/local-batch-stats", link="forward", runs=(2,), summary="s")


def _times(run: Run, factor: float) -> Run:
    """Returns a run that is off by so many times as much."""

    def times(quantity: Quantity) -> Quantity:
        worst = quantity.worst
        rows = [replace(t, excess=t.excess * factor) for t in quantity.tensors]
        return replace(
            quantity,
            worst=worst and replace(worst, excess=worst.excess * factor),
            tensors=tuple(rows),
        )

    return replace(
        run,
        gradients=times(run.gradients),
        weights=times(run.weights),
        buffers=times(run.buffers),
    )


def _applied(now: Report, known: Report) -> Report:
    return baseline.apply(now, known, "known.json")


def test_same_report_passes_and_every_finding_is_accepted() -> None:
    judged = _applied(sample.divergent(), sample.divergent())
    assert (judged.verdict, judged.exit_code) == ("equivalent", 0)
    assert [f.accepted for f in judged.findings] == ["in the baseline known.json"]
    assert judged.warnings == sample.divergent().warnings
    assert junit.to_junit(judged).count("<skipped") == 2


def _of_an_earlier_version() -> str:
    """Returns a report as it was written before reports had what ran."""
    plain = json.loads(report.to_json(sample.divergent()))
    for finding in plain["findings"]:
        for name in ("proof", "file", "intervention"):
            del finding["fix"][name]
    return json.dumps(plain)


def test_report_of_an_earlier_version_is_a_baseline_and_is_rendered() -> None:
    known = report.from_json(_of_an_earlier_version())
    judged = _applied(sample.divergent(), known)
    assert (judged.verdict, judged.exit_code) == ("equivalent", 0)
    text = terminal.to_text(known, color=False, width=80)
    assert (
        "  proof  confirmed by intervention: excess 4e+13 before, 0.0213 after; "
        "tried\n"
        "         instead, the fixes of 3 other causes leave 9.99e+12 or more\n"
    ) in text


def test_what_ran_is_read_as_it_was_written() -> None:
    judged = report.from_json(report.to_json(sample.divergent()))
    assert [f.fix for f in judged.findings] == [
        f.fix for f in sample.divergent().findings
    ]


def test_new_finding_fails_and_is_named() -> None:
    now = replace(sample.divergent(), findings=(*sample.divergent().findings, SECOND))
    judged = _applied(now, sample.divergent())
    assert (judged.verdict, judged.exit_code) == ("divergent", 1)
    assert [f.accepted is None for f in judged.findings] == [True, False]
    line = "new since the baseline: norm/local-batch-stats in ddp W=4"
    assert judged.warnings[0] == line


@pytest.mark.parametrize(
    ("summary", "exit_code"),
    [
        ("rank 1 raises KeyError: x, at mymodel.py:9 in forward", 0),
        ("rank 1 raises KeyError: x, at mymodel.py:12 in forward", 0),
        ("rank 1 raises ValueError: x, at mymodel.py:9 in forward", 1),
    ],
    ids=["same", "moved", "another"],
)
def test_finding_that_names_no_cause_is_known_by_its_words(
    summary: str, exit_code: int
) -> None:
    before = "rank 1 raises KeyError: x, at mymodel.py:9 in forward"
    fault = Finding(slug="sync/rank-raised", link="sync", runs=(1, 2), summary=before)
    known = replace(sample.divergent(), findings=(fault,))
    now = replace(known, findings=(replace(fault, summary=summary),))
    assert _applied(now, known).exit_code == exit_code


def test_known_finding_in_a_run_that_was_equal_is_new() -> None:
    known = sample.divergent()
    runs = (*known.runs[:2], replace(known.runs[2], verdict="equivalent"))
    findings = (replace(known.findings[0], runs=(1,)),)
    judged = _applied(known, replace(known, runs=runs, findings=findings))
    assert judged.exit_code == 1
    assert judged.warnings[0] == (
        "new since the baseline: loss/local-normalizer (equivalent in the baseline) in "
        "ddp W=4"
    )
    assert [(f.runs, f.accepted) for f in judged.findings] == [
        ((2,), None),
        ((1,), "in the baseline known.json"),
    ]
    fact = "not accepted in ddp W=4: equivalent in the baseline"
    assert judged.findings[0].facts[-1] == fact


def test_known_finding_in_a_run_that_was_not_made_is_new() -> None:
    known = sample.divergent()
    findings = (replace(known.findings[0], runs=(1,)),)
    judged = _applied(known, replace(known, runs=known.runs[:2], findings=findings))
    assert judged.exit_code == 1
    assert judged.warnings[0] == (
        "new since the baseline: loss/local-normalizer (the baseline has no such run) "
        "in ddp W=4"
    )


def _with_modules(*diverging: str, **changes: object) -> Report:
    rows: list[ModuleRow] = [
        {"name": name, "rel_diff": 0.1, "diverges": name in diverging}
        for name in ("0", "1", "4")
    ]
    finding = replace(SECOND, evidence={"modules": rows}, **changes)  # type: ignore[arg-type]
    return replace(sample.divergent(), findings=(replace(finding, runs=(1, 2)),))


def test_known_cause_in_another_module_is_new() -> None:
    judged = _applied(_with_modules("1", "4"), _with_modules("1"))
    assert (judged.verdict, judged.exit_code) == ("divergent", 1)
    assert judged.warnings[0] == (
        "new since the baseline: norm/local-batch-stats (module 4) in ddp W=2, ddp W=4"
    )


@pytest.mark.parametrize(
    ("factor", "warning"),
    [
        (9.0, None),
        (
            11.0,
            "new since the baseline: loss/local-normalizer (excess 4e+13 became "
            "4.4e+14) in ddp W=2",
        ),
    ],
)
def test_known_cause_is_new_where_it_does_far_more(
    factor: float, warning: str | None
) -> None:
    known, now = sample.divergent(), sample.divergent()
    found = now.findings[0].runs[0]
    runs = [_times(r, factor) if i == found else r for i, r in enumerate(now.runs)]
    now = replace(now, runs=tuple(runs))
    judged = _applied(now, known)
    assert judged.exit_code == (1 if warning else 0)
    assert [w for w in judged.warnings if w.startswith("new")] == [warning] * bool(
        warning
    )


@pytest.mark.parametrize(
    ("where", "exit_code"),
    [("a/mymodel.py:9", 0), ("mymodel.py:12", 0), ("other.py:9", 1), (None, 0)],
    ids=["another-folder", "moved", "another-file", "unnamed"],
)
def test_known_cause_is_new_in_another_file_only(
    where: str | None, exit_code: int
) -> None:
    known = _with_modules("1", "4", where="mymodel.py:9")
    assert _applied(_with_modules("1", where=where), known).exit_code == exit_code


def test_known_cause_in_another_mode_is_new() -> None:
    known = _with_modules("1")
    runs = (*known.runs, replace(known.runs[1], mode="dp"))
    (finding,) = known.findings
    now = replace(known, runs=runs[1:], findings=(replace(finding, runs=(0, 1, 2)),))
    known = replace(
        known, runs=known.runs[1:], findings=(replace(finding, runs=(0, 1)),)
    )
    judged = _applied(now, known)
    assert judged.exit_code == 1
    assert judged.warnings[0] == (
        "new since the baseline: norm/local-batch-stats (the baseline has no such run) "
        "in dp W=2"
    )


def test_baseline_that_names_no_modules_knows_the_cause() -> None:
    known = _with_modules("1")
    (finding,) = known.findings
    plain = json.loads(
        report.to_json(replace(known, findings=(replace(finding, evidence={}),)))
    )
    del plain["findings"][0]["benign"]  # as older ones are
    old = report.from_json(json.dumps(plain))
    assert _applied(_with_modules("1", "4"), old).exit_code == 0


def test_divergence_without_a_finding_is_known_by_its_run() -> None:
    now = replace(sample.divergent(), findings=())
    assert _applied(now, now).exit_code == 0
    judged = _applied(now, sample.equivalent())
    assert judged.exit_code == 1
    new = "new since the baseline: ddp W=2, cause unknown, ddp W=4, cause unknown"
    assert judged.warnings[0] == new


FAULT = Fault(kind="raised", rank=1, step=0, summary="ValueError: 3 rows")
NAN = replace(
    sample.GRADIENTS_2[0], abs_diff=math.inf, excess=math.inf, why="NaN", ratio=None
)


def _worse(name: str, run: Run) -> Run:
    """Returns a run that is worse in one way, by its name."""
    nan = replace(run.gradients, tensors=(NAN, *run.gradients.tensors[1:]), worst=NAN)
    lost = replace(NAN, why=None, abs_diff=math.inf)
    buffer = replace(sample.BUFFERS[0], excess=12.0)
    return {
        "nan": replace(run, gradients=nan),
        "infinite-loss": replace(run, losses=sample.quantity((lost,), compared=3)),
        "a-rank-raises": replace(run, faults=(FAULT,)),
        "a-rank-hangs": replace(run, faults=(replace(FAULT, kind="hung"),)),
        "ranks-disagree": replace(run, ranks_agree=False),
        "another-tensor": replace(
            run, buffers=sample.quantity((buffer,), compared=12, mismatched=3)
        ),
    }[name]


WORSE = {
    "nan": "gradients of head.weight in step 1 is not finite, and was",
    "infinite-loss": "the loss in step 1 is not finite, and was",
    "a-rank-raises": "rank 1 raised: ValueError: 3 rows, which no rank did",
    "a-rank-hangs": "rank 1 hung: ValueError: 3 rows, which no rank did",
    "ranks-disagree": "the ranks disagree, and did not",
    "another-tensor": "buffers of norm.running_mean did not differ",
}


@pytest.mark.parametrize("name", WORSE)
def test_known_cause_in_a_run_that_is_worse_is_new(name: str) -> None:
    known = sample.divergent()
    runs = (*known.runs[:2], _worse(name, known.runs[2]))
    judged = _applied(replace(known, runs=runs), known)
    assert (judged.verdict, judged.exit_code) == ("divergent", 1)
    assert judged.warnings[0].startswith(
        f"new since the baseline: loss/local-normalizer ({WORSE[name]}"
    )
    assert judged.warnings[0].endswith(") in ddp W=4")
    assert [(f.runs, f.accepted is None) for f in judged.findings] == [
        ((2,), True),
        ((1,), False),
    ]


@pytest.mark.parametrize("name", WORSE)
def test_run_that_was_as_bad_is_known(name: str) -> None:
    known = sample.divergent()
    runs = (*known.runs[:2], _worse(name, known.runs[2]))
    known = replace(known, runs=runs)
    assert _applied(known, known).exit_code == 0


@pytest.mark.parametrize("name", WORSE)
def test_run_that_was_worse_and_is_better_is_known(name: str) -> None:
    now = sample.divergent()
    runs = (*now.runs[:2], _worse(name, now.runs[2]))
    assert _applied(now, replace(now, runs=runs)).exit_code == 0


@pytest.mark.parametrize("name", WORSE)
def test_divergence_without_a_finding_that_is_worse_is_new(name: str) -> None:
    known = replace(sample.divergent(), findings=())
    runs = (*known.runs[:2], _worse(name, known.runs[2]))
    judged = _applied(replace(known, runs=runs), known)
    assert judged.exit_code == 1
    assert judged.warnings[0].startswith(
        f"new since the baseline: ddp W=4, {WORSE[name]}"
    )


def test_another_exception_is_new_and_another_message_is_none() -> None:
    known = sample.divergent()

    def raising(summary: str) -> Report:
        run = replace(known.runs[2], faults=(replace(FAULT, summary=summary),))
        return replace(known, runs=(*known.runs[:2], run))

    then = raising("RuntimeError: tensor at 0x7f01")
    assert _applied(raising("RuntimeError: tensor at 0x7fab"), then).exit_code == 0
    assert _applied(raising("KeyError: 'x'"), then).exit_code == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "float32"},
        {"batch_norm": "sync"},
        {"loss": "mean"},
        {"reduce": "sum"},
        {"noise": "sample"},
        {"mode": "dp"},
        {"world_size": 8},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_run_of_other_settings_is_not_the_baselines(changes: dict[str, Any]) -> None:
    known = sample.divergent()
    runs = (*known.runs[:2], replace(known.runs[2], **changes))
    judged = _applied(replace(known, runs=runs), known)
    assert judged.exit_code == 1
    assert "the baseline has no such run" in judged.warnings[0]


def test_baseline_of_other_steps_knows_nothing() -> None:
    known = sample.divergent()
    longer = replace(known, target=replace(known.target, steps=30))
    judged = _applied(known, longer)
    assert judged.exit_code == 1
    assert "(the baseline has no such run with these settings)" in judged.warnings[0]


def test_growth_is_counted_in_the_tolerance_of_the_check() -> None:
    now = sample.divergent()
    runs = [replace(_times(run, 100.0), rtol=1e-11) for run in now.runs]
    strict = replace(now, runs=tuple(runs))  # the same differences, in finer units
    assert _applied(now, strict).exit_code == 0
    assert _applied(strict, now).exit_code == 0
    grown = replace(now, runs=tuple(_times(run, 20.0) for run in now.runs))
    judged = _applied(grown, strict)
    assert judged.exit_code == 1
    assert "(excess 4e+13 became 8.01e+14, " in judged.warnings[0]


def test_second_finding_of_a_known_run_is_new() -> None:
    known = sample.divergent()
    unknown = Finding(slug="unknown", link="loss", runs=(1,), summary="the cause is x")
    judged = _applied(replace(known, findings=(*known.findings, unknown)), known)
    assert judged.exit_code == 1
    assert judged.warnings[0] == "new since the baseline: unknown in ddp W=2"


def test_known_finding_of_one_run_is_not_known_in_another() -> None:
    known = sample.divergent()
    (first,) = known.findings
    then = (replace(first, runs=(1,)), replace(SECOND, runs=(2,)))
    judged = _applied(known, replace(known, findings=then))
    assert judged.exit_code == 1
    assert (
        judged.warnings[0] == "new since the baseline: loss/local-normalizer in ddp W=4"
    )


@pytest.mark.parametrize(
    "known", [sample.not_checked(), replace(sample.divergent(), runs=(), findings=())]
)
def test_baseline_that_checked_nothing_knows_nothing(known: Report) -> None:
    assert _applied(sample.divergent(), known).exit_code == 1


def test_accepted_findings_of_the_baseline_and_of_the_check_count_together() -> None:
    now = sample.divergent()
    both = (*now.findings, replace(SECOND, accepted="by design"))
    assert _applied(replace(now, findings=both), now).exit_code == 0
    then = replace(now, findings=(replace(now.findings[0], accepted="so"),))
    judged = _applied(now, then)
    assert [f.accepted for f in judged.findings] == ["in the baseline known.json"]


def test_replicas_that_fail_now_and_did_not_are_new() -> None:
    known = sample.divergent()
    broken = replace(
        known.runs[0], verdict="not-checked", why="cannot run", faults=(FAULT,)
    )
    judged = _applied(replace(known, runs=(broken, *known.runs[1:])), known)
    assert (judged.verdict, judged.exit_code) == ("divergent", 1)
    assert judged.runs[0].verdict == "divergent"
    assert judged.warnings[0] == (
        "new since the baseline: unknown (equivalent in the baseline) in dp W=2"
    )
    before = replace(known, runs=(broken, *known.runs[1:]))
    assert _applied(before, before).exit_code == 0


def test_run_that_could_not_be_checked_now_is_named() -> None:
    known = sample.divergent()
    lost = replace(known.runs[0], verdict="not-checked", why="no room on the GPU")
    judged = _applied(replace(known, runs=(lost, *known.runs[1:])), known)
    assert (judged.verdict, judged.exit_code) == ("not-checked", 3)
    assert judged.warnings[0] == "in the baseline, not checked now: dp W=2"


def test_what_is_gone_is_a_warning() -> None:
    now = replace(sample.divergent(), findings=(), exit_code=0, verdict="equivalent")
    now = replace(now, runs=(sample.equal_run(), sample.equal_run("ddp")))
    judged = _applied(now, sample.divergent())
    assert judged.exit_code == 0
    assert judged.warnings[:2] == (
        "gone since the baseline: loss/local-normalizer, the divergence of ddp W=2",
        "in the baseline, not run now: ddp W=4",
    )


def test_what_was_not_checked_never_passes() -> None:
    assert _applied(sample.not_checked(), sample.not_checked()).exit_code == 3


def test_another_target_is_refused() -> None:
    target = replace(sample.TARGET, name="other.py")
    with pytest.raises(UsageError, match=r"\[baseline-target\]"):
        _applied(sample.divergent(), replace(sample.divergent(), target=target))


@pytest.mark.parametrize(
    ("option", "slug"),
    [
        ("--json={}", "baseline-overwritten"),
        ("--sarif={}", "baseline-overwritten"),
        ("--report-dir={}", "output-path"),
        ("--json=-", "baseline-file"),
    ],
)
def test_wrong_baseline_is_reported_before_anything_runs(
    tmp_path: Path, option: str, slug: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, path = tmp_path / "mymodel.py", tmp_path / "known.json"
    target.touch()
    path.write_text("{}", encoding="utf-8")
    arguments = [str(target), f"--baseline={path}", option.format(path)]
    assert cli.main(arguments) == 2
    assert f"[{slug}]" in capsys.readouterr().err


def test_report_folder_of_the_target_holds_no_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mymodel.py"
    target.touch()
    path = tmp_path / "reports" / "mymodel" / "report.json"
    arguments = [str(target), f"--baseline={path}", f"--report-dir={path.parents[1]}"]
    assert cli.main(arguments) == 2
    printed = capsys.readouterr().err
    assert (
        "--report-dir would write over the baseline [baseline-overwritten]" in printed
    )


def test_command_fails_on_what_is_new_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = sample.divergent()
    known = replace(now, findings=(), runs=now.runs[:1])
    monkeypatch.setattr(checking, "check_file", lambda *_, **__: now)
    monkeypatch.chdir(tmp_path)
    Path("mymodel.py").touch()
    Path("same.json").write_text(report.to_json(now), encoding="utf-8")
    Path("less.json").write_text(report.to_json(known), encoding="utf-8")
    assert cli.main(["mymodel.py", "--baseline", "same.json", "--sarif", "a/b"]) == 0
    assert (
        "ACCEPTED: 2 of 3 runs differ only by accepted causes, "
        in capsys.readouterr().out
    )
    results = json.loads(Path("a/b").read_text("utf-8"))["runs"][0]["results"]
    assert [len(result["suppressions"]) for result in results] == [1]
    assert cli.main(["mymodel.py", "--baseline", "less.json", "--sarif", "-"]) == 1
    printed = capsys.readouterr()
    log = json.loads(printed.out)  # nothing else is there
    (note,) = [
        n["message"]["text"]
        for n in log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
        if "baseline" in n["message"]["text"]
    ]
    assert note == (
        "new since the baseline: loss/local-normalizer (the baseline has no such run) "
        "in ddp W=2, ddp W=4"
    )
    assert cli.main(["mymodel.py", "--json", "-", "--junit-xml", "-"]) == 2
    assert "two reports cannot share standard output" in capsys.readouterr().err


def test_baseline_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_text(report.to_json(sample.divergent()), encoding="utf-8")
    assert report.to_json(baseline.load(str(path))) == path.read_text("utf-8")
    path.write_text(json.dumps({"format": 2}), encoding="utf-8")
    with pytest.raises(UsageError, match="format 1, found 2"):
        baseline.load(str(path))


def test_advice_writes_over_no_file_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "notes.py"
    path.write_text("x = 1", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        baseline.load(str(path))
    assert "notes.py" not in caught.value.problem.fix
    other = replace(sample.divergent(), target=replace(sample.TARGET, name="other.py"))
    with pytest.raises(UsageError) as caught:
        baseline.apply(sample.divergent(), other, str(path))
    assert caught.value.problem.fix == (
        "ddpcheck mymodel.py --json mymodel-baseline.json"
    )
