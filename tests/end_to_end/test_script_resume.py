"""`ddpcheck run --resume-at`: a script is stopped, started again, and compared."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.conftest import Terminal

SCRIPT = """\
import argparse
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume")
parser.add_argument("--forget", nargs="*", default=[])
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(6, 3))
parts = {"model": model.module, "optimizer": torch.optim.Adam(model.parameters())}
parts["scheduler"] = torch.optim.lr_scheduler.StepLR(parts["optimizer"], 3, 0.5)
data = TensorDataset(torch.randn(32, 6))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8 // dist.get_world_size(), sampler=sampler)
done = 0
if args.resume:
    saved = torch.load(args.resume)
    for name, part in parts.items():
        if name not in args.forget:
            part.load_state_dict(saved[name])
    done = 0 if "sampler" in args.forget else saved["done"]
first, skip = divmod(done, len(loader))
for epoch in range(first, 4):
    sampler.set_epoch(epoch)
    for number, (x,) in enumerate(loader):
        if epoch == first and number < skip:
            continue
        parts["optimizer"].zero_grad()
        (model(x) - x[:, :3]).square().mean().backward()
        parts["optimizer"].step()
        parts["scheduler"].step()
        done += 1
        if dist.get_rank() == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save({**states, "done": done}, "last.pt")
dist.destroy_process_group()
"""
SHARDED = """\
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = TensorDataset(torch.arange(192.0).view(32, 6) / 192)
sampler = DistributedSampler(data)
loader = DataLoader(data, 8 // dist.get_world_size(), sampler=sampler)
first = 0
while os.path.isdir(f"saved-{first}"):
    first += 1
if first:
    states = get_state_dict(model, optimizer)
    dcp.load(dict(zip("mo", states)), checkpoint_id=f"saved-{first - 1}")
    names = "model_state_dict", "optim_state_dict"
    set_state_dict(model, optimizer, **dict(zip(names, states)))
    if "--forget" in sys.argv:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(first, 4):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        (model(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    states = get_state_dict(model, optimizer)
    dcp.save(dict(zip("mo", states)), checkpoint_id=f"saved-{epoch}")
"""
RESUME = ("run", "--resume-at", "5", "--resume-args=--resume last.pt")
OUTPUT = ("--json", "report.json", "--report-dir", "reports")


def _findings(terminal: Terminal, *forgets: str) -> list[tuple[str, list[str]]]:
    """Returns slug and facts of the findings on a script that forgets something."""
    name = terminal.write(SCRIPT, "train.py")
    ended = terminal.run(*RESUME, *OUTPUT, name, "--forget", *forgets)
    assert ended.exit_code == (1 if forgets else 0), ended.stdout + ended.stderr
    report = json.loads((terminal.folder / "report.json").read_text(encoding="utf-8"))
    assert not (terminal.folder / "last.pt").exists()
    return [(found["slug"], found["facts"]) for found in report["findings"]]


def test_script_that_resumes_is_equivalent(terminal: Terminal) -> None:
    assert _findings(terminal) == []


@pytest.mark.slow
def test_script_that_forgets_the_optimizer_is_divergent(here: Terminal) -> None:
    assert _findings(here, "optimizer", "scheduler") == [
        (
            "state/lost-at-resume",
            [
                "all ranks: 6 of 6 numbers of the optimizer are missing: step of "
                "weight, step of bias, exp_avg of weight and 3 more",
                "all ranks: lr of update 6 is 0.001, in the run that went on 0.0005",
            ],
        )
    ]


@pytest.mark.slow
def test_script_that_begins_its_epochs_anew_is_divergent(here: Terminal) -> None:
    assert _findings(here, "sampler") == [
        (
            "data/resume-order",
            [
                "all ranks: update 6 draws other samples: those of update 1 of the run "
                "that went on"
            ],
        )
    ]


def _with_averages(source: str) -> str:
    """Returns the script with an average of its weights and a gradient scaler."""
    average = "torch.optim.swa_utils.AveragedModel(model.module)"
    edits = {
        "data = T": f'parts["average"] = {average}\n'
        'parts["scaler"] = torch.amp.GradScaler("cpu")\ndata = T',
        "(model(x) - x[:, :3]).square().mean()": 'parts["scaler"].scale('
        "(model(x) - x[:, :3]).square().mean())",
        '        parts["optimizer"].step()': '        parts["scaler"].step('
        'parts["optimizer"])\n        parts["scaler"].update()\n'
        '        parts["average"].update_parameters(model.module)',
    }
    for old, new in edits.items():
        assert old in source
        source = source.replace(old, new)
    return source


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [(), ("average", "scaler")])
def test_average_and_scaler_that_are_not_restored_are_named(
    forgets: tuple[str, ...], here: Terminal
) -> None:
    name = here.write(_with_averages(SCRIPT), "train.py")
    ended = here.run(*RESUME, *OUTPUT, name, "--forget", *forgets)
    assert ended.exit_code == int(bool(forgets)), ended.stdout + ended.stderr
    report = json.loads((here.folder / "report.json").read_text(encoding="utf-8"))
    found = [(one["slug"], one["facts"]) for one in report["findings"]]
    lost = [
        "all ranks: 1 of 5 numbers of gradient scalers differ, relative difference up "
        "to 1: growth_tracker of scaler 1",
        "all ranks: 2 of 2 averages of weights differ, relative difference up to "
        "0.00955: parts['average'].module.weight, parts['average'].module.bias",
    ]
    assert found == ([("state/lost-at-resume", lost)] if forgets else [])


@pytest.mark.slow
def test_other_noise_is_accepted_where_no_state_of_generators_is_kept(
    here: Terminal,
) -> None:
    noisy = SCRIPT.replace("(model(x) - x", "(model(nn.functional.dropout(x)) - x")
    keeps = noisy.replace('"done": done}', '"done": done, "n": torch.get_rng_state()}')
    for source, exit_code in ((noisy, 0), (keeps, 1)):
        ended = here.run(*RESUME, *OUTPUT, here.write(source, "train.py"))
        assert ended.exit_code == exit_code, ended.stdout + ended.stderr
        report = json.loads((here.folder / "report.json").read_text(encoding="utf-8"))
        slugs = [found["slug"] for found in report["findings"]]
        assert slugs == ["rng/lost-at-resume"]


@pytest.mark.slow
def test_script_that_does_not_resume_is_refused(here: Terminal) -> None:
    name = here.write(SCRIPT, "train.py")
    ended = here.run("run", "--resume-at", "2", name)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == (
        "ddpcheck: train.py does not go on from update 2 when it is started again "
        "[script-not-resumed]\n"
        "  expected   a script that has saved its training by then, and resumes from "
        "that\n"
        "  found      its weights are those before the first update; until then it "
        "made last.pt\n"
        "  fix        name the arguments with which it resumes: "
        '--resume-args="--resume FILE"; or a later --resume-at\n'
        "  more       ddpcheck --explain script-not-resumed\n"
    )


@pytest.mark.slow
def test_update_after_the_end_of_the_script_is_refused(here: Terminal) -> None:
    ended = here.run("run", "--resume-at", "16", here.write(SCRIPT, "train.py"))
    assert ended.exit_code == 2
    assert "found      its end after 16 updates\n" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True])
def test_sharded_script_resumes_from_its_distributed_checkpoint(
    forgets: bool,  # noqa: FBT001
    terminal: Terminal,
) -> None:
    arguments = ["--forget"] * forgets
    name = terminal.write(SHARDED, "train.py")
    ended = terminal.run("run", "--resume-at", "6", *OUTPUT, name, *arguments)
    assert ended.exit_code == int(forgets), ended.stdout + ended.stderr
    report = json.loads((terminal.folder / "report.json").read_text(encoding="utf-8"))
    slugs = [found["slug"] for found in report["findings"]]
    assert slugs == ["state/lost-at-resume"] * forgets
    assert report["warnings"] == [
        "resume_at: the script resumes after update 4, where it has saved, not 6"
    ]
    assert not list(terminal.folder.glob("saved-*"))
