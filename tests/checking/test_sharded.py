"""Causes of a sharded script that diverges: those of the run on whole parameters."""

from __future__ import annotations

import dataclasses

from ddpcheck.checking import sharded
from ddpcheck.report.data import Difference, Finding, Quantity, Report, Run
from ddpcheck.report.render import wording
from tests.sample_report import make

SHOWN = sharded.Shown()


def _run(excess: float, ratio: float = 0.5, *, name: str = "gradients") -> Run:
    row = Difference(
        name="head.weight",
        step=0,
        rank=1,
        abs_diff=0.1,
        rel_diff=0.5,
        excess=excess,
        ratio=ratio,
    )
    quantity = Quantity(compared=6, mismatched=1, worst=row, tensors=(row,))
    run = Run(mode="ddp", world_size=2, verdict="divergent")
    return dataclasses.replace(run, **{name: quantity})  # type: ignore[arg-type]


def _report(run: Run, *findings: Finding) -> Report:
    return dataclasses.replace(make(), runs=(run,), findings=findings)


CAUSE = Finding(slug="loss/sum-reduction", link="loss", runs=(0,), summary="a sum")


def test_equal_sharded_run_is_not_run_with_whole_parameters() -> None:
    equal = Run(mode="ddp", world_size=2, verdict="equivalent")
    report = dataclasses.replace(_report(equal), verdict="equivalent")
    assert sharded.explained(report, lambda: 1 / 0, SHOWN) is report  # type: ignore[arg-type, return-value]


def test_whole_run_that_differs_alike_gives_its_cause() -> None:
    whole = _report(_run(2.0001e8), CAUSE)
    (found,) = sharded.explained(_report(_run(2e8)), lambda: whole, SHOWN).findings
    assert found.slug == "loss/sum-reduction"
    assert found.facts == (
        "found with whole parameters and DistributedDataParallel in place of "
        "fully_shard: the ranks differ by the same numbers",
    )


def test_whole_run_that_differs_by_other_numbers_leaves_the_cause_unknown() -> None:
    whole = _report(_run(3e8), CAUSE)
    (found,) = sharded.explained(_report(_run(2e8)), lambda: whole, SHOWN).findings
    assert (found.slug, found.link, found.runs) == ("unknown", "reduce", (0,))
    assert found.facts == (
        "worst: head.weight in step 1, relative difference 0.5",
        "every gradient is 0.5 times the single one",
        "with whole parameters and DistributedDataParallel in place of fully_shard "
        "the ranks differ by other numbers from the single process",
    )


def test_ranks_that_disagree_have_a_parameter_that_is_not_sharded() -> None:
    run = dataclasses.replace(_run(2e8, ratio=1.5), ranks_agree=False)
    whole = _report(_run(3e8), CAUSE)
    (found,) = sharded.explained(_report(run), lambda: whole, SHOWN).findings
    assert found.facts[2] == (
        "the ranks disagree, so what differs is not sharded: a parameter or buffer in "
        "no module that fully_shard was called with"
    )


def test_script_that_fails_with_whole_parameters_has_an_unknown_cause() -> None:
    report = sharded.explained(_report(_run(2e8, name="weights")), lambda: None, SHOWN)
    (found,) = report.findings
    assert (found.slug, found.link) == ("unknown", "update")
    assert found.facts == (
        "worst: head.weight in step 1, relative difference 0.5",
        "with whole parameters the script fails, so no link was probed",
    )


def _equal() -> Report:
    return dataclasses.replace(_report(_run(0.5)), verdict="equivalent", findings=())


def test_ranks_that_scale_their_parts_by_other_factors_clip_them_alone() -> None:
    seen = sharded.Shown(scales=((1.0, 1.0), (0.5, 0.25)))
    report = _report(_run(2e8))
    (found,) = sharded.explained(report, _equal, seen).findings
    assert (found.slug, found.link) == ("sync/clip-norm-local", "update")
    assert found.facts[0] == (
        "before update 2 the ranks multiply their parts of all gradients by 0.5, 0.25"
    )
    assert wording.proof(found) == (
        "located, no fix proven: with whole parameters, of which all ranks have the "
        "same norm, the runs are equal (excess 2e+08 before, 0.5 after)"
    )
    for scales in (((0.5, 0.5),), ((0.5, None),), ()):
        other = sharded.Shown(scales=scales)
        (found,) = sharded.explained(report, _equal, other).findings
        assert found.slug == "unknown"
    (found,) = sharded.explained(report, lambda: None, seen).findings
    assert found.slug == "unknown"


def test_divide_factor_of_some_sharded_modules_is_named() -> None:
    report = _report(_run(2e8))
    seen = sharded.Shown(divided={"": 1.0, "head": None, "body": None})
    (found,) = sharded.explained(report, lambda: None, seen).findings
    assert (found.slug, found.link) == ("fsdp/divide-factor", "reduce")
    assert found.facts == (
        "set on the root: 1; not on body, head",
        "gradients that are 0.5 times the single-process ones: all those of head that "
        "differ",
    )
    others: list[dict[str, float | None]] = [
        {"": 1.0, "head": 1.0},
        {"": None, "head": None},
        {},
    ]
    for divided in others:
        other = sharded.Shown(divided=divided)
        (found,) = sharded.explained(report, lambda: None, other).findings
        assert found.slug == "unknown"
