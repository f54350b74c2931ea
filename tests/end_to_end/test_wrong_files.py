"""Every way in which a target file is wrong, and the whole text that says so.

User code runs in children of one pool; what is compared is what the command prints.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking, exits
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.target import importing
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.end_to_end.conftest import DATA
from tests.end_to_end.wrong_files import CASES, Case
from tests.end_to_end.wrong_files import target as good_target


def expected_texts() -> dict[str, str]:
    """Returns the texts of wrong_files.txt, by the names of their cases."""
    text = (DATA / "wrong_files.txt").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in text.split("## ")[1:]]
    return {name: body.strip("\n") + "\n" for name, _, body in parts}


TEXTS = expected_texts()


def output_of(
    pool: Pool, case: Case, folder: Path, *, verbose: bool = False
) -> tuple[int, str]:
    """Returns the exit code and the output for a case."""
    path = folder / "mymodel.py"
    path.write_text(case.source, encoding="utf-8")
    ref = TargetRef(path=str(path), names=case.names)
    options = Options(world_sizes=case.world_sizes or None, modes=("ddp",))
    printed: list[str] = []

    def action() -> int:
        return checking.check(pool, ref, options).exit_code

    code = exits.guarded(action, verbose=verbose, write_error=printed.append)
    # What torch 2.15 adds to a message of its own.
    return code, "".join(printed).replace("addmm: ", "")


def test_cases_and_texts_have_the_same_names() -> None:
    assert list(TEXTS) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_wrong_file_is_reported_and_exits_2(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    assert output_of(pool, CASES[name], tmp_path) == (2, TEXTS[name])


@pytest.mark.parametrize("name", CASES)
def test_first_line_stands_alone(name: str) -> None:
    first, *others = TEXTS[name].splitlines()
    assert first.startswith("ddpcheck: ")
    assert "mymodel.py" in first or "batch" in first
    assert first.endswith("]")
    labels = [line[2:12].strip() for line in others]
    assert labels == ["expected", "found", "fix", "more"]


def test_a_good_file_prints_nothing(pool: Pool, tmp_path: Path) -> None:
    case = Case(source=good_target())
    assert output_of(pool, case, tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("name", "found"),
    [("no_such.py", "nothing"), ("", "a folder")],
    ids=["none", "folder"],
)
def test_path_that_is_no_file_is_reported(
    name: str, found: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    with pytest.raises(UsageError) as caught:
        importing.check_file(path)
    assert str(caught.value) == (
        f"ddpcheck: {path} is no file [target-missing-file]\n"
        "  expected   a Python file that defines model, batch and loss\n"
        f"  found      {found}\n"
        "  fix        check the path, or write a template: ddpcheck --init mymodel.py\n"
        "  more       ddpcheck --explain target-missing-file"
    )


def test_notebook_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        importing.check_file(path)
    assert str(caught.value) == (
        f"ddpcheck: {path} is no Python file [target-missing-file]\n"
        "  expected   a Python file that defines model, batch and loss\n"
        "  found      a notebook\n"
        f"  fix        jupyter nbconvert --to script {path}\n"
        "  more       ddpcheck --explain target-missing-file"
    )


HELPER = "def total(output):\n    raise ValueError('a\\nb\\nc\\nd')\n"
BY_HELPER = """\
ddpcheck: mymodel.py: training fails in a single process [target-raises]
  expected   model, batch, loss and optimizer that do three steps
  found      ValueError: a
             b
             c ...
             at helper_of_wrong.py:2
  fix        make one plain training step work first
  more       ddpcheck --explain target-raises
"""


@pytest.mark.parametrize("verbose", [False, True])
def test_error_in_a_helper_names_its_line_and_shows_the_stack_when_verbose(
    *, verbose: bool, pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "helper_of_wrong.py").write_text(HELPER, encoding="utf-8")
    body = "    import helper_of_wrong\n    return helper_of_wrong.total(output)\n"
    case = Case(source=good_target(loss=f"def loss(output, target):\n{body}"))
    code, text = output_of(pool, case, tmp_path, verbose=verbose)
    head, _, stack = text.partition("  stack, without ddpcheck's own frames:\n")
    assert (code, head) == (2, BY_HELPER)
    files = [line.split('"')[1] for line in stack.splitlines() if '  File "' in line]
    named = ["mymodel.py", "helper_of_wrong.py"] if verbose else []
    assert files == [str(tmp_path / name) for name in named]
