"""What ranks cannot import reaches them by value, everything else by name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddpcheck.errors.problem import UsageError
from ddpcheck.target import shipping

SOURCE = """\
FACTOR = 1


class Scaled:
    def __call__(self, value):
        return FACTOR * value


def plus(value):
    return value + FACTOR
"""
READER = """
import sys
from ddpcheck.target import shipping
plus, scaled = shipping.unpack(sys.argv[1])
print(plus.__module__ in sys.modules, plus(1), scaled(5))
"""


def _load(path: Path) -> ModuleType:
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path, for this process and those it starts."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith("_module"):
            del sys.modules[name]


def _in_another_process(module: ModuleType, folder: Path) -> str:
    path = folder / "pickled"
    shipping.pack((module.plus, module.Scaled()), path)
    command = [sys.executable, "-c", READER, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importable_module_goes_by_name(folder: Path) -> None:
    module = _load(folder / "helper_module.py")
    module.FACTOR = 3  # type: ignore[attr-defined]
    assert _in_another_process(module, folder) == "True 2 5"


def test_test_module_goes_by_value_with_its_globals_as_they_are(folder: Path) -> None:
    module = _load(folder / "test_of_user_module.py")
    module.FACTOR = 3  # type: ignore[attr-defined]
    assert _in_another_process(module, folder) == "False 4 15"


def test_module_that_only_this_process_can_import_goes_by_value(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    module = _load(folder / "elsewhere" / "hidden_module.py")
    assert _in_another_process(module, folder) == "False 2 5"


def test_code_that_goes_by_value_says_what_file_it_is_from(folder: Path) -> None:
    module = _load(folder / "test_of_user_module.py")

    def outer() -> Any:
        return lambda: module  # an inner code object

    shipping.pack((module.plus, outer), folder / "pickled")
    plus, made = shipping.unpack(str(folder / "pickled"))
    assert plus.__code__.co_filename == str(folder / "test_of_user_module.py")
    assert {f.__code__.co_filename for f in (made, made())} == {__file__}


def test_what_cannot_be_pickled_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot pickle") as raised:
        shipping.pack(threading.Lock(), tmp_path / "pickled")
    assert raised.value.problem.slug == "target-pickle"
    assert not (tmp_path / "pickled").exists()
