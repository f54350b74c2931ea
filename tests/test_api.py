"""The public names: few, typed, documented, and nothing is imported for them."""

from __future__ import annotations

import contextlib
import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ddpcheck
from ddpcheck import api
from ddpcheck.plugin import fixture
from ddpcheck.report.data import Report
from ddpcheck.target import options
from tests.report.render import sample

TARGET = """\
import torch
from torch import nn


def model():
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def batch():
    g = torch.Generator().manual_seed(1)
    return torch.randn(8, 6, generator=g), torch.randn(8, 3, generator=g)


def loss(output, target):
    return (output - target).square().sum()
"""


def test_public_names_are_few_and_documented() -> None:
    # Two of them, global_batch and in_check, are for scripts that are checked.
    assert len(ddpcheck.__all__) <= 11
    assert ddpcheck.__all__ == sorted(ddpcheck.__all__)
    for name in ddpcheck.__all__:
        thing = getattr(ddpcheck, name)
        assert inspect.getdoc(thing), name
        assert thing.__module__.startswith("ddpcheck.")
    assert set(ddpcheck.__all__) <= set(dir(ddpcheck))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'chekc'"):
        _ = ddpcheck.chekc


def test_importing_the_package_imports_none_of_its_modules() -> None:
    program = (
        "import sys, ddpcheck\n"
        "assert [m for m in sys.modules if m.startswith('ddpcheck')] == ['ddpcheck']\n"
        "ddpcheck.check, ddpcheck.DivergenceError, ddpcheck.Report\n"
        "assert not {'torch', 'numpy', 'cloudpickle'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_settings_are_those_of_a_check() -> None:
    parts = {"collate", "optimizer", "wrap", "train_step"}
    known = {one.name for one in options.SETTINGS if "api" in one.places}
    assert set(api.Settings.__annotations__) == known | parts | {"script"}


def test_help_has_every_setting() -> None:
    text = inspect.getdoc(ddpcheck.check) or ""
    assert re.findall(r"^ {8}(\w+)  ", text, re.MULTILINE) == [
        *api.Settings.__annotations__
    ]


def test_option_of_another_name_is_reported_with_the_right_one() -> None:
    with pytest.raises(TypeError) as caught:
        api.options_of({"no_fix": True})
    assert str(caught.value) == "there is no argument 'no_fix'; it is fix=False"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("world_size", "world_sizes"),
        ("batchnorm", "batch_norm"),
        ("Train-Step", "train_step"),
    ],
)
def test_unknown_keyword_is_reported_with_the_closest(given: str, meant: str) -> None:
    known = ", ".join(api.Settings.__annotations__)
    with pytest.raises(TypeError) as caught:
        api.options_of({given: 1})
    assert str(caught.value) == (
        f"there is no argument {given!r}; did you mean {meant!r}? There are {known}"
    )


def test_keyword_like_no_other_is_reported_with_all() -> None:
    known = ", ".join(api.Settings.__annotations__)
    with pytest.raises(TypeError) as caught:
        api.options_of({"qqq": 1})
    assert str(caught.value) == f"there is no argument 'qqq'; there are {known}"


def test_values_are_read_as_everywhere() -> None:
    made = api.options_of(
        {
            "world_sizes": range(2, 4),
            "accept": ["loss/router-aux"],
            "modes": None,
            "wrap": print,
        }
    )
    assert made.world_sizes == (2, 3)
    assert made.accept == {"loss/router-aux": "accepted without a reason"}
    assert made.modes is None
    with pytest.raises(
        ddpcheck.UsageError, match="accept= names no known cause: 'no/such'"
    ):
        api.options_of({"accept": {"no/such": "why"}})
    with pytest.raises(ddpcheck.UsageError, match="dtype= cannot be 'half'"):
        api.options_of({"dtype": "half"})
    with pytest.raises(TypeError, match="there is no argument 'world_size'"):
        api.options_of({"world_size": [2]})


def test_check_returns_the_report_and_assertion_raises_it(tmp_path: Path) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(TARGET, encoding="utf-8")
    with ddpcheck.warm_ranks():
        report = ddpcheck.check(path, world_sizes=[2], modes=["ddp"])
        assert isinstance(report, Report)
        assert (report.verdict, report.target.name) == ("divergent", "mymodel.py")
        with pytest.raises(ddpcheck.DivergenceError) as raised:
            ddpcheck.assert_equivalent(path, world_sizes=[2], fix=False)
        with pytest.raises(ddpcheck.UsageError, match="target-missing-file"):
            ddpcheck.check(tmp_path / "none.py")
    assert isinstance(raised.value.report, Report)
    first, _, rest = str(raised.value).partition("\n\n")
    assert first.startswith("divergent: loss/sum-reduction")
    assert rest.startswith("ddpcheck mymodel.py: Linear, 21 parameters")


@pytest.mark.slow
def test_loss_that_is_left_out_is_a_missing_argument() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(6, 3)

    pair = torch.ones(8, 6), torch.ones(8, 3)
    with ddpcheck.warm_ranks():
        for batch in (pair, lambda: pair):  # the function's is known in a rank
            with pytest.raises(ddpcheck.UsageError) as caught:
                ddpcheck.check(model, batch)
            assert str(caught.value) == (
                "ddpcheck: model: the argument `loss` is missing [target-no-loss]\n"
                "  expected   loss, a function (output, target) -> scalar tensor\n"
                "  found      model and batch alone\n"
                "  fix        give a loss: (model, batch, loss); none is needed with "
                "train_step, or where the batch is one dict and model(**batch) has a "
                ".loss\n"
                "  more       ddpcheck --explain target-no-loss"
            )


@pytest.fixture(scope="module")
def checkers() -> Iterator[tuple[Callable[..., Report], ...]]:
    with contextlib.closing(api.WarmRanks()) as ranks:
        ranks.open(60.0)
        yield ddpcheck.check, fixture.Checker(ranks)


def _model() -> nn.Module:
    return nn.Linear(6, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"world_size": [2]}, TypeError, "there is no argument"),
        ({"steps": 0}, ddpcheck.UsageError, "option-value"),
        ({"model": "none.py"}, ddpcheck.UsageError, "target-missing-file"),
        ({"model": 3}, ddpcheck.UsageError, "target-name-kind"),
        ({"loss": threading.Lock().acquire}, ddpcheck.UsageError, "target-pickle"),
    ],
    ids=["keyword", "value", "file", "kind", "pickle"],
)
def test_traceback_in_pytest_ends_at_the_line_of_the_user(
    given: dict[str, Any],
    kind: type[Exception],
    text: str,
    checkers: tuple[Callable[..., Report], ...],
) -> None:
    arguments = {"model": _model, "batch": lambda: (torch.ones(2, 6), None), **given}
    for check in checkers:
        with pytest.raises(kind, match=text) as caught:
            check(**arguments)
        shown = caught.traceback.filter(caught)
        assert [entry.path for entry in shown] == [Path(__file__)]
        assert caught.value.__cause__ is None  # pytest shows it, with its frames
        assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.slow
def test_checks_leave_no_record_for_the_next_ones() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(6, 3)

    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(8, 6), torch.randn(8, 3)

    ranks = api.WarmRanks()
    try:
        folder = ranks.open(60.0).folder
        for loss in (functional.mse_loss, lambda out, target: (out - target).sum()):
            ranks.check(model, batch, loss, world_sizes=[2], modes=["ddp"])
            left = {path.suffix for path in folder.iterdir()}
            assert not left & {".bin", ".idx", ".pickle"}, left
    finally:
        ranks.close()


@pytest.mark.slow
def test_checks_of_threads_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(TARGET.replace(".sum()", ".mean()"), encoding="utf-8")
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "import pathlib, sys\n"
        "import ddpcheck\n"
        "sys.path.append(pathlib.Path('anywhere'))\n"  # Python takes it
        "def check(_):\n"
        f"    return ddpcheck.check({str(path)!r}, world_sizes=[2], modes=['ddp'])\n"
        "with ddpcheck.warm_ranks(), ThreadPoolExecutor(2) as threads:\n"
        "    print([r.verdict for r in threads.map(check, range(2))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == "['equivalent', 'equivalent']\n", done.stderr


def test_error_of_a_check_that_ended_early_begins_with_why() -> None:
    ended = "ended by --deadline-s 8 after 1 of 2 runs"
    report = sample.equivalent()
    report = replace(report, verdict="not-checked", exit_code=3, ended=ended)
    text = str(api.DivergenceError(report))
    assert text.startswith(f"not checked: {ended}\n")
