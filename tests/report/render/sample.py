"""Reports for the renderer tests: asymmetric, so that no mix-up stays unseen."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ddpcheck.report.data import (
    DATA,
    Control,
    Difference,
    Evidence,
    Fault,
    Finding,
    Fix,
    NotCompared,
    Part,
    PartName,
    Quantity,
    Report,
    Row,
    RuledOut,
    Run,
    Start,
    TargetInfo,
    Tolerance,
)

HOSTILE = """</script><b>"x"&'|\x1b[31m\n::error::`*_[a](javascript:b)\u202e\ud800"""
LONG = "encoder." + ".".join(f"layers.{i}.attention" for i in range(20)) + ".weight"

TARGET = TargetInfo(
    name="mymodel.py",
    path="examples/mymodel.py",
    sha256="9f2c" * 16,
    model="Net",
    num_parameters=1234,
    num_tensors=6,
    batch_size=8,
    loss="masked_mse",
    optimizer="SGD lr 0.1",
    steps=3,
)
TOLERANCE = Tolerance(rtol=1e-9, origin="float64 default")
ENVIRONMENT = {
    "backend": "gloo",
    "device": "cpu",
    "python": "3.11.2",
    "seed": "0",
    "torch": "2.13.0",
}

GRADIENTS_2 = (
    Difference(
        name="head.weight",
        step=0,
        rank=0,
        abs_diff=0.0417,
        rel_diff=0.33349,
        excess=4.004e13,
        ratio=1.3333,
    ),
    Difference(
        name="head.bias",
        step=0,
        rank=1,
        abs_diff=0.0103,
        rel_diff=0.21,
        excess=2.1e13,
        ratio=0.8,
    ),
    Difference(
        name="body.0.weight", step=1, rank=1, abs_diff=3e-4, rel_diff=0.02, excess=2e12
    ),
    Difference(
        name="body.0.bias", step=2, rank=0, abs_diff=1e-18, rel_diff=3e-16, excess=3e-7
    ),
)
WEIGHTS_2 = (
    Difference(
        name="head.weight",
        step=2,
        rank=0,
        abs_diff=7.1e-3,
        rel_diff=0.0123,
        excess=1.23e12,
    ),
)
BUFFERS = (
    Difference(
        name="norm.running_mean",
        step=2,
        rank=1,
        abs_diff=0.0,
        rel_diff=0.0,
        excess=0.0,
    ),
)
LOSSES_2 = (
    Difference(
        name="loss", step=0, rank=None, abs_diff=0.11, rel_diff=0.051, excess=5.1e7
    ),
)


def quantity(
    rows: tuple[Difference, ...],
    *,
    compared: int,
    mismatched: int = 0,
    by_step: tuple[float, ...] = (),
) -> Quantity:
    """Returns a quantity whose first row is its worst."""
    return Quantity(
        compared=compared,
        mismatched=mismatched,
        worst=rows[0],
        tensors=rows,
        excess_by_step=by_step,
    )


def divergent_run(world_size: int = 2, factor: float = 1.0) -> Run:
    """Returns a DDP run with wrong gradients, `factor` times the sample's excess."""
    rows = tuple(replace(row, excess=row.excess * factor) for row in GRADIENTS_2)
    return Run(
        mode="ddp",
        world_size=world_size,
        verdict="divergent",
        shard_sizes=(8 // world_size,) * world_size,
        rtol=1e-9,
        gradients=quantity(
            rows,
            compared=36,
            mismatched=17,
            by_step=(4.004e13 * factor, 9.1e12 * factor, 8.8e12 * factor),
        ),
        weights=quantity(
            WEIGHTS_2, compared=36, mismatched=11, by_step=(3.3e11, 8.7e11, 1.23e12)
        ),
        buffers=quantity(BUFFERS, compared=12, by_step=(0.0, 0.0, 0.0)),
        losses=quantity(
            LOSSES_2, compared=3, mismatched=2, by_step=(5.1e7, 0.3, 2.2e6)
        ),
        seconds=1.75,
    )


def equal_run(mode: str = "dp", world_size: int = 2, **settings: str) -> Run:
    """Returns a run within tolerance."""
    small = Difference(
        name="body.0.weight",
        step=1,
        rank=0,
        abs_diff=2e-17,
        rel_diff=6.7e-16,
        excess=6.7e-7,
        ratio=1.0,
    )
    found = quantity((small,), compared=18, by_step=(4.1e-7, 6.7e-7, 5e-7))
    zeros = quantity(BUFFERS, compared=6, by_step=(0.0, 0.0, 0.0))
    return Run(
        mode=mode,
        world_size=world_size,
        verdict="equivalent",
        shard_sizes=(8 // world_size,) * world_size,
        rtol=1e-9,
        gradients=found,
        weights=found,
        buffers=zeros,
        seconds=0.5,
        **settings,  # type: ignore[arg-type]  # str settings only, by the callers
    )


def local_normalizer() -> Finding:
    """Returns a confirmed finding with controls and pictures."""
    return Finding(
        slug="loss/local-normalizer",
        link="loss",
        runs=(1, 2),
        summary="each rank divides by its own mask count, not by the global one",
        facts=(
            (
                "on the reference's outputs, rank 0's loss gradient is 1.5 times and "
                "rank 1's 3 times the reference's; 2 is right"
            ),
            "the constants are N/n_r for n_r = (4, 2): the ones in targets[1]",
        ),
        where="mymodel.py:41",
        magnitude="gradients off by up to 33.3 %",
        evidence={
            "ratios": {"ranks": [1.5, 3.0], "expected": 2},
            "modules": [
                {"name": "body.0", "rel_diff": 0.0, "diverges": False},
                {"name": "body.1", "rel_diff": 2.2e-16, "diverges": False},
                {"name": "norm", "rel_diff": 3.1e-16, "diverges": False},
                {"name": "head", "rel_diff": 0.0417, "diverges": True},
            ],
        },
        fix=Fix(
            text="sum the mask over ranks before dividing by it",
            code="count = mask.sum()\n"
            "torch.distributed.all_reduce(count)\n"
            "return W * (error * mask).sum() / count",
            verified=True,
            proof="intervention",
            intervention="with each rank's loss weighted by its share of the count the "
            "runs are equal",
            excess_before=4.004e13,
            excess_after=0.0213,
        ),
        controls=(
            Control(slug="loss/sum-reduction", excess_after=9.999e12),
            Control(slug="loss/double-scaling", excess_after=6e13),
            Control(slug="batchnorm/local-statistics", excess_after=float("nan")),
        ),
    )


def divergent() -> Report:
    """Returns DP right, DDP wrong at W=2 and 4, with one finding."""
    return Report(
        verdict="divergent",
        exit_code=1,
        target=TARGET,
        tolerance=TOLERANCE,
        environment=ENVIRONMENT,
        runs=(equal_run(), divergent_run(2), divergent_run(4, 1.7)),
        findings=(local_normalizer(),),
        not_compared=(
            NotCompared(what="optimizer state", why="SGD without momentum has none"),
        ),
        warnings=("dropout was off: p=0.1 in body.2",),
        command="ddpcheck examples/mymodel.py --world-sizes 2,4",
        seconds=4.25,
    )


def two_findings() -> Report:
    """Returns a report with a safe confirmed and an unsafe refuted fix."""
    second = Finding(
        slug="batchnorm/local-statistics",
        link="forward",
        runs=(2,),
        summary="norm uses the mean and variance of its own shard",
        facts=("norm is the first module whose output differs",),
        where="mymodel.py:12",
        evidence=cast(
            "Evidence",  # as JSON has NaN
            {"modules": [{"name": "norm", "rel_diff": "nan", "diverges": True}]},
        ),
        fix=Fix(
            text="convert the model's batch norms",
            code="model = nn.SyncBatchNorm.convert_sync_batchnorm(model)",
            safe=False,
            verified=False,
            intervention="with torch's batch norms synchronised over ranks the runs "
            "still differ",
            excess_before=6.8e13,
            excess_after=5.1e13,
        ),
        controls=(Control(slug="loss/sum-reduction", excess_after=0.5),),
    )
    return replace(divergent(), findings=(local_normalizer(), second))


def equivalent() -> Report:
    """Returns a report in which everything compared is equal."""
    runs = tuple(
        equal_run(mode, world_size, batch_norm=batch_norm)
        for batch_norm in ("sync", "frozen")
        for mode in ("dp", "ddp")
        for world_size in (2, 4, 8)
    )
    return replace(
        divergent(),
        verdict="equivalent",
        exit_code=0,
        runs=runs,
        findings=(),
        warnings=(),
        not_compared=(),
    )


def not_checked() -> Report:
    """Returns a report in which the only other run died."""
    died = Run(
        mode="ddp",
        world_size=4,
        verdict="not-checked",
        why="2 of 4 ranks failed before the first comparison",
        faults=(
            Fault(kind="died", rank=1, step=0, summary="killed by SIGABRT"),
            Fault(
                kind="hung",
                rank=3,
                step=None,
                summary="no answer for 60 s, in all_reduce",
                stack='File "mymodel.py", line 41, in loss\n    dist.all_reduce(n)',
                stderr="terminate called without an active exception",
            ),
        ),
    )
    return replace(
        divergent(),
        verdict="not-checked",
        exit_code=3,
        runs=(died,),
        findings=(),
        warnings=(),
        not_compared=(NotCompared(what="ddp W=4", why="2 ranks failed"),),
    )


def nothing_compared() -> Report:
    """Returns a report that claims equivalence without one comparison."""
    empty = Run(mode="dp", world_size=2, verdict="equivalent")
    return replace(equivalent(), runs=(empty,))


def without_runs() -> Report:
    """Returns a report of no run at all."""
    return replace(not_checked(), runs=(), not_compared=())


def usage_error() -> Report:
    """Returns a report of a file that did not train: nothing is known of its model."""
    target = replace(not_checked().target, num_parameters=0, num_tensors=0)
    return replace(without_runs(), target=target)


def accepted() -> Report:
    """Returns a report whose only divergence the user has accepted."""
    reason = "batch norm per GPU is what the paper trains"
    finding = replace(local_normalizer(), accepted=reason, runs=(1,))
    return replace(
        divergent(),
        verdict="equivalent",
        exit_code=0,
        runs=(equal_run(), divergent_run(2)),
        findings=(finding,),
    )


def hostile() -> Report:
    """Returns a report with hostile and very long names and undefined numbers."""
    nan, inf = float("nan"), float("inf")
    rows = (
        Difference(
            name=HOSTILE, step=0, rank=0, abs_diff=nan, rel_diff=nan, excess=nan
        ),
        Difference(
            name=LONG,
            step=0,
            rank=1,
            abs_diff=inf,
            rel_diff=inf,
            excess=inf,
            ratio=-inf,
            why="missing in the candidate",
        ),
    )
    run = replace(
        divergent_run(2),
        mode=HOSTILE,
        loss=HOSTILE,
        gradients=quantity(rows, compared=2, mismatched=2, by_step=(nan, inf, 0.0)),
        ranks_agree=False,
    )
    crash = Fault(
        kind="raised",
        rank=0,
        step=0,
        summary=HOSTILE,
        stack=HOSTILE * 9,
        stderr=LONG,
    )
    lost = Run(
        mode="ddp",
        world_size=16,
        verdict="not-checked",
        why=HOSTILE,
        faults=(crash,) * 5,
    )
    finding = Finding(
        slug="unknown/forward",
        link=HOSTILE,
        runs=(0, 1),
        summary=HOSTILE,
        facts=(HOSTILE, LONG) * 4,
        where=HOSTILE + ":3",
        magnitude=HOSTILE,
        evidence=cast(
            "Evidence",
            {
                "ratios": {"ranks": [nan, "inf", -1.0, "?"], "expected": "2"},
                "modules": [{"name": HOSTILE, "rel_diff": "nan", "diverges": True}],
            },
        ),
        fix=Fix(
            text=HOSTILE,
            code=f"```\n{HOSTILE}\n{LONG}\n" * 7,
            safe=False,
            verified=False,
            file=HOSTILE,
            intervention=HOSTILE,
            excess_before=inf,
            excess_after=nan,
        ),
        controls=(Control(slug=HOSTILE, excess_after=inf),),
        start=Start(
            text=HOSTILE,
            quantity=HOSTILE,
            step=0,
            module=HOSTILE,
            parameters=(HOSTILE,),
        ),
        ruled_out=(RuledOut(what=HOSTILE, why=LONG), RuledOut(what=LONG, why=HOSTILE)),
    )
    return replace(
        divergent(),
        target=replace(TARGET, name=HOSTILE, model=LONG, path=HOSTILE, loss=HOSTILE),
        tolerance=Tolerance(rtol=inf, origin=HOSTILE, noise_floor=nan),
        environment={HOSTILE: HOSTILE},
        runs=(run, lost, *(equal_run(world_size=w) for w in range(2, 9)), lost),
        findings=(finding, finding, replace(finding, accepted=HOSTILE)),
        not_compared=(NotCompared(what=HOSTILE, why=LONG),) * 6,
        warnings=(HOSTILE, LONG) * 3,
        command=HOSTILE,
    )


ALL = {
    "divergent": divergent(),
    "two-findings": two_findings(),
    "equivalent": equivalent(),
    "not-checked": not_checked(),
    "nothing-compared": nothing_compared(),
    "without-runs": without_runs(),
    "usage-error": usage_error(),
    "accepted": accepted(),
    "hostile": hostile(),
}


def script() -> Report:
    """Returns a report of a script whose ranks draw the same samples, at W=2 and 4."""
    rate = "updates grow with the world size"
    same = "a pass has as many updates as in the single process"
    finding = Finding(
        slug="data/shard-overlap",
        link="data",
        runs=(1, 3),
        summary="all ranks train on the same samples: the data are not sharded",
        facts=("in pass 1 the first 24 samples are the same on all 2 ranks",),
        evidence=Evidence(repeated=24, of_pass=96, loader=0),
    )
    runs = []
    for size in (2, 4):
        runs.append(replace(equivalent().runs[0], mode="ddp", world_size=size))
        data = Run(mode=DATA, world_size=size, verdict="divergent", seconds=2.0)
        runs.append(replace(data, dtype=runs[-1].dtype))
    names: tuple[PartName, ...] = ("gradient", "update", "data")
    return replace(
        equivalent(),
        verdict="divergent",
        exit_code=1,
        runs=tuple(runs),
        findings=(finding,),
        facts=tuple(
            row
            for size in (2, 4)
            for row in (
                Row(
                    what="learning rate",
                    single=0.1,
                    ranks=0.1 * size,
                    world_size=size,
                    at_8=0.8,
                    effect=rate,
                ),
                Row(
                    what="updates of a pass",
                    single=12,
                    ranks=12,
                    world_size=size,
                    at_8=12,
                    effect=same,
                ),
            )
        ),
        parts=tuple(
            Part(
                what=name,
                world_size=size,
                verdict="divergent" if name == "data" else "equivalent",
            )
            for size in (2, 4)
            for name in names
        ),
        reproduce="import subprocess\n",
    )
