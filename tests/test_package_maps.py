"""The docstring of every package is a map of it: each module is named there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ddpcheck

ROOT = Path(ddpcheck.__file__).parent
# Their modules have names that tell, one by one: a rule each, a fact each.
TELLING = {"rules", "fixes", "watch", "record", "process", "virtual"}
PACKAGES = [
    path.parent
    for path in sorted(ROOT.rglob("__init__.py"))
    if path.parent != ROOT and path.parent.name not in TELLING
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_module_is_named_in_its_packages_docstring(package: Path) -> None:
    source = (package / "__init__.py").read_text(encoding="utf-8")
    words = set((ast.get_docstring(ast.parse(source)) or "").replace(",", " ").split())
    words |= {word.rstrip(":;/") for word in words}
    modules = {p.stem for p in package.glob("*.py")} - {"__init__", "__main__"}
    assert modules - words == set()
