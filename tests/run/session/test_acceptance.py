"""Which runs an accepted finding covers: nothing worse passes."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.report.data import Fault, Finding, Quantity, Report, Run
from ddpcheck.report.pages import pages
from ddpcheck.report.render import status
from ddpcheck.run.session import acceptance, assemble
from ddpcheck.run.spec import CUT_OFF
from tests.report.render import sample

SLUG = "loss/local-normalizer"
REASONS = {SLUG: "by design"}
FAULT = Fault(kind="raised", rank=1, step=0, summary="ValueError: 3 rows")
HUNG = Fault(kind="hung", rank=0, step=0, summary="waited for the others")
NAN = replace(
    sample.GRADIENTS_2[0], abs_diff=math.inf, excess=math.inf, why="NaN", ratio=None
)


def _report(*findings: Finding, **changes: Any) -> Report:
    """Returns a report whose last run of two divergent ones has these changes."""
    known = sample.divergent()
    run = replace(known.runs[2], **changes)
    return replace(known, runs=(*known.runs[:2], run), findings=findings)


def _finding(slug: str = SLUG, *runs: int, proven: bool = True) -> Finding:
    runs = runs or (1, 2)
    return Finding(
        slug=slug,
        link="loss",
        runs=runs,
        summary="s",
        proven_runs=runs if proven else (),
    )


def _accepted(report: Report, reasons: dict[str, str] = REASONS) -> Report:
    """Returns the report with findings marked and the verdict that follows."""
    marked = acceptance.accept(report.runs, report.findings, reasons)
    verdict = acceptance.verdict(report.runs, marked)
    return replace(report, findings=tuple(marked), verdict=verdict)


def _told(report: Report) -> list[tuple[str, tuple[int, ...], str | None]]:
    return [(f.slug, f.runs, f.accepted) for f in report.findings]


def test_finding_covers_the_runs_that_it_explains() -> None:
    told = _accepted(_report(_finding()))
    assert told.verdict == "equivalent"
    assert _told(told) == [(SLUG, (1, 2), "by design")]
    assert acceptance.unproven(told.runs, told.findings) == []


def test_benign_finding_covers_as_others_do() -> None:
    report = _report(replace(_finding(), benign=True))
    assert _accepted(report, {}).verdict == "divergent"
    assert _accepted(report).verdict == "equivalent"


WORSE: dict[str, tuple[dict[str, Any], str]] = {
    "nan": (
        {"gradients": sample.quantity((NAN,), compared=36, mismatched=17)},
        "gradients of head.weight in step 1 is not finite, which "
        "loss/local-normalizer does not cover",
    ),
    "infinite-loss": (
        {"losses": Quantity(compared=3, worst=replace(NAN, name="loss", why=None))},
        "the loss in step 1 is not finite, which loss/local-normalizer does not cover",
    ),
    "raised": (
        {"faults": (HUNG, FAULT)},
        "rank 1 raised: ValueError: 3 rows, which loss/local-normalizer does not cover",
    ),
    "hung": (
        {"faults": (HUNG,)},
        "rank 0 hung: waited for the others, which loss/local-normalizer does not "
        "cover",
    ),
}


@pytest.mark.parametrize("name", WORSE)
def test_run_that_is_worse_than_a_difference_is_not_covered(name: str) -> None:
    changes, why = WORSE[name]
    told = _accepted(_report(_finding(), **changes))
    assert told.verdict == "divergent"
    assert _told(told) == [(SLUG, (1,), "by design"), (SLUG, (2,), None)]
    assert told.findings[1].facts == (f"not accepted in ddp W=4: {why}",)
    assert [status.run_status(told, i) for i in (1, 2)] == ["accepted", "divergent"]


@pytest.mark.parametrize("name", WORSE)
def test_run_that_is_worse_alone_is_not_covered_by_itself(name: str) -> None:
    changes, _ = WORSE[name]
    told = _accepted(_report(_finding(SLUG, 2), **changes))
    assert told.findings[0].accepted is None  # as pytest's items have one run each


def test_ranks_that_disagree_are_covered_where_the_fix_ends_that() -> None:
    assert _accepted(_report(_finding(), ranks_agree=False)).verdict == "equivalent"
    told = _accepted(_report(_finding(proven=False), ranks_agree=False))
    assert told.verdict == "divergent"
    assert _told(told) == [(SLUG, (1,), "by design"), (SLUG, (2,), None)]
    assert told.findings[1].facts == (
        "not accepted in ddp W=4: the ranks disagree, and no run shows that they do so "
        "by this cause alone",
    )


@pytest.mark.parametrize(
    ("slug", "changes"),
    [("loss/empty-shard", WORSE["nan"][0]), ("sync/rank-raised", WORSE["raised"][0])],
)
def test_slug_that_is_about_it_covers_it(slug: str, changes: dict[str, Any]) -> None:
    report = _report(_finding(SLUG, 1), _finding(slug, 2), **changes)
    assert _accepted(report).verdict == "divergent"
    assert _accepted(report, {**REASONS, slug: "known"}).verdict == "equivalent"
    # In the reverse case, the run has a cause that is not accepted.
    assert _accepted(report, {slug: "known"}).verdict == "divergent"


def test_further_cause_of_a_run_is_not_covered() -> None:
    report = _report(_finding(), _finding("norm/local-batch-stats", 2))
    told = _accepted(report)
    assert told.verdict == "divergent"
    assert [status.run_status(told, i) for i in (1, 2)] == ["accepted", "divergent"]
    both = {**REASONS, "norm/local-batch-stats": "so"}
    assert _accepted(report, both).verdict == "equivalent"


def test_difference_that_stays_is_not_covered() -> None:
    left = Finding(
        slug="unknown", link="loss", runs=(2,), summary="the cause is unknown"
    )
    assert _accepted(_report(_finding(), left)).verdict == "divergent"


def test_run_without_a_finding_is_not_covered() -> None:
    assert _accepted(_report(_finding(SLUG, 1))).verdict == "divergent"


def test_finding_of_another_run_covers_nothing_here() -> None:
    report = _report(_finding(SLUG, 1), _finding("loss/sum-reduction", 2))
    assert _accepted(report).verdict == "divergent"


def test_tensor_that_is_missing_is_a_difference_and_not_a_number() -> None:
    row = replace(NAN, why="missing in the candidate")
    run = replace(sample.divergent_run(), gradients=Quantity(compared=1, worst=row))
    assert acceptance.not_finite(run) == ""
    count = replace(NAN, why=None, abs_diff=1.0)  # a number of batches, off by one
    run = replace(run, gradients=Quantity(compared=1, worst=count))
    assert acceptance.not_finite(run) == ""


def test_runs_that_pass_without_a_proof_are_told() -> None:
    told = _accepted(_report(_finding(proven=False)))
    assert told.verdict == "equivalent"
    assert acceptance.unproven(told.runs, told.findings) == [
        "accepted without a proof: loss/local-normalizer in ddp W=2, ddp W=4; no run "
        "with its fix shows that nothing else differs there"
    ]


def test_run_that_fails_is_no_run_that_passes_without_a_proof() -> None:
    left = Finding(slug="unknown", link="loss", runs=(2,), summary="s")
    told = _accepted(_report(_finding(proven=False), left))
    (warning,) = acceptance.unproven(told.runs, told.findings)
    assert warning.startswith(f"accepted without a proof: {SLUG} in ddp W=2; ")


def test_nothing_that_was_checked_is_no_pass() -> None:
    run = Run(mode="ddp", world_size=2, verdict="not-checked")
    assert acceptance.verdict([run], []) == "not-checked"


_OWN = Fault(
    kind="raised",
    rank=0,
    step=0,
    summary="TypeError: ours",
    stack='Traceback (most recent call last):\n  File "'
    + str(Path(assemble.__file__))
    + '", line 1, in to_run\n    x\nTypeError: ours\n',
)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"mode": "ddp", "why": f"{CUT_OFF} 4, which is no hang: "}, "not-checked"),
        ({"mode": "ddp", "why": "nothing was compared"}, "not-checked"),
        ({"mode": "ddp", "why": "ddpcheck itself failed on rank 1"}, "not-checked"),
        ({"mode": "dp", "why": f"{CUT_OFF} 4, which is no hang: "}, "not-checked"),
        ({"mode": "sim", "why": f"{CUT_OFF} 4, which is no hang: "}, "not-checked"),
        ({"mode": "dp", "why": "x", "faults": (_OWN,)}, "not-checked"),
        # What DistributedDataParallel decides.
        ({"mode": "dp", "why": "DataParallel: x", "faults": (FAULT,)}, "equivalent"),
        ({"mode": "sim", "why": "the target uses a collective"}, "equivalent"),
    ],
)
def test_run_that_was_not_judged_makes_no_pass_unless_other_modes_stand_for_it(
    changes: dict[str, Any], verdict: str
) -> None:
    equal = Run(mode="ddp", world_size=2, verdict="equivalent")
    left = Run(world_size=4, verdict="not-checked", **changes)
    assert acceptance.verdict([equal, left], []) == verdict
    differs = replace(sample.divergent_run(), mode="ddp")
    known = replace(_finding(SLUG, 0), accepted="by design")
    assert acceptance.verdict([differs, left], [known]) == verdict
    assert acceptance.verdict([differs, left], []) == "divergent"


@pytest.mark.parametrize(("times", "code"), [(9.0, "equivalent"), (11.0, "divergent")])
def test_run_without_a_proof_that_differs_by_far_more_is_not_covered(
    times: float, code: str
) -> None:
    first = sample.divergent_run()
    worst = first.gradients.worst
    assert worst is not None
    large = replace(worst, excess=times * assemble.worst_excess(first))
    gradients = replace(first.gradients, worst=large)
    runs = [first, replace(first, mode="sim", world_size=256, gradients=gradients)]
    finding = replace(_finding(SLUG, 0, 1), proven_runs=(0,))
    marked = acceptance.accept(runs, [finding], REASONS)
    assert acceptance.verdict(runs, marked) == code
    if code == "divergent":
        assert [(f.runs, f.accepted) for f in marked] == [
            ((0,), "by design"),
            ((1,), None),
        ]
        assert re.search(
            r"not accepted in sim W=256: excess \S+, where the runs that are shown to "
            rf"differ by {SLUG} alone have \S+$",
            marked[1].facts[-1],
        )


def test_acceptance_says_which_runs_it_leaves_out_and_why() -> None:
    changes, why = WORSE["raised"]
    told = _accepted(_report(_finding(), **changes))
    assert acceptance.idle(told.runs, told.findings, REASONS) == [
        f"accept: {SLUG} is not accepted in ddp W=4: {why}"
    ]
    whole = _accepted(_report(_finding()))
    assert acceptance.idle(whole.runs, whole.findings, REASONS) == []


def test_acceptance_of_another_slug_says_what_was_found() -> None:
    told = _accepted(_report(_finding("loss/empty-shard", 1, 2)))
    assert acceptance.idle(told.runs, told.findings, REASONS) == [
        f"accept: {SLUG} was accepted but not found: what differs is loss/empty-shard "
        "in ddp W=2, ddp W=4"
    ]


def test_slugs_that_cover_more_are_those_of_rules() -> None:
    listed = (*acceptance.ABOUT_FAILED_RANKS, *acceptance.ABOUT_NOT_FINITE)
    assert set(listed) <= set(pages.rule_slugs())
    assert list(acceptance.ABOUT_FAILED_RANKS) == sorted(acceptance.ABOUT_FAILED_RANKS)


def test_page_lists_the_slugs_that_cover_more() -> None:
    text = pages.page("accept")
    told = text.partition("Causes of failing ranks: ")[2]
    assert told.replace("\n", " ").split(", ") == list(acceptance.ABOUT_FAILED_RANKS)
    (slug,) = acceptance.ABOUT_NOT_FINITE
    assert f"only with {slug}" in text
