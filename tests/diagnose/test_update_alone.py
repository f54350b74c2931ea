"""What an update does wrong by itself is told beside the loss whose fix hides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.bugs.behind import BUGS
from tests.diagnose.negative_controls import HEAD
from tests.diagnose.test_rules import checked

pytestmark = pytest.mark.corpus


@pytest.mark.parametrize(
    ("name", "summary", "facts"),
    [
        (
            "average-by-the-own-samples-behind-an-overlap",
            "weights that no optimizer trains (an average, a teacher) are updated by "
            "the rank's own samples, or how many they are",
            (
                "with one process's gradients at every update, 2 untrained parameters "
                "differ after step 1: average.bias, average.weight",
                "no run tells it apart: where the loss sees all samples, so does what "
                "comes after it",
            ),
        ),
        (
            "step-size-by-the-own-loss-behind-a-masked-mean",
            "the ranks update their weights with different numbers: each decides on "
            "its own",
            (
                "with one process's gradients at every update, 2 trained parameters "
                "differ after step 1: bias, weight",
                "where ranks that read a tensor's number read the mean over ranks, "
                "they agree",
            ),
        ),
    ],
)
def test_hidden_cause_says_what_is_left_with_right_gradients(
    name: str, summary: str, facts: tuple[str, ...], pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, HEAD + BUGS[name][0])
    hidden = report.findings[1]
    assert (hidden.summary, hidden.facts) == (summary, facts)
