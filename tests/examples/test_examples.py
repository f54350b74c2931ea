"""What examples/README.md says of each example is what ddpcheck says of it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ddpcheck.checking import checking, opening
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.report import data as reports
from ddpcheck.run.modes.registry import CHOICES
from ddpcheck.target import settings
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.conftest import Digits

EXAMPLES = Path(__file__).parents[2] / "examples"
MODULES = {"scikit-learn": "sklearn", "scikit-image": "skimage"}


@dataclass(frozen=True, kw_only=True)
class Row:
    file: str
    options: dict[str, str]
    packages: tuple[str, ...]
    exit_code: int
    slug: str | None


def _rows() -> list[Row]:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    found = []
    for line in text.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        file, *given = cells[0].split()[:3] or [""]
        if file.endswith(".py"):
            _, _, packages, code, slug = cells
            names = [name.removeprefix("--").replace("-", "_") for name in given[::2]]
            found.append(
                Row(
                    file=file,
                    options=dict(zip(names, given[1::2], strict=True)),
                    packages=tuple(re.findall(r"[\w-]{2,}", packages)),
                    exit_code=int(code),
                    slug=None if slug == "-" else slug,
                )
            )
    return found


ROWS = _rows()


def test_table_names_every_example() -> None:
    assert [row.file for row in ROWS if row.exit_code == 1]
    assert {row.file for row in ROWS} == {path.name for path in EXAMPLES.glob("*.py")}


def test_table_has_a_fixed_twin_for_every_divergent_example() -> None:
    codes = {row.file: row.exit_code for row in ROWS}
    divergent = [file for file, code in codes.items() if code == 1]
    assert [codes[f.replace(".py", "_fixed.py")] for f in divergent] == [0] * len(
        divergent
    )


@pytest.mark.xdist_group("digits")
def test_digits_give_what_the_table_says(digits: Digits) -> None:
    row = next(row for row in ROWS if row.file == "digits_conv.py")
    _assert_as_expected(row, digits.exit_code, digits.report, digits.stdout)


OTHERS = [row for row in ROWS if row.file != "digits_conv.py"]


@pytest.mark.parametrize(
    "row", [row for row in OTHERS if not row.packages], ids=lambda row: row.file
)
def test_light_example_gives_what_the_table_says(row: Row, pool: Pool) -> None:
    options = settings.make(row.options, {}, modes=CHOICES)
    report = checking.check(pool, TargetRef(path=str(EXAMPLES / row.file)), options)
    _assert_as_expected(row, report.exit_code, reports.to_json(report), str(report))


@pytest.fixture(scope="module")
def with_sklearn() -> Iterator[Pool]:
    """An engine that has imported scikit-learn, for all examples that need no more."""
    pytest.importorskip("sklearn")
    modules = (*opening.PRELOAD_MODULES, "sklearn.datasets", "sklearn.preprocessing")
    with Pool(Preload(modules=modules)) as made:
        made.wait_for_imports()
        yield made


@pytest.mark.slow
@pytest.mark.xdist_group("sklearn")
@pytest.mark.parametrize(
    "row",
    [row for row in OTHERS if row.packages == ("scikit-learn",)],
    ids=lambda row: row.file,
)
def test_example_on_real_tables_gives_what_the_table_says(
    row: Row, with_sklearn: Pool
) -> None:
    ref = TargetRef(path=str(EXAMPLES / row.file))
    report = checking.check(with_sklearn, ref, Options())
    _assert_as_expected(row, report.exit_code, reports.to_json(report), str(report))


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [row for row in OTHERS if row.packages not in {(), ("scikit-learn",)}],
    ids=lambda row: row.file,
)
def test_example_gives_what_the_table_says(row: Row, tmp_path: Path) -> None:
    for package in row.packages:
        if importlib.util.find_spec(MODULES.get(package, package)) is None:
            pytest.skip(f"{package} is not installed")
    path = tmp_path / "out.json"
    options = ["--json", str(path), "--report-dir", str(tmp_path / "reports")]
    command = [sys.executable, "-m", "ddpcheck", str(EXAMPLES / row.file), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shown = path.read_text(encoding="utf-8")
    _assert_as_expected(row, done.returncode, shown, done.stdout + done.stderr)


def _assert_as_expected(row: Row, exit_code: int, shown: str, output: str) -> None:
    assert exit_code == row.exit_code, output
    report = json.loads(shown)
    assert all(run["gradients"]["compared"] for run in report["runs"])
    findings = report["findings"][:1]
    found = [(f["slug"], f["fix"] and f["fix"]["verified"]) for f in findings]
    assert found == ([(row.slug, True)] if row.slug else []), output


def test_digits_are_the_first_512_of_scikit_learn() -> None:
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        pytest.skip("scikit-learn is not installed")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(path, delimiter=",", max_rows=512)
    with np.load(EXAMPLES / "data" / "digits.npz") as data:
        assert np.array_equal(data["images"].reshape(512, 64), rows[:, :64])
        assert np.array_equal(data["labels"], rows[:, 64])
