"""Imports point down the layers that CONTRIBUTING.md draws."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _layers() -> dict[str, int]:
    """Returns the line of each module; the top of the diagram is 0."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"```layers\n(.*?)```", text, re.DOTALL)
    assert found is not None
    layers = {}
    for number, line in enumerate(found[1].splitlines()):
        names = re.split(r" {3,}", line)[0]
        layers.update(dict.fromkeys(names.split(), number))
    return layers


LAYERS = _layers()


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "ddpcheck").rglob("*.py")):
        parts = path.relative_to(ROOT / "ddpcheck").with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            found[name] = path
    return found


MODULES = _modules()


def _unit(name: str) -> str:
    """Returns the entry of the diagram that a module belongs to."""
    parts = name.split(".")
    longest = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((unit for unit in longest if unit in LAYERS), parts[0])


@functools.cache
def _imported(source: str) -> set[str]:
    """Returns the modules of the package that a source imports, without its name."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full.removeprefix("ddpcheck.") in MODULES
                names.add(full if is_module else node.module)
    return {n.removeprefix("ddpcheck.") for n in names if n.startswith("ddpcheck.")}


def _upward(name: str, source: str) -> list[str]:
    unit = _unit(name)
    imported = {other for other in _imported(source) if _unit(other) != unit}
    own = LAYERS.get(unit, -1)  # what is not drawn fails in the test above
    return sorted(o for o in imported if LAYERS.get(_unit(o), own + 1) <= own)


@pytest.mark.parametrize("name", MODULES)
def test_module_stands_in_the_diagram(name: str) -> None:
    assert _unit(name) in LAYERS, "add it to the diagram in CONTRIBUTING.md"


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_from_lower_layers_only(name: str) -> None:
    assert _upward(name, MODULES[name].read_text(encoding="utf-8")) == []


def test_upward_import_is_found() -> None:
    source = "def f():\n    from ddpcheck import checking\n    import ddpcheck.cli\n"
    assert _upward("report", source) == ["checking", "cli"]


def test_import_within_a_line_of_the_diagram_is_found() -> None:
    assert _upward("tree", "from ddpcheck.report import Report") == ["report"]
