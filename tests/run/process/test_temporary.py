"""Which torch makes temporary folders by being imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.run.process import temporary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import tempfile\n_TEMP_DIR = tempfile.TemporaryDirectory()\n", True),
        ("import tempfile\n\ndef instantiate(): ...\n", False),
        (None, False),
    ],
    ids=["makes", "does_not", "missing"],
)
def test_source_tells(tmp_path: Path, text: str | None, *, expected: bool) -> None:
    source = tmp_path / "instantiator.py"
    if text is not None:
        source.write_text(text, encoding="utf-8")
    assert temporary.makes_folder(source) is expected
