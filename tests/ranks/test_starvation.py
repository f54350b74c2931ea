"""What processes had of cores, where they end while they are looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpcheck.ranks.starvation import Starvation


def test_process_that_ends_while_it_is_looked_at_has_no_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(path: Path, _: str) -> Iterator[Path]:
        yield from ()
        raise ProcessLookupError(3, "No such process", str(path))

    monkeypatch.setattr(Path, "glob", ended)
    assert Starvation().look([os.getpid()]) is None
