"""A trial that tells nothing of the target is made once more."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.messages import Outcome
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunOutcome, RunSpec
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

SUMMED = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 3)
batch = torch.randn(8, 4), torch.arange(8) % 3
loss = nn.CrossEntropyLoss(reduction="sum")
"""


@pytest.mark.usefixtures("causes_alone")
@pytest.mark.parametrize(
    ("ended", "proven"),
    [
        ({"kind": "died", "exit_code": -signal.SIGKILL}, ["loss/sum-reduction"]),
        ({"kind": "died", "exit_code": -signal.SIGTERM}, ["loss/sum-reduction"]),
        ({"kind": "hung"}, ["loss/sum-reduction"]),
        ({"kind": "died", "exit_code": -signal.SIGABRT}, []),
        ({"kind": "stuck"}, []),
    ],
)
def test_trial_is_made_once_more_where_it_was_ended_from_outside(
    ended: dict[str, Any],
    proven: list[str],
    pool: Pool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SUMMED)
    run, ends = Session.run, iter([ended])

    def broken_off_once(
        self: Session, specs: Iterable[RunSpec], *, apart: bool = False
    ) -> list[RunOutcome]:
        outcomes = run(self, specs, apart=apart)
        for outcome in outcomes:
            if outcome.spec.fixes and (told := next(ends, None)):
                outcome.ranks[0] = Outcome(rank=0, **told)
        return outcomes

    monkeypatch.setattr(Session, "run", broken_off_once)
    options = Options(world_sizes=(2,), modes=("ddp",))
    report = checking.check(pool, TargetRef(path=str(path)), options)
    assert next(ends, None) is None
    assert [f.slug for f in report.findings if f.fix and f.fix.verified] == proven
