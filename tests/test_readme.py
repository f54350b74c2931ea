"""What the README says is what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.cli.main import HELP
from ddpcheck.compare.tolerance import DEFAULT_RTOL, FLOOR_FACTOR
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import EXIT_CODES, EXIT_USAGE
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.conftest import Digits

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"\b\d[\d,]*(\.\d+)?(e[+-]?\d+)?\b")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _table(heading: str) -> list[list[str]]:
    """Returns the cells of the table whose first heading this is."""
    lines = README.splitlines()
    start = next(i for i, x in enumerate(lines) if x.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def _ddpcheck(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddpcheck", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


def _pattern(line: str) -> str:
    """Returns a line without its numbers and spaces: columns follow the numbers."""
    return NUMBER.sub("#", line).replace(" ", "")


def test_readme_has_at_most_120_lines() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.xdist_group("digits")
def test_shown_run_prints_the_lines_shown(digits: Digits) -> None:
    command, *shown = _blocks("console")[0].splitlines()
    assert command == "$ ddpcheck examples/digits_conv.py"
    assert digits.exit_code == EXIT_CODES["divergent"], digits.stderr
    printed = digits.stdout.replace(str(digits.reports), "reports").splitlines()
    patterns = [_pattern(line) for line in printed]
    missing = [line for line in shown if _pattern(line) not in patterns]
    assert len(shown) >= 10
    assert not missing, digits.stdout


def test_shown_command_is_the_first_of_the_two_commands() -> None:
    first, second = _blocks("console")[1].splitlines()
    shown = _blocks("console")[0].splitlines()[0].removeprefix("$ ")
    assert first == f"$ pip install -e . -c constraints.txt && {shown}"
    assert second == ('$ pip install -e ".[test]" -c constraints.txt && pytest -n auto')


def test_ci_runs_the_test_command_as_written() -> None:
    command = _blocks("console")[1].splitlines()[1].removeprefix("$ ")
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_target_shown_is_equivalent(tmp_path: Path, pool: Pool) -> None:
    source = next(block for block in _blocks("python") if "def model" in block)
    path = tmp_path / "mymodel.py"
    path.write_text(source, encoding="utf-8")
    report = checking.check(pool, TargetRef(path=str(path)), Options())
    assert (report.verdict, report.warnings) == ("equivalent", ())


@pytest.mark.slow
def test_test_shown_passes(tmp_path: Path) -> None:
    target, test = _blocks("python")
    (tmp_path / "mymodel.py").write_text(target, encoding="utf-8")
    (tmp_path / "test_mymodel.py").write_text(test, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_options_named_exist() -> None:
    options = set(re.findall(r"(?<=[ `])--[a-z][a-z-]+", README))
    assert len(options) >= 4
    of_pytest = {"--ddpcheck", "--ddpcheck-run"}
    assert options <= {*re.findall(r"--[a-z][a-z-]+", HELP)} | of_pytest


def test_exit_code_table_is_that_of_the_code() -> None:
    shown = {verdict: int(code) for code, verdict, _ in _table("exit code")}
    assert shown == {**EXIT_CODES, "": EXIT_USAGE}


def test_script_comes_before_the_target_file() -> None:
    command = "`ddpcheck run train.py ARGS`"
    assert README.index(command) < README.index("def model")
    assert "usage: ddpcheck run [options] [-m MODULE | train.py] ARGS" in HELP


@pytest.mark.slow
def test_script_shown_exits_as_shown(tmp_path: Path) -> None:
    found = re.search(r"`ddpcheck run (\S+\.py)` exits with (\d)", README)
    assert found is not None
    path, code = found.groups()
    done = _ddpcheck("run", str(ROOT / path), folder=tmp_path)
    assert done.returncode == int(code), done.stdout + done.stderr


def test_tolerance_table_is_that_of_the_code() -> None:
    shown = {dtype: float(rtol) for dtype, rtol, _ in _table("dtype")}
    assert shown == DEFAULT_RTOL
    assert f"{FLOOR_FACTOR:g} times" in README


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "examples/README.md"])
def test_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
