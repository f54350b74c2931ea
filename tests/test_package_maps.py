"""Every folder says in its docstring what lives there and what does not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ddpcheck

ROOT = Path(ddpcheck.__file__).parent
ROOMS_AT_MOST = 12  # names at the first level: a newcomer reads them all
PACKAGES = [p.parent for p in sorted(ROOT.rglob("__init__.py")) if p.parent != ROOT]


def _docstring(package: Path) -> str:
    source = (package / "__init__.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_package_says_what_lives_there_and_what_does_not(package: Path) -> None:
    first, blank, *rest = _docstring(package).splitlines()
    assert first.endswith(".")
    assert blank == ""
    assert [line.partition(":")[0] for line in rest] == ["Lives here", "Not here"]


def test_first_level_has_few_names() -> None:
    names = {p.stem for p in ROOT.iterdir() if not p.name.startswith((".", "__"))}
    assert len(names - {"py"}) <= ROOMS_AT_MOST
