"""The command that writes the files of a new rule."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from ddpcheck.report.pages.pages import HEADINGS
from tests.corpus import programs
from tests.diagnose import new_rule, test_pages

ROOT = Path(__file__).parents[2]
REGISTRY = Path("ddpcheck/diagnose/registry.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / REGISTRY).parent.mkdir(parents=True)
    shutil.copy(ROOT / REGISTRY, tmp_path / REGISTRY)
    return tmp_path


def names(checkout: Path) -> list[str]:
    """Returns what the tuple RULES of the registry lists."""
    tree = ast.parse((checkout / REGISTRY).read_text(encoding="utf-8"))
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "RULES"
    )
    assert isinstance(value, ast.Tuple)
    return [ast.unparse(item) for item in value.elts]


def test_new_rule_has_page_detector_near_miss_and_a_place(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    arguments = ["loss/half-shard", "--after", "loss/uneven-shard", "--link", "loss"]
    assert new_rule.main(arguments) == 0
    assert capsys.readouterr().out == (
        "ddpcheck/report/pages/rules/loss/half-shard.md\n"
        "ddpcheck/diagnose/rules/loss_half_shard.py\n"
        "tests/corpus/sound/loss-half-shard.py\n"
        "ddpcheck/diagnose/registry.py\n"
    )
    page = (checkout / "ddpcheck/report/pages/rules/loss/half-shard.md").read_text()
    assert tuple(line[3:] for line in page.splitlines() if line[:3] == "## ") == (
        HEADINGS
    )
    (detector,) = (checkout / "ddpcheck/diagnose/rules").glob("*.py")
    assert "loss/half-shard" in ast.unparse(ast.parse(detector.read_text()))
    near_miss = programs.read(checkout / "tests/corpus/sound/loss-half-shard.py")
    assert (near_miss.name, near_miss.verdict) == (
        "sound/loss-half-shard",
        "equivalent",
    )
    assert near_miss.shows.startswith("TODO: what looks like loss/half-shard here")
    listed = names(checkout)
    assert listed[listed.index("loss_uneven_shard") + 1] == "loss_half_shard"
    assert len(listed) == len(names(ROOT)) + 1
    imported = (checkout / REGISTRY).read_text().partition("rules import (")[2]
    order = imported.partition(")")[0].split()
    assert "loss_half_shard," in order
    assert order == sorted(order)


def test_files_of_a_new_rule_are_refused_until_they_are_written(
    checkout: Path,
) -> None:
    arguments = {"after": "loss/uneven-shard", "link": "loss", "root": checkout}
    page, detector, near_miss, _ = new_rule.create("loss/half-shard", **arguments)  # type: ignore[arg-type]
    assert test_pages.UNWRITTEN in test_pages.faults(page.read_text())
    assert test_pages.is_unwritten(detector)
    assert "TODO" in programs.read(near_miss).source


def test_link_of_a_new_rule_has_no_default(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    with pytest.raises(SystemExit, match="2"):
        new_rule.main(["loss/half-shard", "--after", "loss/uneven-shard"])
    assert "the following arguments are required: --link" in capsys.readouterr().err
    assert [p for p in checkout.rglob("*") if p.is_file()] == [checkout / REGISTRY]


@pytest.mark.parametrize(
    ("slug", "after", "told"),
    [
        ("half-shard", "loss/uneven-shard", "'half-shard' is no slug"),
        ("loss/Half", "loss/uneven-shard", "'loss/Half' is no slug"),
        ("loss/half-shard", "loss/no-such", "there is no rule loss_no_such"),
    ],
)
def test_wrong_arguments_write_nothing(
    checkout: Path, slug: str, after: str, told: str
) -> None:
    before = (checkout / REGISTRY).read_text()
    with pytest.raises(ValueError, match=told):
        new_rule.create(slug, after=after, link="loss", root=checkout)
    assert (checkout / REGISTRY).read_text() == before
    assert [p for p in checkout.rglob("*") if p.is_file()] == [checkout / REGISTRY]


def test_rule_that_exists_is_not_written_over(checkout: Path) -> None:
    arguments = {"after": "loss/uneven-shard", "link": "loss", "root": checkout}
    first, *_ = new_rule.create("loss/half-shard", **arguments)  # type: ignore[arg-type]
    first.write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="there is a rule loss/half-shard already"):
        new_rule.create("loss/half-shard", **arguments)  # type: ignore[arg-type]
    assert first.read_text(encoding="utf-8") == "mine"
