"""Ranks merged into one run: the counts of compared and differing tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from ddpcheck.checking import checking
from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.ranks.messages import Outcome
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Run
from ddpcheck.run.record.recorders import ComparingRecorder
from ddpcheck.run.record.writing import WritingRecorder
from ddpcheck.run.session import assemble
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

RTOL = 0.01
NAMES = ("a", "b", "c", "d")
STEPS = 2
KINDS = ("gradients", "weights", "outputs")
# One quantity of a rank in one step: the difference of each of its tensors.
OFF = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.5]))
RANK = st.tuples(*[st.fixed_dictionaries(dict.fromkeys(KINDS, OFF))] * STEPS)
NOTHING: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
OF_ONE_EACH = [
    ({**NOTHING, "gradients": {"a": 0.5}}, NOTHING),
    ({**NOTHING, "gradients": {"b": 0.5}}, NOTHING),
]

OWN_SHARE = """
import torch
import torch.distributed as dist
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def batch():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(8, 4, generator=g)
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    return 2 * nn.functional.mse_loss(output, target, reduction="sum")

def optimizer(params):
    params = list(params)
    if dist.is_initialized():
        params = params[dist.get_rank()::dist.get_world_size()]
    return torch.optim.SGD(params, lr=0.01)

def train_step(model, optimizer, batch):
    model.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
    if dist.is_initialized():
        for i, p in enumerate(model.parameters()):
            dist.broadcast(p.data, src=i % dist.get_world_size())
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("trace") / "trace"
    writer = Writer(folder)
    for step in range(STEPS):
        for kind in KINDS:
            named = {n: nn.Parameter(_reference(n)) for n in NAMES}
            WritingRecorder(writer).take(kind, step, dict(named))
    writer.close()
    return Reader(folder)


def _reference(name: str) -> Tensor:
    return torch.arange(1.0, 3.0, dtype=torch.float64) + NAMES.index(name)


def _merged(
    reader: Reader, ranks: list[tuple[dict[str, dict[str, float]], ...]]
) -> Run:
    outcomes = []
    for number, steps in enumerate(ranks):
        recorder = ComparingRecorder(
            reader=reader, rtol=RTOL, rank=number, rows=(0, 1, 1)
        )
        told = []
        for step, kinds in enumerate(steps):
            for kind, off in kinds.items():
                named = {n: _reference(n) + by for n, by in off.items()}
                recorder.take(kind, step, dict(named))
            told.append(recorder.finish(step, None))
        outcomes.append(Outcome(rank=number, kind="done", progress=list(told)))
    reference = ReferenceResult(losses=(None,) * STEPS)
    spec = RunSpec(mode="ddp", world_size=len(ranks), steps=STEPS, rtol=RTOL)
    return assemble.to_run(
        RunOutcome(spec=spec, reference=reference, ranks=outcomes), RTOL
    )


@example(ranks=OF_ONE_EACH)
@given(ranks=st.lists(RANK, min_size=1, max_size=3))
def test_count_of_differing_tensors_is_never_above_that_of_compared_ones(
    reader: Reader, ranks: list[tuple[dict[str, dict[str, float]], ...]]
) -> None:
    run = _merged(reader, ranks)
    for kind in KINDS:
        found = getattr(run, kind)
        assert found.mismatched <= found.compared <= STEPS * len(NAMES)


@example(ranks=OF_ONE_EACH)
@given(ranks=st.lists(RANK, min_size=1, max_size=3))
def test_tensors_that_any_rank_has_are_counted_once_per_step(
    reader: Reader, ranks: list[tuple[dict[str, dict[str, float]], ...]]
) -> None:
    run = _merged(reader, ranks)
    mine = [
        (s, n) for r in ranks for s, kinds in enumerate(r) for n in kinds["gradients"]
    ]
    off = [
        (s, n)
        for r in ranks
        for s, kinds in enumerate(r)
        for n, by in kinds["gradients"].items()
        if by
    ]
    assert (run.gradients.compared, run.gradients.mismatched) == (
        len(set(mine)),
        len(set(off)),
    )


def test_each_rank_with_parameters_of_its_own_counts_the_parameters_of_all(
    tmp_path: Path, pool: Pool
) -> None:
    path = tmp_path / "own_share.py"
    path.write_text(OWN_SHARE, encoding="utf-8")
    options = Options(modes=("ddp",), world_sizes=(2,), fix=False)
    report = checking.check(pool, TargetRef(path=str(path)), options)
    (run,) = report.runs
    found = run.gradients
    assert (report.verdict, found.mismatched, found.compared) == ("divergent", 12, 12)
