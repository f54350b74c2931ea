"""Every intervention has its sentence, acts and is asked for."""

from __future__ import annotations

import ast
import dataclasses
import functools
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import ddpcheck
from ddpcheck.run import intervention
from ddpcheck.run.intervention import (
    AverageGradients,
    Boundary,
    CountLoss,
    CountMicroBatches,
    DrawGlobalBatch,
    GlobalLoss,
    GlobalLossOfOutputs,
    GlobalModule,
    Intervention,
    Interventions,
    OffsetLabels,
    Output,
    Place,
    Scale,
    ScaleDirect,
    ScaleGradients,
    ScaleLoss,
    ScaleOutputs,
    ScaleTerms,
    SkipAllReduces,
    Substitute,
    Switch,
    SyncBatchNorm,
    addends,
    describe,
    found,
    substituted,
)
from ddpcheck.run.spec import RunSpec

AS_A_NAME = re.compile(r"[a-z_]+\.[a-z_0-9]*")  # as "loss.scale:2.0"
PACKAGE = Path(ddpcheck.__file__).parent
MODULE = Path(intervention.__file__)
WITH_PARAMETERS: tuple[Intervention, ...] = (
    AverageGradients(names=("a.weight",)),
    CountLoss(countable="samples"),
    CountMicroBatches(countable="samples"),
    CountMicroBatches(countable="samples", by_number=False),
    DrawGlobalBatch(shapes=((8, 3), (16,))),
    GlobalLoss(modules=("a",), parameters=("b",), outputs=(Output(path="output"),)),
    GlobalLossOfOutputs(paths=("output[0]",), whole=("output[1]",)),
    GlobalModule(name="a"),
    GlobalModule(name="a", hides=False),
    OffsetLabels(within_forward=True),
    ScaleDirect(factor=2.0),
    ScaleGradients(factor=2.0, names=("a.weight",)),
    ScaleLoss(factor=2.0),
    ScaleOutputs(factor=2.0, paths=("output[0]",)),
    ScaleTerms(factor=2.0),
    SkipAllReduces(of_gradients=True),
    *(Substitute(boundary=b, names=("a",)) for b in get_args(Boundary)),
    SyncBatchNorm(names=("a",)),
)
EVERY: tuple[Intervention, ...] = (*Switch, *WITH_PARAMETERS)


def _trees(*folders: str) -> Iterator[ast.AST]:
    for folder in folders:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            if path != MODULE:
                yield ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _named_in(*folders: str) -> frozenset[str]:
    """Returns "Switch.X", classes and "Substitute of X" that these folders name."""
    named = set()
    for tree in _trees(*folders):
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                named.add(node.id)
            elif isinstance(node, ast.Attribute):
                named.add(ast.unparse(node))
            elif isinstance(node, ast.Call):
                named |= {f"Substitute of {b}" for b in _boundaries(node)}
    return frozenset(named)


def _boundaries(call: ast.Call) -> Iterator[str]:
    """Yields the boundary that a call asks for, or substitutes at."""
    called = ast.unparse(call.func).rpartition(".")[2]
    given = [k.value for k in call.keywords if k.arg == "boundary"]
    if called == "substituted":
        given = call.args[1:]
    if called == "addends":
        yield "addends"
    yield from (str(v.value) for v in given if isinstance(v, ast.Constant))


def _name(one: Intervention) -> str:
    if isinstance(one, Switch):
        return f"Switch.{one.name}"
    if isinstance(one, Substitute):
        return f"Substitute of {one.boundary}"
    return type(one).__name__


def test_every_intervention_is_looked_at_here() -> None:
    defined = {c for c in vars(intervention).values() if isinstance(c, type)}
    below = {c for c in defined if issubclass(c, Intervention)}
    with_parameters = below - {Intervention, Scale, Switch}
    assert {type(one) for one in WITH_PARAMETERS} == with_parameters


@pytest.mark.parametrize("one", EVERY, ids=_name)
def test_sentence_follows_with_and_holds_no_name_of_ours(one: Intervention) -> None:
    sentence = describe([one])
    assert sentence
    assert sentence == sentence.strip(" .")
    assert not {"{", "}", "|", ":"} & set(sentence)
    assert _name(one) not in sentence
    assert one.place in get_args(Place)


def test_each_has_a_sentence_of_its_own() -> None:
    effects = [one.meaning.effect for one in EVERY]
    assert sorted(set(effects)) == sorted(effects)


@pytest.mark.parametrize("one", EVERY, ids=_name)
def test_every_intervention_is_applied_in_a_run(one: Intervention) -> None:
    assert _name(one) in _named_in("run")


@pytest.mark.parametrize("one", EVERY, ids=_name)
def test_every_intervention_is_asked_for(one: Intervention) -> None:
    # "checking" asks how lists of samples are sharded, the search for all others.
    assert _name(one) in _named_in("diagnose", "checking")


def test_no_string_names_an_intervention() -> None:
    named = []
    for tree in _trees("diagnose", "checking", "run"):
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg in ("fixes", "control"):
                named += [
                    part.value
                    for part in ast.walk(node.value)
                    if isinstance(part, ast.Constant)
                    and isinstance(part.value, str)
                    and AS_A_NAME.match(part.value)
                ]
    assert named == []


@pytest.mark.parametrize("one", EVERY, ids=_name)
def test_spec_with_an_intervention_is_pickled_and_compared_as_it_is(
    one: Intervention,
) -> None:
    spec = RunSpec(mode="ddp", world_size=2, fixes=(one,))
    again = pickle.loads(pickle.dumps(spec))  # noqa: S301 (made a line above)
    assert again == spec
    assert hash(again) == hash(spec)
    assert spec != spec.but(fixes=())


def test_interventions_with_other_parameters_are_not_equal() -> None:
    assert ScaleLoss(factor=2.0) != ScaleLoss(factor=4.0)
    assert len({ScaleLoss(factor=2.0), ScaleTerms(factor=2.0)}) == 2
    assert GlobalModule(name="a") != GlobalModule(name="a", hides=False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ScaleLoss(factor=2.0).factor = 4.0  # type: ignore[misc]


def test_single_process_run_has_what_acts_in_all_processes() -> None:
    effects = {one.meaning.effect for one in EVERY}
    in_all = {effect for effect in effects if "all processes" in effect}
    in_reference = {one.meaning.effect for one in EVERY if one.in_reference}
    assert in_all < in_reference
    others = in_reference - in_all
    assert {_name(one) for one in EVERY if one.meaning.effect in others} == {
        "Substitute of orders",
        "Substitute of addends",
    }


@pytest.mark.parametrize(
    ("fixes", "sentence"),
    [
        ((ScaleLoss(factor=2.0),), "the gradient of the loss multiplied by 2"),
        (
            (ScaleGradients(factor=0.5),),
            "the gradients of all parameters multiplied by 0.5",
        ),
        (
            (ScaleGradients(factor=0.125, names=("a.weight", "a.bias")),),
            "the gradients of a.weight, a.bias multiplied by 0.125",
        ),
        ((GlobalModule(),), "the samples of all ranks given to the model"),
        (
            (SyncBatchNorm(), GlobalModule(name="a"), GlobalModule(name="b")),
            (
                "torch's batch norms synchronised over ranks and the samples of all "
                "ranks given to a, b"
            ),
        ),
        (
            (AverageGradients(names=tuple("abcde")),),
            "the gradients of a, b, c and 2 more averaged over ranks",
        ),
        (
            (Substitute(boundary="state", names=("a",)),),
            (
                "buffers and untrained parameters of a set to those of the "
                "single-process run after every step"
            ),
        ),
    ],
)
def test_sentence_says_what_an_intervention_was_given(
    fixes: Interventions, sentence: str
) -> None:
    assert describe(fixes) == sentence


def test_first_of_a_class_is_found_and_none_where_there_is_none() -> None:
    fixes = (Switch.REWRAP, ScaleLoss(factor=2.0), ScaleLoss(factor=4.0))
    assert found(fixes, ScaleLoss) == ScaleLoss(factor=2.0)
    assert found(fixes, Scale) == ScaleLoss(factor=2.0)
    assert found(fixes, ScaleTerms) is None


def test_names_of_a_boundary_are_those_of_all_fixes_there() -> None:
    fixes = (
        Substitute(boundary="state", names=("a",)),
        Substitute(boundary="state", names=("b", "a")),
        Substitute(boundary="schedule"),
    )
    assert substituted(fixes, "state") == frozenset({"a", "b"})
    assert substituted(fixes, "schedule") == frozenset()
    assert substituted(fixes, "beside") is None


def test_addends_of_all_fixes_are_given_with_their_tensors() -> None:
    fixes = (
        Substitute(boundary="addends", numbers=(2, 0)),
        Substitute(boundary="addends", numbers=(2,), names=("router#0/output",)),
        Switch.REWRAP,
    )
    assert addends(fixes) == {0: frozenset(), 2: frozenset({"router#0/output"})}
    assert addends(()) == {}


@pytest.mark.parametrize(
    ("fix", "width"),
    [
        (ScaleLoss(factor=2.0), 0),
        (Substitute(boundary="state"), 0),
        (Substitute(boundary="writes"), 1),
        (Switch.MEAN_OF_SUMS, 1),
        (GlobalModule(name="norm", hides=False), 0),
        (GlobalModule(name="norm"), 2),
        (GlobalLoss(), 2),
    ],
)
def test_fix_is_as_wide_as_what_it_mends(fix: Intervention, width: int) -> None:
    assert intervention.width(fix) == width
