"""Imports point down the layers that CONTRIBUTING.md draws."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _layers(number: int) -> dict[str, int]:
    """Returns the line of each module of a diagram; the top is 0."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    diagram = re.findall(r"```layers\n(.*?)```", text, re.DOTALL)[number]
    layers = {}
    for line, content in enumerate(diagram.splitlines()):
        names = re.split(r" {3,}", content)[0]
        layers.update(dict.fromkeys(names.split(), line))
    return layers


LAYERS = _layers(0)
INNER = {"run": _layers(1), "diagnose": _layers(2)}


def _modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / "ddpcheck").rglob("*.py")):
        parts = path.relative_to(ROOT / "ddpcheck").with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            found[name] = path
    return found


MODULES = _modules()
INNER_MODULES = [
    (package, name)
    for package in INNER
    for name in MODULES
    if name.startswith(f"{package}.")
]


def _unit(name: str, layers: dict[str, int]) -> str:
    """Returns the entry of the diagram that a module belongs to."""
    parts = name.split(".")
    longest = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((unit for unit in longest if unit in layers), parts[0])


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


def _upward(name: str, source: str, layers: dict[str, int]) -> list[str]:
    unit = _unit(name, layers)
    imported = {other for other in _imported(source) if _unit(other, layers) != unit}
    own = layers.get(unit, -1)  # what is not drawn fails in the test above
    return sorted(o for o in imported if layers.get(_unit(o, layers), own + 1) <= own)


@pytest.mark.parametrize("name", MODULES)
def test_module_stands_in_the_diagram(name: str) -> None:
    assert _unit(name, LAYERS) in LAYERS, "add it to the diagram in CONTRIBUTING.md"


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_from_lower_layers_only(name: str) -> None:
    source = MODULES[name].read_text(encoding="utf-8")
    assert _upward(name, source, LAYERS) == []


@pytest.mark.parametrize(("package", "name"), INNER_MODULES)
def test_module_of_a_package_stands_in_its_diagram(package: str, name: str) -> None:
    unit = _unit(name, INNER[package])
    assert unit in INNER[package], f"add it to the diagram of {package}"


@pytest.mark.parametrize(("package", "name"), INNER_MODULES)
def test_module_of_a_package_imports_from_lower_layers_only(
    package: str, name: str
) -> None:
    source = MODULES[name].read_text(encoding="utf-8")
    assert _upward(name, source, INNER[package]) == []


def test_upward_import_is_found() -> None:
    source = "def f():\n    from ddpcheck import checking\n    import ddpcheck.cli\n"
    assert _upward("report", source, LAYERS) == ["checking", "cli"]


def test_import_within_a_line_of_the_diagram_is_found() -> None:
    source = "from ddpcheck.report import Report"
    assert _upward("tree", source, LAYERS) == ["report"]


def test_upward_import_within_run_is_found() -> None:
    source = "from ddpcheck.run.fixes import apply"
    assert _upward("run.watch.beside", source, INNER["run"]) == ["run.fixes.apply"]


def test_upward_import_within_diagnose_is_found() -> None:
    source = "from ddpcheck.diagnose import registry"
    found = _upward("diagnose.facts.case", source, INNER["diagnose"])
    assert found == ["diagnose.registry"]
