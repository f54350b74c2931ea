"""The code that findings print is whole in a terminal of 80 columns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpcheck.diagnose import rules
from ddpcheck.render.terminal_page import LABEL

RULES = sorted(Path(rules.__path__[0]).glob("*_*.py"))
COLUMNS = 80 - (LABEL + 2)


def _printed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields what is given as `code`, or is a constant that is called so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code":
            yield node.value
        elif isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if any(name.endswith("CODE") for name in names):
                yield node.value


def _lines(code: ast.AST) -> Iterator[str]:
    for node in ast.walk(code):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.splitlines()


def test_all_rules_are_looked_at() -> None:
    with_code = [p for p in RULES if list(_printed(ast.parse(p.read_text("utf-8"))))]
    assert len(with_code) > 0.8 * len(RULES)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_no_line_is_cut(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [line for code in _printed(tree) for line in _lines(code)]
    assert [line for line in lines if len(line) > COLUMNS] == []
