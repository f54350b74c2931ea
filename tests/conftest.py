"""One pool of warm ranks per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.suite import runner


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """The engine with torch imported; ranks are forked once per world size."""
    with Pool(Preload(modules=runner.PRELOAD_MODULES)) as made:
        made.start()
        made.wait_for_imports()
        yield made
