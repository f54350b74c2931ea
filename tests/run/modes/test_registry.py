"""The modes: their descriptions, and that no other code compares their names."""

from __future__ import annotations

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

from ddpcheck.run.modes import registry
from ddpcheck.run.modes.mode import Mode

PACKAGE = Path(__file__).parents[3] / "ddpcheck"
MODES = PACKAGE / "run" / "modes"
NAMES = {mode.name for mode in registry.MODES}


def _names_in(source: str) -> list[int]:
    """Returns the lines with a string that is a mode's name."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]


def test_no_other_file_writes_the_name_of_a_mode() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in _names_in(path.read_text(encoding="utf-8"))
        if path.parent != MODES
    ]
    assert found == []


def test_name_that_is_tested_would_be_seen() -> None:
    assert _names_in('a = 1\nif run.mode == "dp":\n    pass\n') == [2]
    assert _names_in('kinds = ("ddp", "other")') == [1]
    assert _names_in('"""Of dp and ddp."""\nfrom x import DDP\nDDP.name') == []


def test_every_name_is_written_in_one_file() -> None:
    written = {
        name: [
            path.stem
            for path in sorted(MODES.glob("*.py"))
            if f'    name="{name}",' in path.read_text(encoding="utf-8")
        ]
        for name in NAMES
    }
    assert written == {name: [name] for name in NAMES}


def test_names_are_unique_and_found() -> None:
    assert len(NAMES) == len(registry.MODES)
    assert [registry.mode_of(m.name) for m in registry.MODES] == list(registry.MODES)


@pytest.mark.parametrize("mode", registry.MODES, ids=lambda mode: str(mode.name))
def test_entry_point_of_every_mode_is_there(mode: Mode) -> None:
    module, name = mode.entry_point.split(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_modes_by_what_they_are() -> None:
    told = {
        mode.name: (mode.processes(3), mode.replicas(3), mode.shard_sizes(8, 3))
        for mode in registry.MODES
    }
    assert told == {
        "single": (0, 1, (3, 3, 2)),
        "dp": (0, 3, (3, 3, 2)),
        "ddp": (3, 1, (3, 3, 2)),
        "ps": (4, 1, (3, 3, 2)),
        "sim": (0, 1, (3, 3, 2)),
        "averaged": (3, 1, (3, 3, 2)),
    }
    assert registry.mode_of("dp").shard_sizes(8, 5) == (2, 2, 2, 2)  # as torch.chunk


def test_a_mode_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        registry.MODES[0].name = "other"  # type: ignore[misc]


def test_choice_of_modes_without_a_search_for_its_causes_is_refused() -> None:
    with pytest.raises(ValueError, match="mode hsdp is a choice and needs"):
        Mode(name="hsdp", title="Hybrid sharding", entry_point="x:y", is_choice=True)
