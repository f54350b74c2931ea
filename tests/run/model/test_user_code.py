"""Every hook of a target runs under the same surroundings, whatever calls it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.run.intervention import Switch
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunSpec
from ddpcheck.target.target import TargetRef

PACKAGE = Path(__file__).parents[3] / "ddpcheck"
RECORD = "ddpcheck.diagnose.probes.reference:record"
JUDGE = "ddpcheck.diagnose.probes.rank:judge"
HOOKS = {"model", "batch", "optimizer", "forward", "loss"}

# Notes the state in which each hook finds the process, one line of JSON for each call.
TARGET = """
import json, os, random, sys, warnings, zlib
from pathlib import Path
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def seen(hook, seeds=False):
    deterministic = torch.are_deterministic_algorithms_enabled()
    state = {
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": str(torch.get_autocast_dtype("cpu")),
        "deterministic": deterministic,
        "folder": os.getcwd(),
        "arguments": sys.argv,
        "variables": sorted(v for v in os.environ if not v.endswith(("RANK", "SIZE"))),
    }
    if seeds:
        draws = [torch.get_rng_state().numpy().tobytes(), random.getstate()]
        draws.append(np.random.get_state()[1].tobytes())
        state["random"] = [zlib.crc32(str(draw).encode()) for draw in draws]
    path = Path(__file__).with_name(f"seen-{os.getpid()}.jsonl")
    with path.open("a") as file:
        file.write(json.dumps([hook, state]) + "\\n")

class Net(nn.Sequential):
    def forward(self, x):
        seen("forward")
        return super().forward(x)

def model():
    seen("model")
    torch.manual_seed(0)
    return Net(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def batch(step):
    seen("batch", seeds=True)
    g = torch.Generator().manual_seed(step)
    x = torch.randn(16, 4, generator=g)
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    seen("loss")
    return nn.functional.mse_loss(output, target)

def optimizer(params):
    seen("optimizer", seeds=True)
    return torch.optim.SGD(params, lr=0.1 + 0.01 * float(torch.rand(())))
"""
WRAP = """
def wrap(model):
    seen("wrap")
    return DistributedDataParallel(model)
"""
STEP = """
def train_step(model, optimizer, batch):
    seen("train_step")
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
"""
COLLATE = """
make_pair = batch

def batch(step):
    inputs, targets = make_pair(step)
    return list(zip(inputs, targets))

def collate(samples):
    seen("collate")
    inputs, targets = zip(*samples)
    return torch.stack(inputs), torch.stack(targets)
"""
KINDS: dict[str, dict[str, Any]] = {
    "ranks": {"mode": "ddp", "world_size": 2},
    "ranks-averaged-by-hand": {"mode": "averaged", "world_size": 2},
    "ranks-rewrapped": {"mode": "ddp", "world_size": 2, "fixes": (Switch.REWRAP,)},
    "replicas": {"mode": "dp", "world_size": 2},
    "simulated": {"mode": "sim", "world_size": 2},
    "repeated": {"mode": "single", "permute": 1},
}


def _target(folder: Path, source: str) -> TargetRef:
    path = folder / "target.py"
    path.write_text(source, encoding="utf-8")
    return TargetRef(path=str(path))


def _seen(folder: Path) -> dict[str, set[str]]:
    """Returns the surroundings of each hook, as text, and forgets them."""
    found: dict[str, set[str]] = {}
    for path in folder.glob("seen-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            hook, state = json.loads(line)
            found.setdefault(hook, set()).add(json.dumps(state, sort_keys=True))
        path.unlink()
    return found


def _differing(reference: dict[str, set[str]], other: dict[str, set[str]]) -> Any:
    """Returns what differs, hook by hook: key -> values in both."""
    found: dict[str, Any] = {}
    for hook, states in other.items():
        every = [json.loads(s) for s in [*reference.get(hook, states), *states]]
        for key in every[0]:
            values = [state[key] for state in every]
            if any(value != values[0] for value in values):
                found[f"{key} of {hook}"] = values
    return found


@pytest.mark.parametrize("step", ["", STEP], ids=["loss", "train_step"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_hook_in_each_kind_of_run_has_the_surroundings_of_the_reference(
    kind: str, dtype: str, step: str, pool: Pool, tmp_path: Path
) -> None:
    session = Session(pool, _target(tmp_path, TARGET + WRAP + step))
    spec = session.reference(RunSpec(mode="single", dtype=dtype)).spec
    assert spec is not None
    reference = _seen(tmp_path)
    assert reference.keys() == (HOOKS | {"train_step"} if step else HOOKS)
    assert all(len(states) == 1 for states in reference.values())
    (outcome,) = session.run([spec.but(**KINDS[kind])])
    run = assemble.to_run(outcome, 0.1)
    assert (run.faults, run.gradients.mismatched) == ((), 0)
    found = _seen(tmp_path)
    wraps = {"wrap"} if KINDS[kind]["mode"] in ("ddp", "averaged", "sim") else set()
    assert found.keys() == reference.keys() | wraps
    assert _differing(reference, found) == {}


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_collate_in_each_kind_of_run_has_the_surroundings_of_the_reference(
    kind: str, dtype: str, pool: Pool, tmp_path: Path
) -> None:
    session = Session(pool, _target(tmp_path, TARGET + COLLATE))
    spec = session.reference(RunSpec(mode="single", dtype=dtype)).spec
    assert spec is not None
    reference = _seen(tmp_path)
    assert reference.keys() == HOOKS | {"collate"}
    assert len(reference["collate"]) == 1
    session.run([spec.but(**KINDS[kind])])
    found = _seen(tmp_path)
    assert found.keys() == reference.keys()
    assert _differing(reference, found) == {}


@pytest.mark.parametrize("step", ["", STEP], ids=["loss", "train_step"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_hook_in_probes_has_the_surroundings_of_the_reference(
    dtype: str, step: str, pool: Pool, tmp_path: Path
) -> None:
    ref = _target(tmp_path, TARGET + WRAP + step)
    spec = Session(pool, ref).reference(RunSpec(mode="single", dtype=dtype)).spec
    assert spec is not None
    reference = _seen(tmp_path)
    arguments: dict[str, Any] = {"ref": ref, "trains_before": True}
    given = {"spec": spec, "world_size": 2, **arguments}
    (made,) = pool.run(Job(function=RECORD, arguments=given), SOLO)
    assert made.value.failed is None
    found = _seen(tmp_path)
    assert found.keys() == reference.keys()
    assert _differing(reference, found) == {}
    given = {"spec": spec.but(mode="averaged", world_size=2), **arguments}
    given["trace"] = made.value.trace
    ranks = pool.run(Job(function=JUDGE, arguments=given), 2)
    assert [rank.value.failed for rank in ranks] == [None, None]
    found = _seen(tmp_path)
    assert found.keys() == reference.keys() | {"wrap"}
    assert _differing(reference, found) == {}


# A factor of the gradients that every process draws in its step.
DRAWN = """
def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    (torch.rand(()) * loss(model(batch[0]), batch[1])).backward()
    optimizer.step()
"""


def _verdict(pool: Pool, ref: TargetRef) -> str:
    session = Session(pool, ref)
    spec = session.reference(RunSpec(mode="single")).spec
    assert spec is not None
    (outcome,) = session.run([spec.but(mode="ddp", world_size=2)])
    return assemble.to_run(outcome, 1e-9).verdict


def test_seed_that_the_optimizer_sets_holds_for_the_steps_on_both_sides(
    pool: Pool, tmp_path: Path
) -> None:
    seeds = "def optimizer(params):\n    torch.manual_seed(3)\n"
    seeds += "    return torch.optim.SGD(params, lr=0.1)\n"
    assert _verdict(pool, _target(tmp_path, TARGET + DRAWN + seeds)) == "equivalent"


def test_draw_of_the_optimizer_does_not_seed_the_steps(
    pool: Pool, tmp_path: Path
) -> None:
    # Each rank still has its own random numbers in the step.
    assert _verdict(pool, _target(tmp_path, TARGET + DRAWN)) == "divergent"


@pytest.mark.parametrize(
    "optimizer",
    [
        # The state of the optimizer is drawn, in the default dtype.
        "g = torch.Generator().manual_seed(2)\n"
        "    made = torch.optim.SGD(params, lr=0.1, momentum=0.9)\n"
        "    for p in params:\n"
        "        start = torch.randn(p.shape, generator=g).to(p)\n"
        "        made.state[p]['momentum_buffer'] = start\n"
        "    return made\n",
        # It is cast to the default dtype.
        "lr = float(torch.tensor(0.1) / 3)\n"
        "    return torch.optim.SGD(params, lr=lr)\n",
        # It is drawn by torch's own generator, by numpy and by Python.
        "lrs = torch.rand(()), np.random.rand(), random.random()\n"
        "    return torch.optim.SGD(params, lr=0.1 * sum(map(float, lrs)))\n",
    ],
    ids=["drawn", "cast", "unseeded"],
)
def test_optimizer_that_draws_or_casts_when_it_is_built_is_equivalent(
    optimizer: str, pool: Pool, tmp_path: Path
) -> None:
    source = f"{TARGET}\ndef optimizer(params):\n    params = list(params)\n"
    assert _verdict(pool, _target(tmp_path, f"{source}    {optimizer}")) == "equivalent"


def _calls_of_hooks(path: Path) -> set[str]:
    """Returns the hooks of a target that a module calls."""
    names = {"build", "batch_at", "optimizer", "wrap", "train_step"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return {
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute)
        and call.attr in names
        and ast.unparse(call.value) in ("target", "self.target")
    }


def test_no_other_module_calls_a_hook() -> None:
    paths = [*(PACKAGE / "run").rglob("*.py"), *(PACKAGE / "diagnose").rglob("*.py")]
    found = {
        path.relative_to(PACKAGE).as_posix(): calls
        for path in sorted(paths)
        if (calls := _calls_of_hooks(path))
    }
    # A step runs inside user_code.steps.
    assert found == {
        "diagnose/probes/training.py": {"train_step"},
        "run/steps.py": {"train_step"},
        "run/model/user_code.py": {"build", "batch_at", "optimizer", "wrap"},
    }
