"""Interventions that rules name are on the list, which says what each does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import ddpcheck.diagnose
from ddpcheck.run.fixes import apply

FOLDER = Path(ddpcheck.diagnose.__file__).parent
NAME = re.compile(r"[a-z_]+\.[a-z_0-9]+")


def _listed() -> set[str]:
    lines = (apply.__doc__ or "").splitlines()
    heads = (line.strip().partition("  ")[0] for line in lines if line[4:5].strip())
    return set(NAME.findall("\n".join(heads)))


def _used() -> Iterator[str]:
    """Yields the names in what rules give as `fixes` or `control`."""
    for path in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg in ("fixes", "control"):
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value.partition(":")[0]


def test_every_intervention_of_a_rule_is_listed() -> None:
    used = {name for name in _used() if NAME.fullmatch(name)}
    assert len(used) > 30
    assert used - _listed() == set()
