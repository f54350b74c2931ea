"""Tests that share an expensive run are given to one worker."""

from __future__ import annotations

import os

import pytest

_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ


@pytest.mark.skipif(not _IS_WORKER, reason="without -n, one process has all tests")
@pytest.mark.xdist_group("grouping")
def test_groups_are_in_force(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@grouping"), "see constraints.txt"
