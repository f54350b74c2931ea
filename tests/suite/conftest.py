"""One runner per test process: its references serve all tests of a case."""

from __future__ import annotations

import pytest

from ddpcheck.ranks.pool import Pool
from ddpcheck.suite.runner import Runner


@pytest.fixture(scope="session")
def suite_runner(pool: Pool) -> Runner:
    """Runs cells on the warm ranks of the session."""
    return Runner(pool)
