"""The stand-in of torch._dynamo answers as torch does, and makes way for it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.run.process import dynamo
from ddpcheck.suite import runner
from tests.diagnose.test_rules import checked

where_it_can_wait = pytest.mark.skipif(
    not dynamo.can_wait(), reason="this torch asks its compiler for something else"
)


class _Itself(ModuleType):
    """Replaces torch._dynamo in these tests."""

    def __init__(self) -> None:
        super().__init__(dynamo.NAME)
        self.imports = 0
        self.config = SimpleNamespace(verbose=False)
        self.utils = SimpleNamespace(
            counters=3, get_optimize_ddp_mode=lambda: "python_reducer"
        )
        self.breaks = 0

    def graph_break(self) -> None:
        """Counts its calls."""
        self.breaks += 1

    @staticmethod
    def disable(function: Any = None, *_: object, **__: object) -> Any:
        """Its result shows that it was called."""
        return lambda *values: ("disabled", function(*values))


@pytest.fixture
def itself(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Itself]:
    """A process with the stand-in, in which the module itself is another."""
    made = _Itself()

    def imported(_name: str) -> ModuleType:
        if dynamo.NAME not in sys.modules:
            made.imports += 1
            sys.modules[dynamo.NAME] = made
        return sys.modules[dynamo.NAME]

    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with mock.patch.dict(sys.modules), mock.patch.dict(vars(torch)):
        sys.modules.pop(dynamo.NAME, None)
        vars(torch).pop("_dynamo", None)
        dynamo.put_off()
        assert dynamo.is_stood_in()
        yield made


def _known(module: Any) -> dict[str, Any]:
    """Returns the answers that the stand-in gives by itself."""
    return {
        "graph_break": module.graph_break(),
        "clear_lru_cache": module.trace_rules.clear_lru_cache(),
        "mode": module.utils.get_optimize_ddp_mode(),
        "disable": module.disable(lambda a, b: a - b, True, wrapping=False)(5, b=3),
    }


@where_it_can_wait
def test_answers_are_those_of_torch() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    told = _known(dynamo.StandIn(spec))
    assert told == {
        "graph_break": None,
        "clear_lru_cache": None,
        "mode": "ddp_optimizer",
        "disable": 2,
    }
    assert _known(importlib.import_module(dynamo.NAME)) == told


def test_known_answers_import_nothing(itself: _Itself) -> None:
    _known(sys.modules[dynamo.NAME])
    assert itself.imports == 0
    assert torch._dynamo is sys.modules[dynamo.NAME]  # noqa: SLF001


@pytest.mark.parametrize("ask", ["config.verbose", "utils.counters"])
def test_any_other_question_is_the_modules_own(itself: _Itself, ask: str) -> None:
    stand_in: Any = torch._dynamo  # noqa: SLF001
    found = stand_in
    for name in ask.split("."):
        found = getattr(found, name)
    expected = {"config.verbose": False, "utils.counters": 3}
    assert found == expected[ask]
    assert sys.modules[dynamo.NAME] is itself
    assert not dynamo.is_stood_in()
    assert "_dynamo" not in vars(torch)  # an import of it would set it
    # Who still holds the stand-in gets the same answers; it was imported once.
    assert stand_in.config.verbose is False
    assert itself.imports == 1


def test_what_is_held_of_the_stand_in_follows_the_module_itself(
    itself: _Itself,
) -> None:
    stand_in: Any = torch._dynamo  # noqa: SLF001
    utils, graph_break = stand_in.utils, stand_in.graph_break
    assert utils.get_optimize_ddp_mode() == "ddp_optimizer"
    dynamo.real()
    assert utils.get_optimize_ddp_mode() == "python_reducer"
    graph_break()
    assert itself.breaks == 1


def test_setting_reaches_the_module_itself(itself: _Itself) -> None:
    stand_in: Any = torch._dynamo  # noqa: SLF001
    stand_in.config.verbose = True
    assert itself.config.verbose
    stand_in.utils.counters = 4
    assert itself.utils.counters == 4
    del stand_in.utils.counters
    assert not hasattr(itself.utils, "counters")
    stand_in.config = "another"
    assert itself.config == "another"
    del stand_in.config
    assert not hasattr(itself, "config")
    assert itself.imports == 1


def test_looking_for_a_submodule_imports_nothing(itself: _Itself) -> None:
    (finder,) = [f for f in sys.meta_path if type(f).__module__ == dynamo.__name__]
    path = sys.modules[dynamo.NAME].__path__
    assert finder.find_spec("torch.nn", None) is None
    assert finder.find_spec("torch._dynamo.nonsense", path) is None
    spec = finder.find_spec("torch._dynamo.config", path)
    assert spec is not None
    assert Path(spec.origin or "").name == "config.py"
    assert itself.imports == 0
    dynamo.real()
    assert finder.find_spec("torch._dynamo.config", path) is None  # found as usual


def test_question_that_every_module_is_asked_imports_nothing(itself: _Itself) -> None:
    module = sys.modules[dynamo.NAME]
    assert Path(module.__file__ or "").parent.name == "_dynamo"
    assert importlib.util.find_spec(dynamo.NAME) is module.__spec__
    assert not hasattr(module, "__wrapped__")
    assert itself.imports == 0


def test_function_that_torch_disabled_before_is_disabled_after(itself: _Itself) -> None:
    disable = sys.modules[dynamo.NAME].disable
    function = disable(lambda value: value + 1, False, wrapping=False)
    assert function(1) == 2
    dynamo.real()
    assert function(1) == ("disabled", 2)
    assert itself.imports == 1


def test_decorator_of_a_user_is_the_modules_own(itself: _Itself) -> None:
    function = sys.modules[dynamo.NAME].disable(abs)
    assert function(-1) == ("disabled", 1)
    assert itself.imports == 1


def test_module_that_is_there_is_left_alone(itself: _Itself) -> None:
    dynamo.real()
    dynamo.put_off()
    assert sys.modules[dynamo.NAME] is itself


@where_it_can_wait
def test_it_can_wait_where_nobody_configured_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [n for n in os.environ if n.startswith("TORCHDYNAMO")]:
        monkeypatch.delenv(name)
    assert dynamo.can_wait()
    monkeypatch.setenv("TORCHDYNAMO_VERBOSE", "1")
    assert not dynamo.can_wait()


@pytest.mark.parametrize("asked", ["recursive, wrapping=False", "_optimize_ddp_mode"])
def test_it_cannot_wait_where_torch_asks_something_else(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    source = inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda of: source(of).replace(asked, ""))
    assert not dynamo.can_wait()


def test_it_cannot_wait_where_there_is_no_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inspect, "getsource", mock.Mock(side_effect=OSError))
    assert not dynamo.can_wait()


@pytest.fixture
def without() -> Iterator[Pool]:
    """An engine that has not imported the compiler."""
    with Pool(Preload(modules=runner.PRELOAD_MODULES)) as made:
        made.start()
        made.wait_for_imports()
        yield made


LOCAL = """\
from pathlib import Path

import torch
from torch import nn

from ddpcheck.run.process import dynamo


def model():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(12, 4, generator=g), torch.randn(12, 3, generator=g)


def loss(output, target):
    with Path(__file__).with_suffix(".seen").open("a") as seen:
        seen.write(f"{dynamo.is_stood_in()} ")
    valid = target > 0.3
    return (output - target).square()[valid].sum() / valid.sum()
"""


@pytest.mark.slow
@where_it_can_wait
def test_diagnosis_imports_nothing(without: Pool, tmp_path: Path) -> None:
    report = checked(without, tmp_path, LOCAL)
    (finding,) = report.findings
    assert finding.slug == "loss/local-normalizer"
    assert finding.fix is not None
    assert finding.fix.verified
    (seen,) = tmp_path.glob("*.seen")
    answers = seen.read_text(encoding="utf-8").split()
    assert set(answers) == {"True"}
    assert len(answers) > 30  # runs, trials and probes


@pytest.mark.slow
@where_it_can_wait
def test_training_imports_nothing_and_compiling_it_gives_the_same(
    without: Pool,
) -> None:
    told = {}
    for compiles in (False, True):
        job = Job(
            function="tests.run.jobs:dynamo_after", arguments={"compiles": compiles}
        )
        told[compiles] = [o.value for o in without.run(job, 2)]
    assert all(rank["before"] and rank["after"] for rank in told[False])
    assert all(rank["before"] and not rank["after"] for rank in told[True])
    assert all(rank["is once"] for rank in told[True])
    losses = [rank["losses"] for rank in told[False] + told[True]]
    assert losses == [losses[0]] * 4
    assert len(set(losses[0])) == 4
