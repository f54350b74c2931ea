"""Scripts that train when they are imported are recognised, and are not executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.errors.problem import UsageError
from ddpcheck.target import scripts
from tests.end_to_end.wrong_files import BATCH, HEAD, LOSS, MODEL, target

FLAT = """\
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn

world = int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
for step in range(10_000):
    x = torch.randn(32 // world, 8)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), out / "ckpt.pt")
"""
LOOP = """\
for batch in loader:
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
"""
GUARD = "if __name__ == '__main__':\n    main()\n"
MAIN = "def main():\n    loss().backward()\n"

SCRIPTS = {
    "flat": FLAT,
    "loop-over-batches": HEAD + "model = nn.Linear(4, 2)\n" + LOOP,
    "call-of-main": HEAD + MAIN + "main()\n",
    "exit-with-main": HEAD + "import sys\n" + MAIN + "sys.exit(main())\n",
    "assigned-call-of-own": HEAD + MAIN + "history = main()\n",
    "trainer": HEAD + "history = Trainer(model=Net()).fit(data)\n",
    "under-another-condition": HEAD
    + MAIN
    + "if torch.cuda.is_available():\n    main()",
    "in-a-try": HEAD + MAIN + "try:\n    main()\nexcept OSError:\n    pass\n",
    "names-that-are-values": HEAD
    + "model = nn.Linear(4, 2)\nbatch = torch.randn(8, 4)\nloss = nn.MSELoss()\n"
    + "while True:\n    loss(model(batch), batch).backward()\n",
    "method-of-that-name": HEAD
    + "class Data:\n    def batch(self): ...\n    model = 3\n"
    + "train(Data())\n",
}

# Imported as before: a target, a file with other names, or one that may bind them.
OTHERS = {
    "target": target(),
    "target-that-warms-up": target(end="model()(batch()[0]).sum().backward()\n"),
    "target-that-trains-a-teacher": target(
        end="teacher = model()\nfor _ in range(3):\n"
        "    teacher(batch()[0]).sum().backward()\n"
    ),
    "first-of-a-loader": HEAD + MODEL + LOSS + "for batch in loader:\n    break\n",
    "names-in-a-branch": HEAD
    + "if True:\n"
    + "    model = batch = None\n    train()\n",
    "imported-names": "from here import model, data as batch\nprepare()\n",
    "star": "from here import *\nmain()\n",
    "globals": "globals()['model'] = globals()['batch'] = None\nmain()\n",
    "exec": "exec(open('names.py').read())\nmain()\n",
    "modules": "import sys\nsetup(sys.modules[__name__])\n",
    "getattr": "def __getattr__(name): ...\nmain()\n",
    "global": "def main():\n    global model, batch\n    model = batch = 1\nmain()\n",
    "no-calls": HEAD + MODEL + "criterion = nn.CrossEntropyLoss()\n",
    "setup": HEAD + MODEL + "torch.manual_seed(0)\ntorch.set_num_threads(1)\n",
    "guard": HEAD + MODEL + MAIN + GUARD,
    "decorated": HEAD + "@register('net')\nclass Net(nn.Module):\n    x = make()\n",
    "syntax-error": "def model(:\n",
    "binary": "\0",
}


def _write(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_without_the_names_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="target-script"):
        scripts.check(_write(tmp_path, SCRIPTS[name]), ("model", "batch"))


@pytest.mark.parametrize("name", OTHERS)
def test_file_that_may_be_a_target_passes(name: str, tmp_path: Path) -> None:
    scripts.check(_write(tmp_path, OTHERS[name]), ("model", "batch"))


def test_names_given_by_options_are_those_that_count(tmp_path: Path) -> None:
    path = _write(tmp_path, HEAD + MODEL + BATCH + "main()\n")
    scripts.check(path, ("model", "batch"))
    with pytest.raises(UsageError, match="defines no `Net` and no `data`"):
        scripts.check(path, ("Net", "data"))


def test_script_whose_names_are_values_shows_that_it_trains(tmp_path: Path) -> None:
    path = _write(tmp_path, SCRIPTS["names-that-are-values"])
    with pytest.raises(UsageError) as caught:
        scripts.check(path, ("model", "batch"))
    assert caught.value.problem.message == (
        "train.py is a training script: it was not executed, because it trains in a "
        "loop at its top level, with `model` and `batch` of its own"
    )


@pytest.mark.parametrize(
    ("start", "fix"),
    [
        (
            "dist.init_process_group('gloo')\n",
            "ddpcheck run train.py, with its arguments, checks it as it is",
        ),
        (
            "main()\n",
            "ddpcheck run train.py, if torchrun starts it; else ddpcheck --init "
            "target.py, and copy there what builds its model, batch and loss",
        ),
    ],
    ids=["group", "no-group"],
)
def test_script_is_answered_with_the_command_that_checks_it(
    start: str, fix: str, tmp_path: Path
) -> None:
    path = _write(tmp_path, HEAD + MODEL + start)
    with pytest.raises(UsageError) as caught:
        scripts.check(path, ("model", "batch"))
    assert caught.value.problem.fix == fix
