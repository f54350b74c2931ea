"""The parameter server: real processes, one of which makes all updates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.run.facts import REMARKS
from ddpcheck.run.modes import ps
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session, crew_of, index_of
from ddpcheck.run.spec import RunOutcome, RunSpec
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

pytestmark = pytest.mark.xdist_group("ps")

HEAD = """\
import inspect
import torch
import torch.distributed as dist
from torch import nn

def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)

def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=g), torch.arange(8) % 3

def loss(output, target):
    return nn.functional.cross_entropy(output, target)

def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)
"""
SUM = """
def loss(output, target):
    return nn.functional.cross_entropy(output, target, reduction="sum")
"""
SCHEDULE = """
def train_step(model, optimizer, batch):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    optimizer.zero_grad()
    value = loss(model(batch[0]), batch[1])
    value.backward()
    optimizer.step()
    return value
"""
WORLD = """
def loss(output, target):
    n, world = torch.tensor(float(len(target))), 1
    if dist.is_initialized():
        dist.all_reduce(n)
        world = dist.get_world_size()
    total = nn.functional.cross_entropy(output, target, reduction="sum")
    return world * total / n
"""
UNUSED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)
    def forward(self, x):
        return self.used(x)

def model():
    torch.manual_seed(0)
    return Net()

def optimizer(params):
    return torch.optim.SGD(params, lr=0.1, weight_decay=0.1)
"""
CLOSURE = """
def train_step(model, optimizer, batch):
    def closure():
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        return value
    return optimizer.step(closure)
"""
ANOTHER = """
def train_step(model, optimizer, batch):
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    own.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    own.step()
"""
TWICE = """
def train_step(model, optimizer, batch):
    second = dist.is_initialized() and dist.get_rank() == 1
    for _ in range(2 if second else 1):
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
"""
BREAKS = """
class Breaking(torch.optim.SGD):
    def step(self, closure=None):
        if self.breaks:
            raise ArithmeticError("no update")
        return super().step(closure)

def optimizer(params):
    made = Breaking(params, lr=0.1)
    made.breaks = any(frame.function == "_serve" for frame in inspect.stack())
    return made
"""


def _ref(folder: Path, source: str) -> TargetRef:
    path = folder / "target.py"
    path.write_text(HEAD + source, encoding="utf-8")
    return TargetRef(path=str(path))


def _checked(pool: Pool, ref: TargetRef, reduce: str = "mean") -> Report:
    options = Options(world_sizes=(2,), modes=("ps",), ps_reduce=reduce, fix=False)
    return checking.check(pool, ref, options)


@pytest.mark.parametrize(
    ("source", "reduce"),
    [("", "mean"), (SUM, "sum"), (SCHEDULE, "mean"), (WORLD, "mean"), (UNUSED, "mean")],
    ids=["mean", "sum", "schedule", "collective in the loss", "unused parameter"],
)
def test_training_with_a_server_equals_one_process(
    source: str, reduce: str, pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, _ref(tmp_path, source), reduce)
    (run,) = report.runs
    assert (run.mode, run.verdict, run.ranks_agree) == ("ps", "equivalent", True)
    assert run.reduce == reduce
    assert (run.gradients.compared, run.weights.compared) in {(6, 6), (6, 12)}
    assert (run.shard_sizes, report.findings) == ((4, 4), ())


@pytest.mark.parametrize(
    ("source", "reduce", "ratio"), [("", "sum", 2.0), (SUM, "mean", 0.5)]
)
def test_reduction_that_does_not_fit_is_off_by_the_number_of_workers(
    source: str, reduce: str, ratio: float, pool: Pool, tmp_path: Path
) -> None:
    (run,) = _checked(pool, _ref(tmp_path, source), reduce).runs
    first = [row for row in run.gradients.tensors if row.step == 0]
    assert [row.ratio for row in first] == pytest.approx([ratio] * 2)
    assert run.verdict == "divergent"


def test_next_run_has_the_same_processes_and_a_server_of_its_own(
    pool: Pool, tmp_path: Path
) -> None:
    other = "model = nn.Linear(4, 3)\n"  # with other weights
    found = set()
    for name, source in (("one", ""), ("other", other), ("again", "")):
        (tmp_path / name).mkdir()
        (run,) = _checked(pool, _ref(tmp_path / name, source)).runs
        assert run.verdict == "equivalent"
        crew = pool.open(3, index_of(RunSpec(mode="ps", world_size=2)))
        found.add(tuple(crew.pids()))
    assert len(found) == 1


def test_run_that_fails_or_is_refused_gets_its_processes_replaced(
    pool: Pool, tmp_path: Path
) -> None:
    index = index_of(RunSpec(mode="ps", world_size=2))
    before = pool.open(3, index).pids()
    assert _checked(pool, _ref(tmp_path, ANOTHER)).runs[0].verdict == "not-checked"
    assert not set(before) & set(pool.open(3, index).pids())


def test_ranks_of_the_same_number_have_other_processes() -> None:
    specs = [RunSpec(mode="ps", world_size=2), RunSpec(mode="ddp", world_size=3)]
    assert [crew_of(spec) for spec in specs] == [3, 3]
    assert [index_of(spec) for spec in specs] == [-1, 0]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (CLOSURE, "optimizer.step is given a closure, which computes its gradients"),
        (ANOTHER, "the step updates by an optimizer of its own (SGD)"),
    ],
    ids=["closure", "another optimizer"],
)
def test_what_a_server_cannot_do_is_not_checked(
    source: str, why: str, pool: Pool, tmp_path: Path
) -> None:
    report = _checked(pool, _ref(tmp_path, source))
    assert report.verdict == "not-checked"
    assert [(n.what, n.why) for n in report.not_compared] == [
        ("ps at world size 2", why)
    ]


def test_workers_with_other_numbers_of_updates_do_not_wait_for_ever(
    pool: Pool, tmp_path: Path
) -> None:
    (run,) = _checked(pool, _ref(tmp_path, TWICE)).runs
    told = "workers make different numbers of updates: one waits in vain"
    assert [(f.kind, f.rank, f.summary) for f in run.faults] == [
        ("raised", 1, f"RuntimeError: {told}")
    ]


def test_server_whose_optimizer_raises_is_a_fault_of_every_worker(
    pool: Pool, tmp_path: Path
) -> None:
    (run,) = _checked(pool, _ref(tmp_path, BREAKS)).runs
    assert run.verdict == "divergent"
    assert {f.summary for f in run.faults if f.kind == "raised"} == {
        "RuntimeError: ArithmeticError: no update"
    }


def _with_a_job(pool: Pool, ref: TargetRef, function: str) -> RunOutcome:
    """Returns the outcome of a run whose processes execute another job."""
    session = Session(pool, ref)
    spec = RunSpec(mode="ps", world_size=2)
    made = session.reference(spec)
    arguments = {"ref": ref, "spec": spec, "trace": made.trace}
    job = Job(function=f"tests.run.jobs:{function}", arguments=arguments)
    outcomes = pool.run(job, 3)
    pool.retire(3)
    session.close()
    return RunOutcome(
        spec=spec, reference=made, ranks=outcomes[:2], servers=outcomes[2:]
    )


@pytest.mark.parametrize("source", ["", WORLD], ids=["mean", "collective in the loss"])
def test_server_without_rpc_works_by_collectives_and_says_so(
    source: str, pool: Pool, tmp_path: Path
) -> None:
    outcome = _with_a_job(pool, _ref(tmp_path, source), "without_rpc")
    run = assemble.to_run(outcome, 1e-9)
    assert (run.verdict, run.gradients.compared) == ("equivalent", 6)
    assert outcome.facts()[REMARKS] == (ps.WITHOUT_RPC,)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc lists the sockets")
def test_workers_and_server_listen_on_the_loopback_interface_alone(pool: Pool) -> None:
    job = Job(function="tests.run.jobs:listeners_of_a_server")
    outcomes = pool.run(job, 3)
    pool.retire(3)
    assert [outcome.kind for outcome in outcomes] == ["done"] * 3
    found = {address for outcome in outcomes for address in outcome.value}
    assert found == {"0100007F"}  # 127.0.0.1, as the kernel writes it


def test_reduction_without_a_server_is_a_warning(pool: Pool, tmp_path: Path) -> None:
    options = Options(world_sizes=(2,), modes=("ddp",), ps_reduce="sum")
    report = checking.check(pool, _ref(tmp_path, ""), options)
    assert report.verdict == "equivalent"
    assert list(report.warnings) == [
        "--ps-reduce sum: no run has a parameter server; --modes ps asks for one"
    ]
