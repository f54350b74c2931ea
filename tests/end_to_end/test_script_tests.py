"""Training scripts in pytest: --ddpcheck-run, and the fixture with script=."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_plugin import Session, Started, run, start

SCRIPT = """\
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
rows = torch.randn(48, 6)
data = TensorDataset(rows, rows[:, :3].sin())
sampler = DistributedSampler(data, shuffle=False)
size = 8 // int(os.environ["WORLD_SIZE"])
for x, y in DataLoader(data, size, sampler=sampler):
    optimizer.zero_grad()
    mse_loss(model(x), y, reduction=sys.argv[2]).backward()
    optimizer.step()
"""
TESTS = """\
import pytest

import ddpcheck as public


def test_sum(ddpcheck):
    with pytest.raises(public.DivergenceError, match="loss/sum-reduction"):
        ddpcheck(script="train.py 0.1 sum", fix=False)


def test_wrong_arguments(ddpcheck):
    with pytest.raises(public.UsageError, match="script-missing-file"):
        ddpcheck(script=["none.py"])
    with pytest.raises(TypeError, match="script= is given, which decides modes itself"):
        ddpcheck(script="train.py", modes=["ddp"])
    with pytest.raises(TypeError, match="cuda_as_cpu= is given, but no script="):
        ddpcheck("train.py", cuda_as_cpu=True)
"""


@pytest.fixture(scope="module")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "test_user.py").write_text(TESTS, encoding="utf-8")
    texts = ("train.py 0.1 mean", "train.py 0.1 sum")
    scripts = [part for text in texts for part in ("--ddpcheck-run", text)]
    accepted = "--ddpcheck-accept=loss/sum-reduction=as published"
    workers = ("-n2", "--dist", "worksteal")
    more = ("-rA", "-v", "--ddpcheck-no-fix", "--junitxml=out.xml")
    started = start(folder, *workers, *scripts, accepted, *more, "test_user.py")
    with started.process:
        yield started
        started.process.kill()


@pytest.fixture(scope="module")
def session(_started: Started) -> Session:
    """Two scripts and the tests of a module, on two workers."""
    return _started.end()


pytestmark = pytest.mark.xdist_group("script tests")


def test_scripts_are_items_beside_the_tests_of_a_module(session: Session) -> None:
    assert session.counts() == {"passed": 3, "xfailed": 1}, session.text
    lines = re.findall(r"^([A-Z]+) (train.py::.*)", session.text, re.MULTILINE)
    assert sorted(lines) == [
        ("PASSED", "train.py::ddp-W2[0.1 mean]"),
        (
            "XFAIL",
            "train.py::ddp-W2[0.1 sum] - loss/sum-reduction: as published",
        ),
    ]


def test_script_that_passes_shows_its_report(session: Session) -> None:
    assert "\nddpcheck train.py: Linear, 21 parameters" in session.text
    assert "\nEQUIVALENT: 1 of 1 run, " in session.text


def test_junit_xml_has_the_script_and_its_numbers(session: Session) -> None:
    text = (session.folder / "out.xml").read_text(encoding="utf-8")
    assert 'name="ddp-W2[0.1 mean]"' in text
    assert '<property name="worst_excess"' in text


@pytest.mark.slow
def test_script_alone_is_all_that_is_collected_and_fails_with_its_report(
    session: Session, tmp_path: Path
) -> None:
    for name in ("train.py", "test_user.py"):
        source = (session.folder / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(source, encoding="utf-8")
    table = '[tool.ddpcheck]\nfix = false\nmodes = ["dp"]\n'
    (tmp_path / "pyproject.toml").write_text(table, encoding="utf-8")
    done = run(tmp_path, "--ddpcheck-run", "train.py 0.1 sum")
    assert (done.exit_code, done.counts()) == (1, {"failed": 1}), done.text
    text = done.section("train.py: ddp-W2[0.1 sum]")
    assert text.startswith("divergent: loss/sum-reduction\n\nddpcheck train.py: ")
    assert "\nDIVERGENT: 1 of 1 run, " in text


def test_scripts_of_the_settings_are_additional_tests(session: Session) -> None:
    more = ("-o", "addopts=--ddpcheck-run 'train.py 0.1 mean'", "--collect-only", "-q")
    done = run(session.folder, "--ddpcheck-world-sizes=2,4", *more)
    assert done.lines[:4] == [
        "test_user.py::test_sum",
        "test_user.py::test_wrong_arguments",
        "train.py::ddp-W2[0.1 mean]",
        "train.py::ddp-W4[0.1 mean]",
    ]
    assert "4 tests collected" in done.text


def test_script_that_is_not_there_ends_the_session(tmp_path: Path) -> None:
    done = start(tmp_path, "--ddpcheck-run", "none.py --lr 1")
    _, errors = done.process.communicate(timeout=300)
    assert done.process.returncode == 4
    assert "ddpcheck: there is no file none.py [script-missing-file]" in errors
