"""The pytest plugin: the fixture `ddpcheck`; costs nothing where it is not used.

Nothing of torch, and nothing of ddpcheck but this module, is imported before a test
asks for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ddpcheck.fixture import Checker
    from ddpcheck.ranks.pool import Pool


@pytest.fixture(scope="session")
def _ddpcheck_pool() -> Iterator[Pool]:
    """Ranks that stay warm over the session of this process."""
    from ddpcheck.fixture import open_pool  # noqa: PLC0415

    with open_pool() as pool:
        yield pool


@pytest.fixture
def ddpcheck(_ddpcheck_pool: Pool) -> Checker:
    """Returns `check(model, batch, loss, world_sizes=[2, 4], ...)`.

    It takes what a target file defines, and raises DivergenceError with the terminal
    report as its text where data-parallel training is not that of one process.
    """
    from ddpcheck.fixture import Checker  # noqa: PLC0415

    return Checker(_ddpcheck_pool)


def pytest_configure(config: Any) -> None:
    """Declares the marker by which tests that start ranks can be told apart."""
    config.addinivalue_line("markers", "ddpcheck: starts data-parallel ranks")
