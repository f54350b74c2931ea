"""What weights a communication hook gives the ranks' gradients, from its sketches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.corpus import programs
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("causes_alone")]


def test_weights_are_those_of_the_step_before(pool: Pool, tmp_path: Path) -> None:
    source = programs.source("sync/hook-that-weighs-by-the-shares-of-the-step-before")
    (finding,) = checked(pool, tmp_path, source).findings
    assert (finding.summary, finding.facts[:2]) == (
        "a communication hook weights the ranks' gradients by other counts than "
        "those that divide their losses",
        (
            "register_comm_hook was called once",
            "its weights in call 2: 0.6, 0.4 on the ranks; a mean has 0.5 for each",
        ),
    )
