"""What a fix leaves, and the same fix at another world size."""

from __future__ import annotations

import math

import pytest

from ddpcheck.diagnose.search.causes import is_of_one_size, scaled_to


@pytest.mark.parametrize(
    ("fix", "at_eight"),
    [
        ("loss.scale:2.0", "loss.scale:8"),
        ("loss.scale:0.25", "loss.scale:0.015625"),
        ("direct.scale:0.5", "direct.scale:0.125"),
        ("terms.scale:0.5", "terms.scale:0.125"),
        ("terms.scale:0.7", "terms.scale:0.7"),
        ("terms.scale:0.9", "terms.scale:0.9"),
        ("loss.count:target", "loss.count:target"),
        ("ddp.rewrap", "ddp.rewrap"),
    ],
)
def test_factors_of_the_world_size_follow_it(fix: str, at_eight: str) -> None:
    assert scaled_to(fix, 2, 8) == at_eight
    assert scaled_to(fix, 2, 2) == fix


@pytest.mark.parametrize(
    ("was", "left", "same"),
    [
        (6.62e5, 6.53e5, True),
        (1.97e5, 1.01e5, True),
        (math.inf, math.inf, True),
        (3e8, 2e3, False),
        (math.inf, 3e8, False),
        (4e3, 3e8, False),
    ],
)
def test_excess_of_the_same_size_is_left(was: float, left: float, same: bool) -> None:  # noqa: FBT001
    assert is_of_one_size(was, left) is same
