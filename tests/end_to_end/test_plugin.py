"""pytest as a user runs it, on target files and with the fixture.

Every session imports torch once per worker, so each serves several tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddpcheck.ranks.folder import base_folder
from ddpcheck.target.options import DEFINITIONS, SETTINGS
from tests.end_to_end.conftest import processes_of

ROOT = Path(__file__).parents[2]
TARGET = """\
import time

import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(12, 6, generator=g), torch.randn(12, 3, generator=g)


def loss(output, target):
    while len(target) == 3:  # the shards of 4 ranks
        time.sleep(0.01)
    return (output - target).square().mean()
"""
OPTIONS = (
    "--ddpcheck-timeout-s=5",
    "--ddpcheck-batch-norm=asis,frozen",
    "--ddpcheck-loss=asis,sum",
    "--ddpcheck-accept=norm/local-batch-stats=by design",
)
RUNS = (
    "dp-W2",
    "ddp-W2",
    "ddp-W2-bn.frozen",
    "ddp-W2-bn.frozen-loss.sum",
    "ddp-W4",
    "ddp-W4-bn.frozen",
    "ddp-W8",
)
# torch is imported where the functions run: in ranks, not in the test's process.
SOUND = """\
def model():
    import torch

    torch.manual_seed(0)
    return torch.nn.Linear(6, 3)


def batch():
    import torch

    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=g), torch.randn(8, 3, generator=g)


def loss(output, target):
    return (output - target).square().mean()
"""
TESTS = """\
import sys
import threading
import time

import pytest
from sound import batch, loss, model

import ddpcheck as public

SCALE = 1


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, output, target):
        return self.scale * SCALE * loss(output, target)


def momentum(params):
    import torch

    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    optimizer.step()


def twice(model):
    from torch.nn.parallel import DistributedDataParallel

    model.weight.register_hook(lambda grad: grad * 2)
    return DistributedDataParallel(model)


@pytest.mark.parametrize("size", range(2, 13))
def test_sound(ddpcheck, size):
    def batch_of():  # a closure
        x, y = batch()
        return x.repeat(size, 1)[:size * 2], y.repeat(size, 1)[:size * 2]

    report = ddpcheck(model, batch_of, loss, world_sizes=(2,), modes=["ddp"])
    assert report.target.name == f"test_sound[{size}]"
    assert (report.verdict, len(report.runs)) == ("equivalent", 1)


def test_objects_and_lambdas_of_the_test(ddpcheck, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3)
    ddpcheck(lambda: model(), batch, Scaled(2), world_sizes=[2], tolerance=1e-8)


def test_environment_of_the_test_reaches_the_ranks(ddpcheck, monkeypatch):
    monkeypatch.setenv("MYFLAG", "3")

    def scaled():
        import os

        import torch

        torch.manual_seed(0)
        return torch.nn.Linear(6, int(os.environ["MYFLAG"]))

    ddpcheck(scaled, batch, loss, world_sizes=[2], modes=["ddp"])


def test_all_parts_of_a_target(ddpcheck):
    parts = {"optimizer": momentum, "wrap": None, "train_step": step}
    report = ddpcheck(model, batch, world_sizes=[2], steps=4, **parts)
    assert (report.target.steps, report.target.optimizer) == (4, "SGD")


def test_own_wrap_is_used(ddpcheck):
    with pytest.raises(public.DivergenceError) as raised:
        ddpcheck(model, batch, loss, wrap=twice, world_sizes=[2], fix=False)
    assert raised.value.report.runs[0].gradients.worst.name == "weight"


def test_sum(ddpcheck):
    total = lambda output, target: (output - target).square().sum()
    ddpcheck(model, batch, total, world_sizes=[2], modes=["ddp"])


def test_accepted(ddpcheck):
    total = lambda output, target: (output - target).square().sum()
    accept = {"loss/sum-reduction": "as published"}
    ddpcheck(model, batch, total, world_sizes=[2], modes=["ddp"], accept=accept)


def test_hang(ddpcheck):
    def never(output, target):
        while len(target) == 4:
            time.sleep(0.01)
        return loss(output, target)

    ddpcheck(
        model, batch, never, world_sizes=[2], modes=["ddp"], timeout_s=1.0, fix=False
    )


def test_wrong_arguments(ddpcheck):
    with pytest.raises(public.UsageError, match=r"steps= cannot be 0 \\[option-value"):
        ddpcheck(model, batch, loss, steps=0)
    with pytest.raises(TypeError, match="no argument 'world_size'"):
        ddpcheck(model, batch, loss, world_size=[2])
    lock = threading.Lock()
    with pytest.raises(public.UsageError, match=r"\\[target-pickle\\]"):
        ddpcheck(model, batch, lambda output, target: lock)
    with pytest.raises(public.UsageError, match=r"\\[target-name-kind\\]"):
        ddpcheck(model, 3, loss)


def test_without_a_loss(ddpcheck):
    with pytest.raises(public.UsageError, match=r"\\[target-no-loss\\]"):
        ddpcheck(model, batch)


def test_api_in_a_test(ddpcheck):
    assert "torch" not in sys.modules
"""

HANGS = """\
import time

from sound import batch, model


def test_hang(ddpcheck):
    def never(output, target):
        import torch

        if torch.distributed.is_initialized():
            open("mark", "w").close()
            time.sleep(600)
        return output.mean()

    ddpcheck(model, batch, never, world_sizes=[2], modes=["ddp"])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The output of a pytest session."""

    exit_code: int
    lines: list[str]
    folder: Path

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def counts(self) -> dict[str, int]:
        """Returns the numbers of the last line: {"failed": 2, ...}."""
        return {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", self.last())}

    def last(self) -> str:
        return self.lines[-1].partition(" in ")[0]

    def section(self, name: str) -> str:
        """Returns the output on one failed test."""
        parts = re.split(r"\n_{3,} (.+?) _{3,}\n", self.text)
        return dict(zip(parts[1::2], parts[2::2], strict=True))[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A pytest session that may still run."""

    process: subprocess.Popen[str]
    folder: Path

    def end(self) -> Session:
        """Waits for it."""
        stdout, stderr = self.process.communicate(timeout=300)
        assert not stderr, stderr
        return Session(
            exit_code=self.process.returncode,
            lines=stdout.splitlines(),
            folder=self.folder,
        )


def start(folder: Path, *arguments: str, autoload: bool = False) -> Started:
    """Runs pytest; without `autoload` the plugins of others are left out, for speed."""
    if not autoload:
        arguments = ("-p", "ddpcheck", "-p", "xdist", *arguments)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env=_environment(autoload=autoload),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return Started(process=process, folder=folder)


def run(folder: Path, *arguments: str, autoload: bool = False) -> Session:
    """Returns the output of a pytest session that runs to its end."""
    return start(folder, *arguments, autoload=autoload).end()


def _environment(*, autoload: bool) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    if not autoload:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return environment


@pytest.fixture(scope="module")
def targets(
    tmp_path_factory: pytest.TempPathFactory,
    _user_project: Started,  # runs meanwhile
) -> Session:
    """A target that is sound, accepted, divergent, hanging or skipped by its run."""
    folder = tmp_path_factory.mktemp("targets")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "mixed.py").write_text(TARGET, encoding="utf-8")
    items = [f"mixed.py::{name}" for name in RUNS]
    more = ("-k", "not (W4 and frozen)", "--junitxml=out.xml", "-rA", "--durations=1")
    return run(folder, "--ddpcheck", *items, *OPTIONS, *more)


@pytest.fixture(scope="module")
def _user_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "sound.py").write_text(SOUND, encoding="utf-8")
    (folder / "test_user.py").write_text(TESTS, encoding="utf-8")
    items = ("sound.py::ddp-W2", "sound.py::ddp-W4")
    first = ("-n2", "-v", "-p", "no:cacheprovider", "--strict-markers")
    more = ("--durations=2", "--junitxml=out.xml", "-k", "not never_selected")
    started = start(folder, *first, "--ddpcheck", *items, "test_user.py", *more)
    with started.process:  # closes its pipes, where no test has asked for its end
        yield started
        started.process.kill()


@pytest.fixture(scope="module")
def user_project(_user_project: Started) -> Session:
    """20 tests with the fixture and two runs of a target, on two workers."""
    return _user_project.end()


pytestmark = pytest.mark.xdist_group("plugin")


def test_items_are_the_runs_of_the_matrix(targets: Session) -> None:
    outcomes = re.findall(r"^([A-Z]+) mixed.py::(\S+)", targets.text, re.MULTILINE)
    assert sorted(outcomes) == [
        ("FAILED", "ddp-W2-bn.frozen-loss.sum"),
        ("FAILED", "ddp-W4"),
        ("PASSED", "ddp-W2-bn.frozen"),
        ("XFAIL", "ddp-W2"),
        ("XFAIL", "dp-W2"),
    ]
    assert targets.exit_code == 1
    assert targets.counts() == {
        "failed": 2,
        "passed": 1,
        "skipped": 1,
        "deselected": 1,
        "xfailed": 2,
    }


def test_run_outside_the_matrix_is_skipped_with_the_reason(targets: Session) -> None:
    skipped = [line for line in targets.lines if line.startswith("SKIPPED [1]")]
    assert len(skipped) == 1
    assert skipped[0].endswith(": the batch of 12 is not divisible by 8")


def test_accepted_run_is_xfail_with_the_reason(targets: Session) -> None:
    line = "XFAIL mixed.py::dp-W2 - norm/local-batch-stats: by design"
    assert line in targets.lines


def test_divergent_run_fails_with_the_report(targets: Session) -> None:
    text = targets.section("mixed.py: ddp-W2-bn.frozen-loss.sum")
    first, _, report = text.partition("\n\n")
    assert first == "divergent: loss/sum-reduction"
    assert report.startswith("ddpcheck mixed.py: Sequential, 27 parameters")
    assert "\nDIVERGENT: 1 of 1 run, " in report
    summary = f"FAILED mixed.py::ddp-W2-bn.frozen-loss.sum - {first}"
    assert summary in targets.lines


def test_hang_is_one_failure_with_stacks_and_the_session_goes_on(
    targets: Session,
) -> None:
    text = targets.section("mixed.py: ddp-W4")
    assert text.startswith("divergent: ")
    for rank in range(4):
        sentence = (
            rf"ddp W=4, rank {rank} hung: waited until the deadline, at mixed\.py:\d+"
        )
        assert re.search(rf"{sentence} in loss\n", text)
    assert re.search(r'File ".*mixed.py", line \d+ in loss', text)
    assert "mixed.py::ddp-W4" in targets.text.partition("slowest 1 dur")[2]
    assert targets.lines.count("PASSED mixed.py::ddp-W2-bn.frozen") == 1


def test_junit_xml_has_the_items_and_their_numbers(targets: Session) -> None:
    suite = ET.parse(targets.folder / "out.xml").getroot().find("testsuite")
    assert suite is not None
    assert [suite.get(k) for k in ("tests", "failures", "errors")] == ["6", "2", "0"]
    case = suite.find("testcase[@name='ddp-W2-bn.frozen']")
    assert case is not None
    found = case.findall("properties/property")
    values = {p.get("name"): p.get("value") for p in found}
    assert set(values) == {"compared", "worst_excess"}
    assert int(values["compared"] or "") > 10
    failure = suite.find("testcase[@name='ddp-W2-bn.frozen-loss.sum']/failure")
    assert failure is not None
    assert "loss/sum-reduction" in (failure.text or "")


@pytest.mark.slow
def test_last_failed_and_exit_first(targets: Session) -> None:
    more = ("--lf", "-x", "-v", "-k", "sum or W8")
    again = run(targets.folder, "--ddpcheck", "mixed.py", *OPTIONS, *more)
    # Neither --lf nor -k alone leaves this one: -k leaves W8, too, which is skipped.
    assert again.counts().keys() == {"failed", "deselected"}
    assert "mixed.py::ddp-W2-bn.frozen-loss.sum FAILED" in again.text
    assert "stopping after 1 failures" in again.text


def test_items_on_workers(user_project: Session) -> None:
    found = re.findall(r"^\[gw\d\].*PASSED (sound\S+)", user_project.text, re.MULTILINE)
    assert sorted(found) == ["sound.py::ddp-W2", "sound.py::ddp-W4"]


@pytest.mark.slow
def test_target_finds_what_pytest_puts_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "sound.py").write_text(SOUND, encoding="utf-8")
    source = "from sound import batch, loss, model\nworld_sizes = [2]\n"
    (tmp_path / "mymodel.py").write_text(source, encoding="utf-8")
    done = run(tmp_path, "-o", "pythonpath=src", "--ddpcheck", "mymodel.py")
    assert done.counts() == {"passed": 2}


def test_target_that_is_named_as_a_test_is_one_where_it_is_given(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_sound.py").write_text(SOUND, encoding="utf-8")
    (tmp_path / "test_user.py").write_text(SOUND + "\n\ndef test_it():\n    pass\n")
    options = ("--ddpcheck", "--ddpcheck-world-sizes", "2", "--ddpcheck-modes", "ddp")
    done = run(tmp_path, *options, "test_sound.py", "test_user.py", "--collect-only")
    assert "<RunItem ddp-W2>" in done.text
    assert done.text.count("<RunItem") == 1
    assert done.text.count("<Function test_it>") == 1


def test_folder_is_searched_for_targets_and_nothing_is_imported(
    targets: Session,
) -> None:
    folder = targets.folder
    (folder / "test_other.py").write_text("def test_one():\n    pass\n", "utf-8")
    (folder / "other.py").write_text("model = batch = 1 / 0\n", "utf-8")
    (folder / "none.py").write_text("def model():\n    pass\n", "utf-8")
    (folder / "sizes.py").write_text("world_sizes = [3]\n" + TARGET, "utf-8")
    computed = "from x import batch, model\n\nworld_sizes = list(range(3))\n"
    (folder / "sizes2.py").write_text(computed, "utf-8")
    more = ("--collect-only", "-q", "--ddpcheck-modes=ddp")
    done = run(folder, "--ddpcheck", *more)
    assert done.lines[:-2] == [
        "mixed.py::ddp-W2",
        "mixed.py::ddp-W4",
        "mixed.py::ddp-W8",
        "other.py::ddp-W2",
        "other.py::ddp-W4",
        "other.py::ddp-W8",
        "sizes.py::ddp-W3",
        "sizes2.py::matrix",
        "test_other.py::test_one",
    ]
    wrong = run(folder, "--ddpcheck", "mixed.py", "--ddpcheck-world-sizes=two")
    assert wrong.counts() == {"error": 1}
    assert "--world-sizes cannot be 'two' [option-value]" in wrong.text


def test_fixture_passes_and_fails_as_the_command_would(user_project: Session) -> None:
    assert user_project.counts() == {"passed": 21, "failed": 2}, user_project.text
    failed = [line for line in user_project.lines if line.startswith("FAILED ")]
    error = "ddpcheck.api.DivergenceError: divergent: "
    assert [line.partition(" - ")[2][: len(error)] for line in failed] == [error] * 2


def test_divergence_error_is_the_report_and_has_no_frames_of_ours(
    user_project: Session,
) -> None:
    text = user_project.section("test_sum")
    assert "divergent: loss/sum-reduction\n" in text
    assert re.search(r"^E +proof  confirmed by intervention: with ", text, re.MULTILINE)
    frames = re.findall(r"^(\S+\.py):\d+: ", text, re.MULTILINE)
    assert frames == ["test_user.py"]


def test_hang_under_the_fixture_has_stacks(user_project: Session) -> None:
    text = user_project.section("test_hang")
    assert re.search(r'test_user.py", line \d+ in never', text)


def test_both_workers_were_used(user_project: Session) -> None:
    assert set(re.findall(r"\[(gw\d)\]", user_project.text)) == {"gw0", "gw1"}


@pytest.mark.slow
def test_pytest_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "sound.py").write_text(SOUND, encoding="utf-8")
    (tmp_path / "test_user.py").write_text(HANGS, encoding="utf-8")
    arguments = ("-p", "ddpcheck", "-p", "no:cacheprovider", "test_user.py")
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=tmp_path,
        env=_environment(autoload=False),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as session:
        deadline = time.monotonic() + 120
        while not (tmp_path / "mark").exists():
            assert session.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        session.kill()
    deadline = time.monotonic() + 30
    while left := processes_of(session.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    folders = list(Path(base_folder()).glob(f"ddpcheck-{session.pid}-*"))
    assert folders == []


def test_workers_fill_one_junit_xml_and_one_list_of_durations(
    user_project: Session,
) -> None:
    suite = ET.parse(user_project.folder / "out.xml").getroot().find("testsuite")
    assert suite is not None
    assert [suite.get(k) for k in ("tests", "failures", "errors")] == ["23", "2", "0"]
    case = suite.find("testcase[@name='ddp-W4']")
    assert case is not None
    values = {p.get("name") for p in case.findall("properties/property")}
    assert values == {"compared", "worst_excess"}
    slowest = user_project.text.partition("slowest 2 durations")[2]
    calls = r"^[\d.]+s (?:call|setup) +(?:test_user|sound)\.py::"
    assert len(re.findall(calls, slowest, re.MULTILINE)) == 2
    assert not (user_project.folder / ".pytest_cache").exists()


def test_plugin_costs_nothing_where_it_is_not_used(tmp_path: Path) -> None:
    test = """\
import sys


def test_it():
    ours = {name for name in sys.modules if name.split(".")[0] == "ddpcheck"}
    assert ours == {
        "ddpcheck",
        "ddpcheck.plugin",
        "ddpcheck.plugin.options",
        "ddpcheck.target",
        "ddpcheck.target.options",
    }
    assert "torch" not in sys.modules


def test_asserts_of_the_tool_are_not_rewritten():
    import ddpcheck.report.data

    assert "@pytest_ar" not in vars(ddpcheck.report.data)
    assert "@pytest_ar" in globals()
"""
    (tmp_path / "test_user.py").write_text(test, encoding="utf-8")
    done = run(tmp_path, "-q", "--strict-markers", autoload=True)
    assert done.last() == "2 passed"


def test_plugin_has_the_options_of_the_command_with_the_same_texts(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "--help", autoload=True)
    words = " ".join(done.text.split())
    for one in SETTINGS:
        text = " ".join(f"--ddpcheck-{one.option[2:]} {one.metavar}".split())
        text = text.replace(" ", "=") + " " + one.help.replace("\n", " ")
        assert (text in words) == ("plugin" in one.places), text
    for name in DEFINITIONS:
        option = f"--ddpcheck-{name.replace('_', '-')}-fn=NAME"
        assert f"{option} what target files call `{name}`" in " ".join(words.split())
