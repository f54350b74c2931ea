"""What an update does wrong by itself is told beside the loss whose fix hides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.corpus import programs
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]


@pytest.mark.parametrize(
    ("name", "summary", "facts"),
    [
        (
            "loss/average-by-the-own-samples-behind-an-overlap",
            "weights that no optimizer trains (an average, a teacher) are updated "
            "using the local shard, or its size",
            (
                "given the single-process gradients at every update, 2 untrained "
                "parameters differ after step 1: average.bias, average.weight",
                "no run separates this cause: when the loss gets all samples, the "
                "code after it does, too",
            ),
        ),
        (
            "loss/step-size-by-the-own-loss-behind-a-masked-mean",
            "the ranks update their weights with different numbers: each rank "
            "decides by itself",
            (
                "given the single-process gradients at every update, 2 trained "
                "parameters differ after step 1: bias, weight",
                "when every number read from a tensor is the mean over ranks, they "
                "agree",
            ),
        ),
    ],
)
def test_hidden_cause_says_what_is_left_with_right_gradients(
    name: str, summary: str, facts: tuple[str, ...], pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, programs.source(name))
    hidden = report.findings[1]
    assert (hidden.summary, hidden.facts) == (summary, facts)
