"""What a script imports of installed packages, by its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.target import script as scripts
from ddpcheck.target.script import Script


def test_libraries_of_a_file_are_the_installed_ones_it_names() -> None:
    source = b"import os, torch, no_such_package\nfrom pytest import mark\n"
    assert scripts.libraries(Script(source=source)) == ("pytest:mark",)


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("kit.train", "kit/train.py"),
        ("kit", "kit/__main__.py"),
        ("kit.nets", "kit/nets/__main__.py"),
        ("lonely", "lonely.py"),
    ],
)
def test_libraries_of_a_module_are_found_without_an_import(
    module: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kit/nets").mkdir(parents=True)
    (tmp_path / "kit/__init__.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path / file).write_text("import pytest\nimport os\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert scripts.libraries(Script(module=module)) == ("pytest",)


def test_module_that_is_not_there_has_no_libraries() -> None:
    assert scripts.libraries(Script(module="no_such_package.train")) == ()


def test_package_of_a_name_is_its_first_part() -> None:
    assert scripts.package("kit.nets:Net") == "kit"
