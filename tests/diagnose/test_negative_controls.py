"""No rule fires on what only looks wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.negative_controls import CONTROLS, HEAD
from tests.diagnose.test_rules import checked


@pytest.mark.parametrize("name", CONTROLS)
def test_control_is_equivalent(name: str, pool: Pool, tmp_path: Path) -> None:
    report = checked(pool, tmp_path, HEAD + CONTROLS[name])
    assert (report.verdict, [f.slug for f in report.findings]) == ("equivalent", [])
    assert report.runs[0].gradients.compared


def test_a_control_that_is_wrong_would_be_seen(pool: Pool, tmp_path: Path) -> None:
    source = CONTROLS["count-reduced-without-gradient"].replace("world() * ", "")
    report = checked(pool, tmp_path, HEAD + source)
    assert report.verdict == "divergent"


def test_data_that_hid_a_local_count_is_warned_of(pool: Pool, tmp_path: Path) -> None:
    source = CONTROLS["ignored-targets-in-equal-numbers"]
    report = checked(pool, tmp_path, HEAD + source)
    assert report.warnings == (
        "equal on this batch as it falls on the shards; with its samples in another "
        "order weight differs by 0.461 at world size 2: the shards happen to hold the "
        "same counts, or belong together",
    )
