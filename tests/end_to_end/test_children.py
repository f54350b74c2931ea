"""Processes that user code starts import the target, as under plain Python."""

from __future__ import annotations

import pytest

from tests.end_to_end.conftest import Terminal

# torch is imported where it is needed: an interpreter of a child need not wait for it.
TARGET = """
import multiprocessing, threading, time

def model():
    import torch
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)

def scaled(i):
    return i / 256

def batch():
    import torch
    with multiprocessing.get_context("METHOD").Pool(1) as pool:
        values = pool.map(scaled, range(256))
    x = torch.tensor(values).view(32, 8)
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    return (output - target).square().mean()
"""
LOADER = """
import torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.full((4,), float(i)), torch.ones(1)

model = torch.nn.Linear(4, 1)

def batch():
    return next(iter(torch.utils.data.DataLoader(
        Rows(), batch_size=8, num_workers=1, multiprocessing_context="METHOD")))

def loss(output, target):
    return (output - target).square().mean()
"""
ARGUMENTS = ("--world-sizes", "2", "--modes", "ddp", "--steps", "1", "-q")


@pytest.mark.parametrize(
    "name", ["mymodel.py", pytest.param("my-model.py", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_every_start_method_import_the_target(
    method: str, name: str, terminal: Terminal
) -> None:
    terminal.write(TARGET.replace("METHOD", method), name)
    ended = terminal.run(name, *ARGUMENTS)
    assert (ended.exit_code, ended.stdout) == (
        0,
        "EQUIVALENT: 1 of 1 run, 6 comparisons equal\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_import_the_targets_classes(
    method: str, terminal: Terminal
) -> None:
    terminal.write(LOADER.replace("METHOD", method))
    ended = terminal.run("mymodel.py", *ARGUMENTS)
    assert ended.exit_code == 0


HANG = """
def wait():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    time.sleep(1000)
"""


def test_hang_shows_the_line_of_user_code_and_the_main_thread_first(
    terminal: Terminal,
) -> None:
    source = TARGET.replace("METHOD", "fork") + HANG
    terminal.write(source.replace("    import torch\n    with", "    wait()\n    with"))
    ended = terminal.run("mymodel.py", *ARGUMENTS, "--timeout-s", "2")
    assert ended.exit_code == 3
    first, *rest = ended.stderr[ended.stderr.index("ddpcheck: not") :].splitlines()
    assert first.startswith(
        "ddpcheck: not checked: the single-process run did not end within "
    )
    assert first.endswith(
        " s, at mymodel.py:24 in wait; if it needs longer: --timeout-s"
    )
    assert rest[1].startswith("    Current thread 0x")
    assert rest[2].endswith('mymodel.py", line 24 in wait')
