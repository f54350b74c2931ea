"""What a proposal's fix shows: what ran, how it ended, and code only where it fits."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpcheck.diagnose.proposal import BY_DDP, Proposal, fix_of
from ddpcheck.run.intervention import (
    GlobalLoss,
    Interventions,
    ScaleLoss,
    Substitute,
    Switch,
)

STATE = Substitute(boundary="state", names=("a",))


def _fix(proposal: Proposal, *, verified: bool | None = True) -> tuple[str | None, str]:
    fix = fix_of(proposal, verified=verified, before=7.0, after=0.5)
    return fix.proof, fix.code


def _proposal(**changes: Any) -> Proposal:
    given = {"slug": "a/b", "link": "loss", "summary": "s", "facts": (), "fix": "f"}
    return Proposal(**{**given, "code": "c", **changes})


def test_code_that_does_as_what_ran_is_shown() -> None:
    assert _fix(_proposal(fixes=(ScaleLoss(factor=2.0),))) == ("intervention", "c")


@pytest.mark.parametrize(
    "fixes",
    [
        (Substitute(boundary="gradients"),),
        (GlobalLoss(),),
        (ScaleLoss(factor=2.0), STATE),
    ],
)
def test_what_mends_almost_anything_locates_and_shows_no_code(
    fixes: Interventions,
) -> None:
    assert _fix(_proposal(fixes=fixes)) == ("located", "")


def test_gathering_is_a_fix_where_the_fix_is_to_gather() -> None:
    gathers = _proposal(fixes=(GlobalLoss(),), gathers=True)
    assert _fix(gathers) == ("intervention", "c")
    besides = _proposal(fixes=(GlobalLoss(), STATE), gathers=True)
    assert _fix(besides) == ("located", "")


def test_code_is_shown_without_such_a_run_where_evidence_is_named() -> None:
    for proposal, verified in (
        (_proposal(fixes=(GlobalLoss(),)), True),
        (_proposal(by_hand=True), True),
        (_proposal(fixes=(ScaleLoss(factor=2.0),)), None),
        (_proposal(fixes=(ScaleLoss(factor=2.0),)), False),
    ):
        assert _fix(proposal, verified=verified)[1] == ""
        seen = dataclasses.replace(proposal, code_rests_on="what the rule has seen")
        assert _fix(seen, verified=verified)[1] == "c"


@pytest.mark.parametrize(
    ("verified", "is_alone", "said"),
    [
        (True, True, "with nothing compiled the runs are equal"),
        (
            True,
            False,
            (
                "with nothing compiled, together with the fixes of the other "
                "causes, the runs are equal"
            ),
        ),
        (False, True, "with nothing compiled the runs still differ"),
        (None, True, ""),
    ],
)
def test_sentence_says_how_the_run_ended(
    verified: bool | None,  # noqa: FBT001
    is_alone: bool,  # noqa: FBT001
    said: str,
) -> None:
    proposal = _proposal(fixes=(Switch.COMPILE_OFF,))
    fix = fix_of(proposal, verified=verified, before=7.0, after=0.5, is_alone=is_alone)
    assert fix.intervention == said


def test_fix_without_an_intervention_is_to_use_ddp() -> None:
    fix = fix_of(_proposal(), verified=True, before=7.0, after=0.5)
    assert (fix.proof, fix.intervention) == ("intervention", BY_DDP)
