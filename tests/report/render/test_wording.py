"""The shared sentences: counts in every verdict, an honest proof."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from ddpcheck.report.data import Control, Fault, Fix, Quantity, Run, to_json
from ddpcheck.report.render import divergence, html, junit, status, terminal, wording

from . import sample


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("divergent", "DIVERGENT: 2 of 3 runs, 60 of 216 comparisons differ"),
        ("equivalent", "EQUIVALENT: 12 of 12 runs, 504 comparisons equal"),
        ("not-checked", "NOT CHECKED: nothing was compared"),
        ("nothing-compared", "NOT CHECKED: nothing was compared"),
        ("without-runs", "NOT CHECKED: nothing was compared"),
        (
            "accepted",
            (
                "ACCEPTED: 1 of 2 runs differs only by accepted causes, "
                "30 of 129 comparisons differ, 1 accepted"
            ),
        ),
        (
            "hostile",
            (
                "DIVERGENT: 1 of 10 runs, 15 of 347 comparisons differ, "
                "2 not checked, 1 accepted"
            ),
        ),
    ],
)
def test_verdict_line_counts(name: str, line: str) -> None:
    assert wording.verdict_line(sample.ALL[name]) == line


def test_verdict_line_shows_what_differs_and_is_not_judged() -> None:
    report = sample.equivalent()
    losses = replace(report.runs[0].losses, compared=3, mismatched=2)
    runs = (replace(report.runs[0], losses=losses), *report.runs[1:])
    assert wording.verdict_line(replace(report, runs=runs)) == (
        "EQUIVALENT: 12 of 12 runs, 505 comparisons equal, "
        "2 of loss or outputs differ (not judged)"
    )


def test_verdict_of_ranks_that_failed_at_once_shows_that_one_process_trains() -> None:
    run = replace(sample.not_checked().runs[0], verdict="divergent")
    report = replace(sample.divergent(), runs=(run,))
    assert wording.verdict_line(report) == "DIVERGENT: 1 of 1 run failed on ranks"
    assert wording.verdict_sentence(report) == (
        "Single-process training works, but ranks failed in 1 of 1 run before "
        "anything was "
        "compared."
    )
    case = ET.fromstring(junit.to_junit(report)).find(".//failure")
    assert case is not None
    assert case.get("message", "").startswith("failed on ranks: ")


def test_verdict_of_ranks_that_failed_among_equal_runs_counts_both() -> None:
    failed = replace(sample.not_checked().runs[0], verdict="divergent")
    runs = (sample.equivalent().runs[0], failed)
    report = replace(sample.divergent(), runs=runs)
    assert wording.verdict_line(report) == (
        "DIVERGENT: 1 of 2 runs failed on ranks, 42 comparisons equal"
    )
    assert wording.verdict_sentence(report) == (
        "Single-process training works, but ranks failed in 1 of 2 runs, with 0 of "
        "42 tensor "
        "comparisons above tolerance."
    )


def test_verdict_of_ranks_that_differ_from_each_other_alone_shows_it() -> None:
    run = replace(sample.not_checked().runs[0], verdict="divergent", faults=())
    report = replace(sample.divergent(), runs=(run,))
    assert wording.verdict_line(report) == (
        "DIVERGENT: 1 of 1 run, ranks differ from each other"
    )


@pytest.mark.parametrize(
    ("fix", "controls", "text"),
    [
        (None, (), "no fix is known"),
        (Fix(text="x"), (1e3,), "not confirmed: nothing was run"),
        (
            Fix(text="x", excess_before=0.3),
            (),
            "not confirmed: the fix of another cause removes it, too",
        ),
        (Fix(text="x", verified=True), (), "confirmed by intervention"),
        (
            Fix(
                text="x",
                verified=True,
                proof="file",
                file="fixed.py",
                intervention="with fixed.py the runs are equal",
                excess_before=4e13,
                excess_after=0.02,
            ),
            (),
            (
                "verified: with fixed.py the runs are equal (excess 4e+13 before, 0.02 "
                "after)"
            ),
        ),
        (
            Fix(
                text="x",
                verified=True,
                proof="intervention",
                intervention="with x the runs are equal",
                excess_before=4e13,
                excess_after=0.02,
            ),
            (1.04e13, 2e13),
            (
                "confirmed by intervention: with x the runs are equal (excess 4e+13 "
                "before, 0.02 after); tried instead, the fixes of 2 other causes "
                "leave 1.04e+13 or more"
            ),
        ),
        (
            Fix(
                text="x",
                verified=True,
                proof="located",
                intervention="with x the runs are equal",
                excess_before=4e13,
                excess_after=0.02,
            ),
            (),
            (
                "located, no fix proven: with x the runs are equal (excess 4e+13 "
                "before, 0.02 after)"
            ),
        ),
        (
            Fix(
                text="x",
                verified=False,
                intervention="with x the runs still differ",
                excess_before=4e13,
                excess_after=1.001,
            ),
            (),
            (
                "the fix did not remove it: with x the runs still differ (excess "
                "4e+13 before, >1 after)"
            ),
        ),
        (
            Fix(text="x", verified=True, excess_before=4e13, excess_after=0.02),
            (1.04e13, 2e13),
            (
                "confirmed by intervention: excess 4e+13 before, 0.02 after; "
                "tried instead, the fixes of 2 other causes leave 1.04e+13 or more"
            ),
        ),
        (
            Fix(text="x", verified=False, excess_before=4e13, excess_after=1.001),
            (float("nan"),),
            (
                "the fix did not remove it: excess 4e+13 before, >1 after; "
                "tried instead, the fix of another cause leaves nan"
            ),
        ),
        (
            Fix(text="x", verified=True, excess_before=7.0, excess_after=0.0),
            (0.5, 3.0),
            (
                "confirmed by intervention: excess 7 before, 0 after; tried "
                "instead, the fix of c0 removes it, too, the fix of another cause "
                "leaves 3"
            ),
        ),
    ],
    ids=[
        "no-fix",
        "not-run",
        "covered",
        "no-numbers",
        "file",
        "intervention",
        "located",
        "refuted",
        "earlier-version",
        "earlier-version-refuted",
        "two-remove-it",
    ],
)
def test_proof(fix: Fix | None, controls: tuple[float, ...], text: str) -> None:
    found = tuple(
        Control(slug=f"c{i}", excess_after=value) for i, value in enumerate(controls)
    )
    finding = replace(sample.local_normalizer(), fix=fix, controls=found)
    assert wording.proof(finding) == text


def test_run_status_of_a_run_with_one_finding_left_is_divergent() -> None:
    accepted = sample.accepted()
    assert status.run_status(accepted, 1) == "accepted"
    both = (*accepted.findings, replace(sample.local_normalizer(), runs=(1,)))
    assert status.run_status(replace(accepted, findings=both), 1) == "divergent"


def test_first_is_the_earliest_and_worst_the_largest() -> None:
    first, worst = (f(sample.divergent()) for f in (divergence.first, divergence.worst))
    assert first is not None
    assert (first.run, first.kind, first.step) == (1, "losses", 0)
    assert worst is not None
    assert (worst.run, worst.kind, worst.step) == (2, "gradients", 0)


def test_first_without_its_row_still_knows_the_step() -> None:
    late = replace(sample.GRADIENTS_2[0], step=2)
    run = replace(
        sample.divergent_run(),
        losses=sample.quantity(sample.BUFFERS, compared=3),
        weights=sample.quantity(sample.BUFFERS, compared=3),
        gradients=sample.quantity(
            (late,), compared=3, mismatched=2, by_step=(0.5, 7.0, 9.0)
        ),
    )
    found = divergence.first(replace(sample.divergent(), runs=(run,)))
    assert found is not None
    assert (found.step, found.difference) == (1, None)


@pytest.mark.parametrize("excess", [float("nan"), float("inf"), 1.0000001])
def test_differs_above_one_and_for_nan(excess: float) -> None:
    assert divergence.differs(replace(sample.BUFFERS[0], excess=excess))
    assert not divergence.differs(replace(sample.BUFFERS[0], excess=1.0))


def test_noise_that_is_all_there_is_weakens_the_verdict() -> None:
    (known,) = sample.divergent().findings
    assert known.fix is not None
    noise = replace(known, benign=True)
    proven = replace(sample.divergent(), findings=(noise,))
    assert wording.verdict_line(proven).endswith(" differ, only in random numbers")
    assert wording.verdict_sentence(proven).endswith(
        " above tolerance. Only random numbers differ: with the same random numbers "
        "for the same samples the runs are equal."
    )
    unproven = replace(noise, fix=replace(known.fix, verified=False))
    for findings in ((noise, known), (unproven,)):
        report = replace(proven, findings=findings)
        assert "random numbers" not in wording.verdict_line(report)
        assert "random numbers" not in wording.verdict_sentence(report)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "accepted",
            (
                "Data-parallel training differs from single-process training only by "
                "accepted causes in 1 of 2 runs, with 30 of 129 tensor comparisons "
                "above tolerance. 1 finding is accepted."
            ),
        ),
        (
            "hostile",
            (
                "Data-parallel training differs from single-process training in 1 "
                "of 10 runs, with "
                "15 of 347 tensor comparisons above tolerance. 1 finding is accepted. "
                "2 runs were not checked."
            ),
        ),
    ],
)
def test_verdict_sentence_states_its_reservations(name: str, sentence: str) -> None:
    assert wording.verdict_sentence(sample.ALL[name]) == sentence


def test_worst_is_of_what_is_judged() -> None:
    losses = replace(sample.LOSSES_2[0], excess=1e30)
    run = replace(
        sample.divergent_run(),
        losses=sample.quantity((losses,), compared=3, mismatched=3),
    )
    report = replace(sample.divergent(), runs=(run,))
    worst, of_run = divergence.worst(report), divergence.worst_of_run(report, 0)
    assert worst is not None
    assert of_run is not None
    assert (worst.kind, worst.difference) == ("gradients", of_run)
    assert of_run.name == "head.weight"
    equal = replace(
        sample.equal_run(), losses=sample.quantity((losses,), compared=3, mismatched=3)
    )
    assert divergence.worst(replace(report, runs=(equal,))) is None


def test_fault_line_begins_with_the_message_of_gloo() -> None:
    error = "RuntimeError: [/__w/gloo/tcp/pair.cc:537] Connection closed by peer"
    fault = Fault(kind="raised", rank=0, step=0, summary=error)
    assert wording.fault_line(fault) == (
        "rank 0 raised at step 1: RuntimeError: Connection closed by peer"
    )


def test_reduction_of_a_parameter_server_is_in_every_report() -> None:
    runs = (
        sample.equal_run("ddp"),
        sample.equal_run("ps", reduce="mean"),
        sample.equal_run("ps", reduce="sum"),
    )
    report = replace(sample.equivalent(), runs=runs)
    labels = ("ddp W=2", "ps W=2 reduce=mean", "ps W=2 reduce=sum")
    assert wording.run_labels(report) == labels
    lines = terminal.to_text(report, color=False, width=100).splitlines()
    begins = [line.split()[:3] for line in lines if line.startswith("  ps ")]
    assert begins == [["ps", "2", "mean"], ["ps", "2", "sum"]]
    assert '<span class="note">reduce=sum</span>' in html.to_html(report)
    reductions = [run["reduce"] for run in json.loads(to_json(report))["runs"]]
    assert reductions == ["", "mean", "sum"]


def test_verdict_on_a_script_that_was_resumed_names_the_run_that_went_on() -> None:
    run = Run(
        mode="resume",
        world_size=2,
        verdict="divergent",
        weights=Quantity(compared=24, mismatched=18),
    )
    made = replace(sample.divergent(), runs=(run,), findings=())
    assert wording.reference(made) == "the same ranks, not stopped"
    assert wording.verdict_sentence(made) == (
        "Training that was resumed differs from training that went on in 1 of 1 run, "
        "with 18 of 24 tensor comparisons above tolerance."
    )
