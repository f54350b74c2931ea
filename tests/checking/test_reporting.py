"""What is accepted, and what is said of an acceptance that matches nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpcheck.checking import plan, reporting
from ddpcheck.report.data import Finding, Run
from ddpcheck.run.spec import ReferenceResult

RUN = Run(mode="ddp", world_size=2, verdict="divergent")
FOUND = Finding(
    slug="loss/sum-reduction", link="loss", runs=(0,), proven_runs=(0,), summary="s"
)


def test_accepted_finding_has_the_reason() -> None:
    reasons = {"loss/sum-reduction": "by design"}
    marked, warnings = reporting.accept([RUN], [FOUND], reasons)
    assert [f.accepted for f in marked] == ["by design"]
    assert warnings == []


def test_acceptance_without_a_proof_is_a_warning() -> None:
    found = dataclasses.replace(FOUND, proven_runs=())
    reasons = {"loss/sum-reduction": "by design"}
    marked, warnings = reporting.accept([RUN], [found], reasons)
    assert [f.accepted for f in marked] == ["by design"]
    assert warnings == [
        "accepted without a proof: loss/sum-reduction in ddp W=2; no run with its fix "
        "shows that nothing else differs there"
    ]


def test_acceptance_of_what_is_not_found_is_a_warning() -> None:
    marked, warnings = reporting.accept([RUN], [FOUND], {"loss/batch-coupled": "why"})
    assert [f.accepted for f in marked] == [None]
    assert warnings == ["accept: loss/batch-coupled was accepted but not found"]


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        ({}, True),
        ({"nothing": "the single-process run changes no weight in 3 steps"}, False),
        ({"never_updates": True}, False),
    ],
    ids=["trains", "stands-still", "never-updates"],
)
def test_idle_parameters_are_no_warning_where_nothing_is_judged(
    facts: dict[str, Any], *, warned: bool
) -> None:
    idle = {"idle": ["bias"], "unused": ["bias"], "has_wrap": False}
    base = ReferenceResult(facts={**idle, **facts})
    found = reporting.warnings_of(base, plan.Plan(), [])
    assert [w.startswith("1 parameters get no gradient") for w in found] == (
        [True] * warned
    )
