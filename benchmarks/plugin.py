"""A project of 20 tests with the fixture under `pytest -n WORKERS`, against its bound.

    python benchmarks/plugin.py [--workers 2] [--width 512]

`mathematics` is a worker's share of the tests, each as a plain loop without ddpcheck:
three steps in one process on the global batch, and as much again for the ranks; all
workers at once. `import` is `import torch, torch._dynamo`, all workers at once. `bound`
is twice the mathematics and one import; `pytest` the wall time of the whole session,
pytest's own start and end included. Seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """\
import pytest


def model():
    import torch

    torch.manual_seed(0)
    width = {width}
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    return torch.nn.Sequential(*layers)


def batch():
    import torch

    g = torch.Generator().manual_seed(1)
    return tuple(torch.randn(256, {width}, generator=g) for _ in range(2))


def loss(output, target):
    return (output - target).square().mean()


@pytest.mark.parametrize("number", range({tests}))
def test_model(ddpcheck, number):
    ddpcheck(model, batch, loss, world_sizes=[2], modes=["ddp"])
"""
PLAIN = """\
import time

import torch
from test_project import batch, loss, model

torch.set_num_threads(1)
started = time.monotonic()
for _ in range({repetitions}):
    net, (x, y) = model().double(), batch()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(net(x.double()), y.double()).backward()
        optimizer.step()
print(time.monotonic() - started)
"""
NUM_TESTS = 20


def main() -> None:
    """Prints one row per quantity."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = TESTS.format(width=options.width, tests=NUM_TESTS)
        (folder / "test_project.py").write_text(text, encoding="utf-8")
        session = session_s(folder, options.workers)
        each = -(-NUM_TESTS // options.workers)
        share = plain_s(folder, options.workers, repetitions=2 * each)
    imported = import_s(options.workers)
    bound = 2 * share + imported
    for what, seconds in (
        ("mathematics", share),
        ("import", imported),
        ("bound", bound),
        ("pytest", session),
    ):
        print(f"{what:<12} {seconds:7.2f}")
    print(f"pytest / bound {session / bound:.2f}")


def import_s(workers: int) -> float:
    """Returns the wall time of that many processes importing torch at once."""
    command = [sys.executable, "-c", "import torch, torch._dynamo"]
    started = time.monotonic()
    processes = [subprocess.Popen(command) for _ in range(workers)]
    for process in processes:
        process.wait()
    return time.monotonic() - started


def plain_s(folder: Path, workers: int, *, repetitions: int) -> float:
    """Returns the time of a plain loop in the slowest of that many processes."""
    command = [sys.executable, "-c", PLAIN.format(repetitions=repetitions)]
    processes = [
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        for _ in range(workers)
    ]
    return max(float(process.communicate()[0]) for process in processes)


def session_s(folder: Path, workers: int) -> float:
    """Returns the wall time of the project's session, nothing of others loaded."""
    plugins = ("-p", "ddpcheck", "-p", "xdist", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plugins, f"-n{workers}", "-q"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONPATH"] = str(ROOT)
    started = time.monotonic()
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
