"""A fix that was found at one world size is the same fix at another."""

from __future__ import annotations

import pytest

from ddpcheck.diagnose.causes import scaled_to


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
