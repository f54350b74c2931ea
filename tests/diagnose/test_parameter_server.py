"""Divergences under a parameter server: its own rule, and causes that DDP has too."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.diagnose.facts.server_case import ServerCase
from ddpcheck.diagnose.registry import asked
from ddpcheck.diagnose.rules import ps_reduce_mismatch
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Difference, Fault, Finding, Report, Run
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = pytest.mark.xdist_group("ps")

HEAD = """\
import torch
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)

def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3

def loss(output, target):
    return nn.functional.cross_entropy(output, target)
"""
SUM = """
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""
CLIP = """
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()
"""
OPTIMIZER = """
def optimizer(params):
    return torch.optim.{}
"""


def _checked(
    pool: Pool,
    folder: Path,
    source: str,
    *,
    reduce: str = "mean",
    modes: tuple[str, ...] = ("ps",),
    world_sizes: tuple[int, ...] = (2,),
    loss: str = "asis",
    fix: bool = True,
) -> Report:
    path = folder / "target.py"
    path.write_text(HEAD + source, encoding="utf-8")
    options = Options(
        world_sizes=world_sizes,
        modes=modes,
        ps_reduce=reduce,
        loss=(loss,),
        fix=fix,
    )
    return checking.check(pool, TargetRef(path=str(path)), options)


def _only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


def _slugs(report: Report) -> list[tuple[str, tuple[int, ...], bool | None]]:
    return [
        (f.slug, f.runs, f.fix.verified if f.fix else None) for f in report.findings
    ]


def test_mean_of_a_summed_loss_is_found_and_told_whole(
    pool: Pool, tmp_path: Path
) -> None:
    source = SUM + OPTIMIZER.format("SGD(params, lr=0.02, momentum=0.9)")
    finding = _only(_checked(pool, tmp_path, source))
    assert (finding.slug, finding.link, finding.runs) == (
        "ps/reduce-mismatch",
        "reduce",
        (0,),
    )
    assert finding.summary == (
        "the parameter server averages the workers' gradients, whose sum is the "
        "single-process gradient: the mean is 1/2 of that"
    )
    *facts, run = finding.facts
    assert facts == [
        "gradients over the single-process ones: 0.5 for all 2 tensors that differ in "
        "step 1, expected 1",
        "a mean over samples needs the mean of the workers' gradients, a sum their sum",
        "the update of SGD is linear in the gradient, with and without momentum: "
        "lr=0.04 in place of 0.02 at world size 2 makes the weights equal",
    ]
    assert run.startswith(
        "run with that learning rate: the weights are those of one process (by "
    )
    assert finding.fix is not None
    assert finding.fix.text == (
        "let the server make the sum of the gradients: --ps-reduce sum"
    )
    assert finding.fix.code == "grad = sum(gradients)"
    assert finding.fix.verified is True
    assert finding.evidence == {"ratio": 0.5, "lr_factor": 2.0, "reduce": "mean"}
    assert finding.fix.proof == "intervention"
    assert finding.fix.intervention == (
        "with the sum of the gradients on the server the runs are equal"
    )
    assert finding.proven_runs == finding.runs


def test_sum_of_a_mean_loss_takes_less_learning_rate(
    pool: Pool, tmp_path: Path
) -> None:
    source = OPTIMIZER.format("SGD(params, lr=0.3)")
    finding = _only(_checked(pool, tmp_path, source, reduce="sum", world_sizes=(4,)))
    assert finding.slug == "ps/reduce-mismatch"
    assert "lr=0.075 in place of 0.3 at world size 4" in finding.facts[2]
    assert "the weights are those of one process" in finding.facts[3]


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [
        (
            "SGD(params, lr=0.02, momentum=0.9, weight_decay=0.01)",
            "no learning rate makes the weights equal: weight decay adds 0.01 times "
            "the weight to the gradient, which the factor does not multiply",
        ),
        (
            "AdamW(params, lr=0.02)",
            "no learning rate is to be changed: AdamW divides the factor out, up to "
            "its eps of 1e-08",
        ),
        (
            "Adam(params, lr=0.02, weight_decay=0.5)",
            "no learning rate makes the weights equal: weight decay adds 0.5 times the "
            "weight to the gradient, which the factor does not multiply",
        ),
    ],
    ids=["weight decay", "AdamW", "Adam with decay"],
)
def test_learning_rate_that_no_one_can_give_is_said(
    optimizer: str, told: str, pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, OPTIMIZER.format(optimizer), reduce="sum")
    finding = _only(report)
    assert (finding.slug, finding.facts[2]) == ("ps/reduce-mismatch", told)
    assert finding.facts[3].startswith("the weights differ by ")
    (run,) = report.runs
    assert run.weights.worst is not None
    small = run.weights.worst.rel_diff < 1e-4  # AdamW's eps of 1e-8
    assert small is ("divides the factor out" in told)


def test_clipping_on_workers_is_an_unknown_that_says_so(
    pool: Pool, tmp_path: Path
) -> None:
    finding = _only(_checked(pool, tmp_path, CLIP))
    assert (finding.slug, finding.fix) == ("unknown", None)
    assert finding.facts[-1] == (
        "each worker clips its own gradient before it is pushed, and DDP's ranks clip "
        "what is reduced; no reduction and no learning rate makes that equal to one "
        "process, clipping on the server does"
    )


def test_cause_that_ranks_of_ddp_have_is_found_on_them(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, "", world_sizes=(3,))
    assert _slugs(report) == [("loss/uneven-shard", (0,), True)]
    assert report.findings[0].facts[-1] == (
        "found under DDP at world size 3, whose ranks diverge as workers do whose "
        "gradients are averaged"
    )


def test_cause_of_a_run_of_ranks_in_the_report_is_joined(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, "", world_sizes=(3,), modes=("ddp", "ps"))
    assert _slugs(report) == [("loss/uneven-shard", (0, 1), True)]


def test_summed_loss_is_one_cause_for_ranks_and_another_for_a_server(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, SUM, modes=("ddp", "ps"))
    assert _slugs(report) == [
        ("loss/sum-reduction", (0,), True),
        ("ps/reduce-mismatch", (1,), True),
    ]


def test_reduction_beside_another_cause_is_found_too(
    pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, tmp_path, "", reduce="sum", loss="iou")
    assert _slugs(report) == [
        ("loss/batch-coupled", (0,), True),
        ("ps/reduce-mismatch", (0,), True),
    ]


def test_without_fixes_the_rule_is_not_verified(pool: Pool, tmp_path: Path) -> None:
    report = _checked(pool, tmp_path, SUM, fix=False)
    assert _slugs(report) == [("ps/reduce-mismatch", (0,), None)]


def _row(ratio: float | None, rel_diff: float) -> Difference:
    return Difference(
        name="weight", step=0, abs_diff=1.0, rel_diff=rel_diff, excess=9.0, ratio=ratio
    )


def _case(
    *rows: Difference, reduce: str = "sum", world_size: int = 4, faults: int = 0
) -> ServerCase:
    fault = Fault(kind="died", rank=1, step=None, summary="was killed by SIGKILL")
    run = Run(
        mode="ps",
        world_size=world_size,
        verdict="divergent",
        faults=(fault,) * faults,
    )
    return ServerCase(run=run, reduce=reduce, first=rows, optimizer="SGD")


@pytest.mark.parametrize(
    "case",
    [
        _case(_row(4.0, 3.0), _row(4.0, 3.0)),
        _case(_row(0.25, 0.75), reduce="mean"),
    ],
    ids=["sum", "mean"],
)
def test_rule_fires_where_all_gradients_have_the_factor(case: ServerCase) -> None:
    proposal = asked(ps_reduce_mismatch, case)
    assert proposal is not None
    assert proposal.slug == "ps/reduce-mismatch"


@pytest.mark.parametrize(
    "case",
    [
        _case(),
        _case(_row(4.0, 3.0), _row(3.9, 2.9)),
        _case(_row(4.0, 3.1)),
        _case(_row(None, 3.0)),
        _case(_row(4.0, 3.0), reduce="mean"),
        _case(_row(0.25, 0.75)),
        _case(_row(4.0, 3.0), faults=1),
        _case(_row(1.0, 0.0), world_size=1),
    ],
    ids=[
        "no gradients",
        "other factors",
        "a residual",
        "no factor",
        "sum's factor of a mean",
        "mean's factor of a sum",
        "a fault",
        "one worker",
    ],
)
def test_rule_is_silent_on_near_misses(case: ServerCase) -> None:
    assert ps_reduce_mismatch.detect(case) is None


@pytest.mark.parametrize(
    ("optimizer", "numbers", "factor", "told"),
    [
        ("SGD", {"lr": 0.3}, 0.25, "lr=0.075 in place of 0.3 at world size 4 makes"),
        ("RMSprop", {"lr": 0.3, "eps": 1e-6}, None, "RMSprop divides the factor out"),
        (
            "Adagrad",
            {"lr": 0.3, "initial_accumulator_value": 0.1},
            None,
            "not known for Adagrad",
        ),
        ("Lion", {"lr": 0.3}, None, "not known for Lion"),
        (
            "Adam",
            {"weight_decay": 0.1, "decoupled_weight_decay": 1.0, "eps": 1e-8},
            None,
            "Adam divides the factor out, up to its eps of 1e-08",
        ),
    ],
)
def test_rate_by_the_optimizer(
    optimizer: str, numbers: dict[str, float], factor: float | None, told: str
) -> None:
    case = ServerCase(
        run=_case().run, reduce="sum", optimizer=optimizer, numbers=(numbers,)
    )
    found, text = ps_reduce_mismatch.rate(case, 0.25)
    assert found == factor
    assert told in text


def test_rate_of_clipped_gradients_is_none() -> None:
    case = ServerCase(run=_case().run, reduce="sum", optimizer="SGD", clips=True)
    assert ps_reduce_mismatch.rate(case, 0.25) == (
        None,
        "no learning rate makes the weights equal: gradients are clipped, and what is "
        "clipped to a norm does not grow with the factor",
    )
