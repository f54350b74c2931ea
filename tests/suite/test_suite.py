"""`ddpcheck --suite`: the table, the counts, the exit code."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from ddpcheck.errors.problem import UsageError
from ddpcheck.suite import main
from ddpcheck.suite import main as suite
from ddpcheck.suite.cells import Cell, Row
from ddpcheck.suite.judge import Result
from ddpcheck.target.options import Options

MLP = Row(model="mlp", loss="masked", batch_norm="asis", mode="ddp")
NOISY = Row(
    model="bn_dropout", loss="masked", batch_norm="frozen", mode="dp", noise="sample"
)
RESULTS = [
    Result(cell=Cell(row=MLP, world_size=1), status="ok"),
    Result(cell=Cell(row=MLP, world_size=2), status="predicted"),
    Result(cell=Cell(row=NOISY, world_size=4), status="ok"),
]
FAILED = Result(cell=Cell(row=MLP, world_size=4), status="FAILED", why="it is wrong")


def test_table_of_results_is_exact() -> None:
    text = f"""\
model             loss    dp frozen  ddp asis
mlp               masked  -          predicted
bn_dropout+noise  masked  ok         -

{main.LEGEND}
passed: 3 cells, 2 equal to single-process training, 1 different as predicted, 0 failed
"""
    assert main.render(RESULTS) == text


def test_failure_is_the_word_of_its_row_and_is_printed_in_full() -> None:
    lines = main.render([*RESULTS, FAILED]).splitlines()
    assert lines[1].split() == ["mlp", "masked", "-", "FAILED"]
    assert lines[-3:] == [
        "it is wrong",
        "",
        "FAILED: 4 cells, 2 equal to single-process training, 1 different as "
        "predicted, 1 failed",
    ]


def test_nothing_run_is_reported() -> None:
    assert main.summary([]) == "not checked: no cell was run\n"


@pytest.mark.slow
def test_suite_of_a_few_cells_passes(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(world_sizes=(2,), modes=("dp",), loss=("class_weighted",))
    assert suite.main(options) == 0
    out, err = capsys.readouterr()
    last = (
        "passed: 15 cells, 9 equal to single-process training, 6 different as "
        "predicted, 0 failed"
    )
    assert out.splitlines()[-1] == last
    assert not err  # no terminal, no progress


def test_suite_without_cells_is_not_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(world_sizes=(2,), batch_norm=("nothing",))
    with pytest.raises(UsageError, match="the suite has no batch norm mode nothing"):
        suite.main(options)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_sizes": (2, 5)}, "the suite has no world size 5"),
        ({"modes": ("fsdp",)}, "the suite has no mode fsdp"),
        ({"loss": ("hinge",)}, "the suite has no loss hinge"),
        ({"dtype": "bfloat16"}, "the suite has no dtype bfloat16"),
    ],
)
def test_unknown_choice_is_a_usage_error(
    changes: dict[str, object], message: str
) -> None:
    options = dataclasses.replace(Options(), **changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        suite.main(options)


def test_suite_needs_no_torch_in_the_tools_process() -> None:
    program = "import sys, ddpcheck.suite.main; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, env=os.environ)
    assert done.returncode == 0
