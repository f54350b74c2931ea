"""Where a target's file stands for Python: next to its neighbours, or in a package."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.ranks.worker import describe
from ddpcheck.target import importing
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.end_to_end.wrong_files import target

RELATIVE = target(loss="from .losses import loss\n")
LOSSES = "def loss(output, target):\n    return (output**2).mean()\n"


def _package(folder: Path) -> Path:
    inner = folder / "mylib" / "checks"
    inner.mkdir(parents=True)
    for place in (inner.parent, inner):
        (place / "__init__.py").touch()
    (inner / "losses.py").write_text(LOSSES, encoding="utf-8")
    (inner / "mymodel.py").write_text(RELATIVE, encoding="utf-8")
    return inner / "mymodel.py"


def test_file_with_relative_imports_is_a_part_of_its_package(
    pool: Pool, tmp_path: Path
) -> None:
    path = _package(tmp_path)
    assert importing.place(path) == (str(tmp_path), "mylib.checks.mymodel")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.verdict == "equivalent"


def test_package_may_import_the_target_itself(pool: Pool, tmp_path: Path) -> None:
    path = _package(tmp_path)
    (path.parent / "__init__.py").write_text("from .mymodel import model\n", "utf-8")
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert report.verdict == "equivalent"


@pytest.mark.parametrize(
    ("name", "module"),
    [("mymodel.py", "mymodel"), ("my model.py", "ddpcheck_target")],
)
def test_other_files_stand_alone(name: str, module: str, tmp_path: Path) -> None:
    path = _package(tmp_path).with_name(name)
    path.write_text(target(), encoding="utf-8")
    assert importing.place(path) == (str(path.parent), module)


def test_file_that_cannot_be_imported_is_reported_by_what_it_raised(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text("\nraise ValueError('only here')\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        importing.import_file(path)
    described = describe(caught.value)
    assert (described.type_name, described.message) == ("ValueError", "only here")
    assert described.where == f"{path}:2"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "import wave.reader",
            "No module named 'wave.reader'; 'wave' is not a package",
        ),
        (
            "from wave import no_such",
            "cannot import name 'no_such' from 'wave' ({path})",
        ),
    ],
)
def test_file_that_hides_the_package_it_imports_is_to_be_renamed(
    line: str, found: str, pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "wave.py"
    path.write_text(f"{line}\n{target()}", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        checking.check(pool, TargetRef(path=str(path)), Options(modes=("ddp",)))
    problem = caught.value.problem
    kind = "ModuleNotFoundError" if "reader" in line else "ImportError"
    assert problem.found == f"{kind}: {found.format(path=path)}, at wave.py:1"
    assert problem.fix == "give the file another name: it hides the package wave"
