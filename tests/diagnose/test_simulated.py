"""Simulated runs that diverge get the causes that real ranks show."""

from __future__ import annotations

import pytest

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = pytest.mark.usefixtures("causes_alone")


def _check(
    pool: Pool, model: str, loss: str, simulate: tuple[int, ...], *, norm: str = "asis"
) -> Report:
    parts = (("model", model), ("loss", loss), ("dropout", False))
    ref = TargetRef(factory="ddpcheck.suite.zoo.cases:target", arguments=parts)
    options = Options(
        world_sizes=(2,), modes=("ddp",), simulate=simulate, batch_norm=(norm,)
    )
    return checking.check(pool, ref, options)


def test_cause_of_real_ranks_is_that_of_simulated_ones(pool: Pool) -> None:
    report = _check(pool, "mlp", "sum", (4, 6))
    assert [(r.mode, r.world_size, r.verdict) for r in report.runs] == [
        ("ddp", 2, "divergent"),
        ("sim", 4, "divergent"),
        ("sim", 6, "divergent"),
    ]
    assert [(f.slug, f.runs) for f in report.findings] == [
        ("loss/sum-reduction", (0, 1, 2))
    ]


def test_divergence_of_simulated_ranks_alone_is_found_on_few_real_ones(
    pool: Pool,
) -> None:
    report = _check(pool, "mlp", "mean", (5,))
    (finding,) = report.findings
    assert (finding.slug, finding.runs) == ("loss/uneven-shard", (1,))
    assert finding.fix is not None
    assert finding.fix.verified is True
    said = "found on 5 real ranks, which diverge as the 5 simulated ones do"
    assert finding.facts[-1] == said


def test_what_cannot_be_simulated_does_not_spoil_the_verdict(pool: Pool) -> None:
    report = _check(pool, "mlp", "mean_global", (4,))
    assert (report.verdict, report.exit_code) == ("equivalent", 0)
    assert [(n.what, n.why) for n in report.not_compared] == [
        (
            "sim at world size 4",
            "the target uses a collective of torch.distributed: all_reduce",
        )
    ]


def test_synchronised_batch_norm_is_not_simulated(pool: Pool) -> None:
    report = _check(pool, "conv_bn", "mean", (4,), norm="sync")
    assert [run.mode for run in report.runs] == ["ddp"]
    (skipped,) = report.not_compared
    assert skipped.what == "simulated ranks with synchronised batch norm"


def test_more_simulated_ranks_than_samples_are_told_whole(pool: Pool) -> None:
    with pytest.raises(UsageError) as caught:
        _check(pool, "mlp", "mean", (4, 4096))
    assert str(caught.value) == (
        "ddpcheck: world size 4096 needs more samples than the batch has "
        "[option-world-size]\n"
        "  expected   world sizes from 1 to 48, one sample a rank at least\n"
        "  found      a batch of 48\n"
        "  fix        smaller --simulate, or a larger batch\n"
        "  more       ddpcheck --explain option-world-size"
    )
