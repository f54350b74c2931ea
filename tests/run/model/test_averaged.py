"""Gradients averaged by hand are the mean over ranks, however they are cut."""

from __future__ import annotations

import pytest

from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool

# In the order of their names: a, b, half, late, phase, rows, turned, unused, whole.
# Rank 0 gives the numbers 0, 1, 2, ..., rank 1 twice as much: 1.5 times is the mean.
MEAN = {
    "a": [[0.0, 1.5, 3.0], [4.5, 6.0, 7.5]],
    "b": [0.0, 1.5, 3.0, 4.5],
    "half": [0.0, 1.5, 3.0],
    "late": [0.0, 1.0],  # rank 1 alone has 0, 2
    "phase": [0j, 1.5 + 3j],
    "rows": [[0.0, 1.5], [3.0, 4.5], [6.0, 7.5], [9.0, 10.5]],
    "turned": [[0.0, 4.5], [1.5, 6.0], [3.0, 7.5]],
    "unused": None,
    "whole": [0.0, 1.5, 3.0, 4.5, 6.0],
}


@pytest.mark.parametrize(
    ("bucket", "reduced"),
    [
        # First whether there is one, of 9 parameters; a complex number counts twice.
        (1 << 20, [9, 10, 3, 2 + 4 + 8 + 6 + 5]),
        (6, [9, 6, 4, 3, 2 + 4, 8, 6, 5]),
        (1, [9, 6, 4, 3, 2, 4, 8, 6, 5]),
    ],
)
def test_buckets_change_no_mean(bucket: int, reduced: list[int], pool: Pool) -> None:
    job = Job(function="tests.run.jobs:averaged_by_hand", arguments={"bucket": bucket})
    for outcome in pool.run(job, 2):
        assert outcome.value == {"gradients": MEAN, "reduced": reduced}
