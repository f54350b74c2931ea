"""What a fix leaves, and the same fix at another world size."""

from __future__ import annotations

import math

import pytest

from ddpcheck.diagnose.search.causes import is_of_one_size, scaled_to
from ddpcheck.run.intervention import (
    CountLoss,
    Intervention,
    ScaleDirect,
    ScaleLoss,
    ScaleOutputs,
    ScaleTerms,
    Switch,
)


@pytest.mark.parametrize(
    ("fix", "at_eight"),
    [
        (ScaleLoss(factor=2.0), ScaleLoss(factor=8.0)),
        (ScaleLoss(factor=0.25), ScaleLoss(factor=0.015625)),
        (ScaleDirect(factor=0.5), ScaleDirect(factor=0.125)),
        (
            ScaleOutputs(factor=0.5, paths=("output[1]",)),
            ScaleOutputs(factor=0.125, paths=("output[1]",)),
        ),
        (ScaleTerms(factor=0.5), ScaleTerms(factor=0.125)),
        (ScaleTerms(factor=0.7), ScaleTerms(factor=0.7)),
        (ScaleTerms(factor=0.9), ScaleTerms(factor=0.9)),
        (CountLoss(countable="target"), CountLoss(countable="target")),
        (Switch.REWRAP, Switch.REWRAP),
    ],
)
def test_factors_of_the_world_size_follow_it(
    fix: Intervention, at_eight: Intervention
) -> None:
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
