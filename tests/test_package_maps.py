"""Every folder says in its docstring what lives there and what does not."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import ddpcheck

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(ddpcheck.__file__).parent
ROOMS_AT_MOST = 12  # names at the first level: a newcomer reads them all
NAMED = re.compile(r"ddpcheck\.(?P<room>\w+)\.[\w.]+(:\w+)?")
FOLDERS = sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").is_file())
PACKAGES = [p.parent for p in sorted(ROOT.rglob("__init__.py")) if p.parent != ROOT]


def _docstring(package: Path) -> str:
    source = (package / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_package_lists_what_lives_there_and_what_does_not(package: Path) -> None:
    text, _, words = _docstring(package).partition("\n\nWords:\n")
    first, blank, *rest = text.splitlines()
    assert first.endswith(".")
    assert blank == ""
    assert [line.partition(":")[0] for line in rest] == ["Lives here", "Not here"]
    assert all(line.startswith("    ") for line in words.splitlines())


def test_first_level_has_few_names() -> None:
    names = {p.stem for p in ROOT.iterdir() if not p.name.startswith((".", "__"))}
    assert len(names - {"py"}) <= ROOMS_AT_MOST


def _layers() -> dict[str, int]:
    """Returns the height of each room, as import-linter's first contract has it."""
    text = (ROOT.parent / "pyproject.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = [[room.strip() for room in row.split("|")] for row in reversed(listed)]
    return {room: height for height, row in enumerate(rows) for room in row}


def _named_modules(path: Path) -> set[str]:
    """Returns the rooms of the modules that a file names as text, to be imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    found = (NAMED.fullmatch(text) for text in texts if isinstance(text, str))
    return {match["room"] for match in found if match}


@pytest.mark.parametrize(
    "room", sorted(p.name for p in ROOT.iterdir() if p.is_dir() and p.name[0] != "_")
)
def test_module_named_as_text_is_in_no_higher_room(room: str) -> None:
    # Import-linter reads import statements, not what importlib imports.
    heights = _layers()
    for path in sorted((ROOT / room).rglob("*.py")):
        higher = {r for r in _named_modules(path) if heights[r] > heights[room]}
        assert not higher, path
