"""One pool of warm ranks per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.suite import runner


@pytest.fixture(scope="session")
def suite_runner() -> Iterator[runner.Runner]:
    """Runs cells; ranks are forked once per world size."""
    with Pool(Preload(modules=runner.PRELOAD_MODULES)) as pool:
        pool.start()
        pool.wait_for_imports()
        yield runner.Runner(pool)
