"""Simulated ranks train as real ones under DistributedDataParallel."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Difference, Quantity, Run
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import TargetRef

_ZOO = "ddpcheck.suite.zoo.cases:target"
_OWN = "tests.run.simulated_targets:target"
_RTOL = 1e-9


def _zoo(model: str, loss: str) -> TargetRef:
    parts = (("model", model), ("loss", loss), ("dropout", False))
    return TargetRef(factory=_ZOO, arguments=parts)


def _own(kind: str) -> TargetRef:
    return TargetRef(factory=_OWN, arguments=(("kind", kind),))


def _both(pool: Pool, ref: TargetRef, world_size: int, **rest: Any) -> tuple[Run, Run]:
    """Returns the runs of real ranks and of played ones."""
    specs = [
        RunSpec(mode=mode, world_size=world_size, **rest) for mode in ("ddp", "sim")
    ]
    real, played = Session(pool, ref).run(specs)
    return assemble.to_run(real, _RTOL), assemble.to_run(played, _RTOL)


def _alike(real: Difference, played: Difference) -> bool:
    """Returns whether two rows differ equally from the single process.

    Rows within a hundredth of the tolerance of the single process count as equal.
    """
    if max(real.excess, played.excess) < 0.01:
        return True
    ratios = [row.ratio or 0.0 for row in (real, played)]
    return math.isclose(
        real.abs_diff, played.abs_diff, rel_tol=1e-6, abs_tol=1e-14
    ) and math.isclose(*ratios, rel_tol=1e-6, abs_tol=1e-9)


def _unlike(real: Quantity, played: Quantity) -> list[tuple[str, int]]:
    """Returns (name, step) of the rows in which two quantities differ."""
    rows = [{(r.name, r.step): r for r in q.tensors} for q in (real, played)]
    keys = rows[0].keys() & rows[1].keys()
    missed = (rows[0].keys() ^ rows[1].keys()) if real.mismatched else set()
    return sorted(missed | {k for k in keys if not _alike(rows[0][k], rows[1][k])})


@pytest.mark.parametrize(
    ("ref", "world_size", "rest", "verdict"),
    [
        (_zoo("mlp", "mean"), 2, {}, "equivalent"),
        (_zoo("mlp", "mean"), 3, {}, "equivalent"),
        (_zoo("regression", "masked"), 3, {}, "divergent"),
        (_zoo("mlp", "sum"), 2, {}, "divergent"),
        (_zoo("conv_bn", "mean"), 2, {}, "divergent"),
        (_zoo("conv_bn", "mean"), 3, {"batch_norm": "local"}, "divergent"),
        (_zoo("conv_bn", "mean"), 2, {"batch_norm": "frozen"}, "equivalent"),
        (_zoo("unused_head", "class_weighted"), 2, {}, "divergent"),
        (_own("clipped"), 2, {}, "equivalent"),
        (_own("accumulated"), 3, {}, "equivalent"),
        (_own("scheduled"), 3, {}, "equivalent"),
        (_own("searched"), 3, {}, "equivalent"),
        (_own("copied"), 3, {}, "equivalent"),
        (_own("adversarial"), 3, {}, "equivalent"),
        (_own("in-parts"), 3, {}, "equivalent"),
        (_own("unsynchronised"), 2, {}, "divergent"),
        (_own("twice"), 3, {}, "divergent"),
        (_own("times-world"), 3, {}, "divergent"),
        (_own("head"), 2, {}, "divergent"),
        (_own("dropout"), 3, {"noise": "sample"}, "equivalent"),
    ],
    ids=lambda value: (
        "-".join(str(v) for _, v in value.arguments)
        if isinstance(value, TargetRef)
        else None
    ),
)
def test_played_ranks_differ_from_one_process_just_as_real_ones(
    pool: Pool, ref: TargetRef, world_size: int, rest: dict[str, Any], verdict: str
) -> None:
    real, played = _both(pool, ref, world_size, **rest)
    assert (played.verdict, real.verdict) == (verdict, verdict)
    for name in ("gradients", "weights", "buffers", "outputs", "losses"):
        ours, theirs = getattr(real, name), getattr(played, name)
        if name == "losses" and not theirs.compared:
            continue  # a train_step ends on rank 0 only, and reports its loss there
        assert ours.compared == theirs.compared, name
        assert ours.mismatched == theirs.mismatched, name
        if name != "buffers":  # a played rank keeps none; the worst may be of any
            assert _unlike(ours, theirs) == [], name


@pytest.mark.parametrize("kind", ["head-not-found", "frozen-later"])
def test_parameters_without_gradient_raise_in_the_second_step_of_both(
    pool: Pool, kind: str
) -> None:
    for run in _both(pool, _own(kind), 2):
        assert run.verdict == "divergent"
        said = [f.summary for f in run.faults if f.kind == "raised"]
        assert any("Expected to have finished reduction" in text for text in said)


@pytest.mark.parametrize(
    ("ref", "why"),
    [
        (
            _zoo("mlp", "mean_global"),
            "the target uses a collective of torch.distributed: all_reduce",
        ),
        (_own("gathered"), "the target uses a collective of torch.distributed"),
        (
            _own("caught"),
            "the target uses a collective of torch.distributed: all_reduce",
        ),
        (
            _own("own-buffers"),
            "ranks have different values of a buffer: norm.running_mean",
        ),
        (_own("hook"), "a communication hook changes what DDP reduces"),
        (
            _own("copied-with-gradients"),
            "a copy of DistributedDataParallel is called with gradients",
        ),
        (
            _own("copied-buffers"),
            "a copy of DistributedDataParallel sends its buffers",
        ),
    ],
    ids=["global", "gathered", "caught", "own-buffers", "hook", "copied", "buffers"],
)
def test_what_cannot_be_played_is_not_checked_and_says_why(
    pool: Pool, ref: TargetRef, why: str
) -> None:
    outcome = Session(pool, ref).run([RunSpec(mode="sim", world_size=2)])[0]
    run = assemble.to_run(outcome, _RTOL)
    assert run.why is not None
    # Versions of torch differ in whether the virtual group learns the name of it.
    told = run.why.removesuffix(": allgather base")
    assert (run.verdict, told) == ("not-checked", why)
    assert run.gradients.compared == 0
    (listed,) = assemble.not_compared([outcome], [run])
    assert (listed.what, listed.why) == ("sim at world size 2", run.why)


def test_one_rank_per_sample_is_one_process(pool: Pool) -> None:
    spec = RunSpec(mode="sim", world_size=12)
    run = assemble.to_run(Session(pool, _own("clipped")).run([spec])[0], _RTOL)
    assert run.verdict == "equivalent"
    assert run.gradients.compared == 12  # 4 tensors, 3 steps: counted once, not by rank
