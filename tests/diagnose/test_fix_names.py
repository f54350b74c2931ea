"""Interventions that rules name are on the list, and each has its words."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddpcheck.diagnose
from ddpcheck.diagnose.proposal import BY_DDP, Proposal, fix_of
from ddpcheck.run import fix_names
from ddpcheck.run.interventions import apply

FOLDER = Path(ddpcheck.diagnose.__file__).parent
NAME = re.compile(r"[a-z_]+\.[a-z_0-9]+")


def _listed() -> set[str]:
    lines = (apply.__doc__ or "").splitlines()
    heads = (line.strip().partition("  ")[0] for line in lines if line[4:5].strip())
    return set(NAME.findall("\n".join(heads)))


def _used() -> Iterator[str]:
    """Yields the names in what rules give as `fixes` or `control`."""
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in ("fixes", "control"):
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value.partition(":")[0]


def test_every_intervention_of_a_rule_is_listed() -> None:
    used = {name for name in _used() if NAME.fullmatch(name)}
    assert len(used) > 30
    assert used - _listed() == set()


def test_every_intervention_that_is_listed_has_its_words_and_no_other() -> None:
    assert set(fix_names.SAID) == _listed()


@pytest.mark.parametrize("name", fix_names.SAID)
def test_words_of_an_intervention_follow_with_and_hold_no_name_of_ours(
    name: str,
) -> None:
    said = fix_names.describe([f"{name}:2.0|a,b" if "scale" in name else name])
    assert said
    assert said == said.strip(" .")
    assert not {"{", "}", "|", ":"} & set(said)
    assert name not in said


@pytest.mark.parametrize(
    ("fixes", "said"),
    [
        (("loss.scale:2.0",), "the gradient of the loss multiplied by 2"),
        (
            ("gradients.scale:0.5",),
            "the gradients of all parameters multiplied by 0.5",
        ),
        (
            ("gradients.scale:0.125|a.weight,a.bias",),
            "the gradients of a.weight, a.bias multiplied by 0.125",
        ),
        (("module.global:",), "the samples of all ranks given to the model"),
        (
            ("batch_norm.sync", "module.global:a", "module.global:b"),
            (
                "torch's batch norms synchronised over ranks and the samples of all "
                "ranks given to a, b"
            ),
        ),
        (
            ("gradients.averaged:a,b,c,d,e",),
            "the gradients of a, b, c and 2 more averaged over ranks",
        ),
    ],
)
def test_words_say_what_an_intervention_was_given(
    fixes: tuple[str, ...], said: str
) -> None:
    assert fix_names.describe(fixes) == said


def _fix(proposal: Proposal, *, verified: bool | None = True) -> tuple[str | None, str]:
    fix = fix_of(proposal, verified=verified, before=7.0, after=0.5)
    return fix.proof, fix.code


def _proposal(**changes: Any) -> Proposal:
    given = {"slug": "a/b", "link": "loss", "summary": "s", "facts": (), "fix": "f"}
    return Proposal(**{**given, "code": "c", **changes})


def test_code_that_does_as_what_ran_is_shown() -> None:
    assert _fix(_proposal(fixes=("loss.scale:2.0",))) == ("intervention", "c")


@pytest.mark.parametrize(
    "fixes",
    [
        ("gradients.one_process",),
        ("loss.global:|",),
        ("loss.scale:2.0", "state.one_process:a"),
    ],
)
def test_what_mends_almost_anything_locates_and_shows_no_code(
    fixes: tuple[str, ...],
) -> None:
    assert _fix(_proposal(fixes=fixes)) == ("located", "")


def test_gathering_is_a_fix_where_the_fix_is_to_gather() -> None:
    gathers = _proposal(fixes=("loss.global:|",), gathers=True)
    assert _fix(gathers) == ("intervention", "c")
    besides = _proposal(fixes=("loss.global:|", "state.one_process:a"), gathers=True)
    assert _fix(besides) == ("located", "")


def test_code_is_shown_without_such_a_run_where_evidence_is_named() -> None:
    for proposal, verified in (
        (_proposal(fixes=("loss.global:|",)), True),
        (_proposal(by_hand=True), True),
        (_proposal(fixes=("loss.scale:2.0",)), None),
        (_proposal(fixes=("loss.scale:2.0",)), False),
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
    proposal = _proposal(fixes=("compile.off",))
    fix = fix_of(proposal, verified=verified, before=7.0, after=0.5, is_alone=is_alone)
    assert fix.intervention == said


def test_fix_without_an_intervention_is_to_use_ddp() -> None:
    fix = fix_of(_proposal(), verified=True, before=7.0, after=0.5)
    assert (fix.proof, fix.intervention) == ("intervention", BY_DDP)
