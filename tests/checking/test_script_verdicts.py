"""The three verdicts of a script, and reports of several world sizes as one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.checking import baseline, script_verdicts, scripts
from ddpcheck.report.data import (
    Evidence,
    Finding,
    NotCompared,
    Quantity,
    Report,
    Row,
    Run,
)
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target import script as target_scripts
from ddpcheck.target.options import Options
from tests.report.render import sample

EQUAL = Quantity(compared=3, excess_by_step=(0.1, 0.1, 0.1))


def _off(*by_step: float) -> Quantity:
    return Quantity(compared=3, mismatched=1, excess_by_step=by_step)


def _run(gradients: Quantity, weights: Quantity, buffers: Quantity = EQUAL) -> Run:
    return Run(
        mode="ddp",
        world_size=2,
        verdict="divergent",
        gradients=gradients,
        weights=weights,
        buffers=buffers,
    )


def _verdicts(run: Run | None, link: str = "loss") -> list[str]:
    finding = Finding(slug="unknown", link=link, runs=(0,), summary="")
    return [p.verdict for p in script_verdicts.parts(run, [finding], [], [], 2)]


@pytest.mark.parametrize(
    ("run", "link", "verdicts"),
    [
        (_run(EQUAL, EQUAL), "loss", ["equivalent", "equivalent"]),
        (_run(_off(9, 9, 9), _off(9, 9, 9)), "loss", ["divergent", "not-checked"]),
        (_run(_off(9, 9, 9), EQUAL), "loss", ["divergent", "not-checked"]),
        (_run(_off(9, 9, 9), _off(9, 9, 9)), "update", ["divergent", "divergent"]),
        # A wrong update is seen in the gradients of the next step.
        (_run(_off(0, 9, 9), _off(9, 9, 9)), "loss", ["equivalent", "divergent"]),
        (_run(EQUAL, EQUAL, _off(9, 9, 9)), "loss", ["equivalent", "divergent"]),
        (None, "loss", ["not-checked", "not-checked"]),
        (
            replace(_run(EQUAL, EQUAL), verdict="not-checked", why="it hangs"),
            "loss",
            ["not-checked", "not-checked"],
        ),
        (
            replace(_run(EQUAL, EQUAL), ranks_agree=False),
            "loss",
            ["equivalent", "divergent"],
        ),
    ],
)
def test_verdict_is_that_of_what_differs_first(
    run: Run | None, link: str, verdicts: list[str]
) -> None:
    assert _verdicts(run, link)[:2] == verdicts


def test_data_without_a_whole_pass_have_no_verdict() -> None:
    left = NotCompared(what="the samples of a pass of the loader", why="no pass ended")
    order = NotCompared(what="the order over passes of the loader", why="one pass")
    run = _run(EQUAL, EQUAL)
    *_, data = script_verdicts.parts(run, [], [], [left, order], 2)
    assert (data.verdict, data.why) == ("not-checked", "no pass ended")
    *_, data = script_verdicts.parts(run, [], [], [order], 2)
    assert data.verdict == "equivalent"


def _at(report: Report, size: int) -> Report:
    """Returns the report with the runs of one world size alone."""
    indices = [i for i, run in enumerate(report.runs) if run.world_size == size]
    return replace(
        report,
        runs=tuple(report.runs[i] for i in indices),
        findings=tuple(replace(f, runs=(1,)) for f in report.findings),
        facts=tuple(row for row in report.facts if row.world_size == size),
        parts=tuple(part for part in report.parts if part.world_size == size),
    )


def test_one_cause_at_two_world_sizes_is_one_finding() -> None:
    report = sample.script()
    merged = script_verdicts.merged([_at(report, 2), _at(report, 4)])
    assert merged == replace(report, seconds=merged.seconds)


def test_cause_with_other_numbers_is_one_finding_that_has_both() -> None:
    two, four = _at(sample.script(), 2), _at(sample.script(), 4)
    summary = "the gradient is 1/{} of the single-process one"
    two, four = (
        replace(
            report,
            findings=(
                replace(
                    report.findings[0],
                    summary=summary.format(size),
                    facts=(f"the factor is 0.{size}", *more),
                ),
            ),
        )
        for report, size, more in ((two, 2, ()), (four, 4, ("another fact",)))
    )
    (found,) = script_verdicts.merged([two, four]).findings
    assert found.summary == summary.format(2)
    assert found.facts == (
        "the factor is 0.2",
        f"at W=4: {summary.format(4)}",
        "another fact",
    )
    assert found.runs == (1, 3)


def test_another_cause_at_the_second_world_size_is_a_finding_of_its_own() -> None:
    two, four = _at(sample.script(), 2), _at(sample.script(), 4)
    other = replace(four.findings[0], slug="data/lost-samples")
    merged = script_verdicts.merged([two, replace(four, findings=(other,))])
    assert [(f.slug, f.runs) for f in merged.findings] == [
        ("data/shard-overlap", (1,)),
        ("data/lost-samples", (3,)),
    ]


def test_world_size_that_alone_diverges_gives_verdict_and_reproduce() -> None:
    four = _at(sample.script(), 4)
    two = replace(_at(sample.script(), 2), verdict="equivalent", exit_code=0)
    two = replace(two, findings=(), reproduce="", runs=two.runs[:1])
    merged = script_verdicts.merged([two, four])
    assert (merged.verdict, merged.exit_code) == ("divergent", 1)
    assert merged.reproduce == four.reproduce
    assert merged.findings[0].runs == (2,)


def _with(report: Report, **changes: object) -> Report:
    evidence = Evidence(**{**report.findings[0].evidence, **changes})  # type: ignore[typeddict-item]
    return replace(report, findings=(replace(report.findings[0], evidence=evidence),))


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (_with(sample.script(), repeated=30), ""),
        (_with(sample.script(), repeated=90), "25.0% of the samples became 93.8%"),
        (_with(sample.script(), loader=1), "loader 1"),
        (
            replace(
                sample.script(),
                runs=tuple(
                    replace(run, world_size=2 * run.world_size)
                    for run in sample.script().runs
                ),
            ),
            "the baseline has no such run",
        ),
        (
            replace(
                sample.script(),
                findings=(
                    *sample.script().findings,
                    replace(sample.script().findings[0], slug="data/lost-samples"),
                ),
            ),
            "data/lost-samples in data W=2, data W=4",
        ),
    ],
)
def test_finding_on_data_in_the_baseline_covers_no_other_and_no_larger_one(
    now: Report, why: str
) -> None:
    judged = baseline.apply(now, sample.script(), "known.json")
    assert judged.exit_code == (1 if why else 0)
    assert any(why in warning for warning in judged.warnings) or not why


RATES = Finding(
    slug="sync/control-desync",
    link="update",
    runs=(0,),
    proven_runs=(0,),
    summary="every rank updates its weights with other numbers",
    facts=("lr at the update of step 1: 0.2, 0.2 on the ranks",),
)


def _row(what: str, single: float, ranks: float) -> Row:
    return Row(what=what, single=single, ranks=ranks, world_size=2, effect="")


def _accepted(finding: Finding, run: Run, *rows: Row) -> bool:
    (found,) = script_verdicts.scaled([finding], [run], rows)
    return found.accepted is not None


@pytest.mark.parametrize("rate", [0.2, 0.1 * 2**0.5])
def test_rate_that_is_scaled_as_the_samples_of_an_update_is_accepted(
    rate: float,
) -> None:
    rows = _row("learning rate", 0.1, rate), _row("samples of an update", 8, 16)
    run = _run(EQUAL, _off(0.1, 9.0, 9.0))
    assert _accepted(RATES, run, *rows)
    assert not _accepted(replace(RATES, proven_runs=()), run, *rows)
    assert not _accepted(RATES, replace(run, ranks_agree=False), *rows)
    other = replace(RATES, facts=("weight_decay at the update of step 1: 2, 2",))
    assert not _accepted(other, run, *rows)


def test_rate_that_is_scaled_otherwise_than_the_samples_is_not_accepted() -> None:
    run = _run(EQUAL, _off(0.1, 9.0, 9.0))
    samples = _row("samples of an update", 8, 16)
    rate = _row("learning rate after update 1", 0.1, 0.2)
    later = _row("learning rate after update 9", 0.1, 0.05)
    assert not _accepted(RATES, run, rate, later, samples)
    assert not _accepted(RATES, run, rate, _row("samples of an update", 16, 16))
    assert not _accepted(RATES, run, rate)


def test_number_of_a_schedule_that_follows_the_passes_is_accepted() -> None:
    run = _run(EQUAL, _off(0.1, 9.0, 9.0))
    other = replace(RATES, facts=("when the step has all samples, they are equal",))
    unproven = replace(RATES, proven_runs=())
    noise = replace(RATES, slug="rng/stochastic-layer")
    found = script_verdicts.of_passes([RATES, other, unproven, noise], [run])
    assert [one.accepted is not None for one in found] == [True, False, False, False]
    (alone,) = script_verdicts.of_passes([RATES], [replace(run, ranks_agree=False)])
    assert alone.accepted is None


@pytest.mark.parametrize(
    ("rows", "is_accepted"),
    [
        ((), True),
        ((_row("samples of an update", 8, 16),), True),
        ((_row("samples of an update", 16, 16),), False),
    ],
)
def test_schedule_of_passes_is_accepted_where_updates_have_more_samples(
    rows: tuple[Row, ...],
    is_accepted: bool,  # noqa: FBT001
) -> None:
    run = _run(EQUAL, _off(0.1, 9.0, 9.0))
    (found,) = script_verdicts.sound([RATES], [run], rows, by_passes=True)
    assert (found.accepted is not None) == is_accepted


NOISE = Finding(
    slug="rng/stochastic-layer",
    link="forward",
    runs=(0,),
    proven_runs=(0,),
    summary="the model draws random numbers",
    benign=True,
)


def test_noise_of_each_ranks_own_is_accepted_where_nothing_else_differs() -> None:
    run = _run(_off(0.1, 9.0, 9.0), EQUAL)
    (found,) = script_verdicts.with_own_noise([NOISE], [run])
    assert found.accepted == (
        "each rank draws its own noise, and without that the runs are equal"
    )
    same = replace(NOISE, slug="rng/same-stream-all-ranks", benign=False)
    for finding, other in (
        (replace(NOISE, proven_runs=()), run),
        (replace(NOISE, benign=False), run),
        (same, run),
        (NOISE, replace(run, ranks_agree=False)),
    ):
        (found,) = script_verdicts.with_own_noise([finding], [other])
        assert found.accepted is None


@pytest.mark.parametrize(
    ("first", "verdict", "code"),
    [(sample.divergent(), "divergent", 1), (sample.equivalent(), "not-checked", 3)],
    ids=["divergent", "equivalent"],
)
def test_world_size_that_cannot_be_checked_leaves_the_report_of_the_others(
    first: Report,
    verdict: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def check(*given: Any) -> Report:
        if given[2] == 16:
            raise CannotCheckError("train.py hangs as a single process", "stack")
        return first

    monkeypatch.setattr(scripts, "_check", check)
    pool = contextlib.nullcontext()
    monkeypatch.setattr(scripts, "_opened", lambda *_: pool)
    (tmp_path / "train.py").touch()
    script = target_scripts.parsed([str(tmp_path / "train.py")])
    report = scripts.check_script(script, Options(world_sizes=(2, 16, 32)))
    assert (report.verdict, report.exit_code) == (verdict, code)
    assert report.runs == first.runs
    ended = "train.py hangs as a single process at world size 16"
    assert report.ended == ended
    assert [(n.what, n.why) for n in report.not_compared[-2:]] == [
        ("world size 16", ended),
        ("world size 32", ended),
    ]
