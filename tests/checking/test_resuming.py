"""The report on a script that was started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import resuming
from ddpcheck.diagnose.script_data.resumed import Compared
from ddpcheck.target import script as scripts
from ddpcheck.target.options import Options


@pytest.mark.parametrize(
    ("updates", "tensors", "verdict", "code"),
    [(3, 8, "equivalent", 0), (0, 8, "not-checked", 3), (0, 0, "not-checked", 3)],
)
def test_resume_of_which_nothing_was_compared_does_not_pass(
    updates: int, tensors: int, verdict: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").touch()
    script = scripts.parsed([str(tmp_path / "train.py")])
    found = Compared(
        findings=[],
        not_compared=(),
        start=2,
        updates=updates,
        tensors=tensors,
        lost=0,
    )
    options = Options(resume_at=2)
    report = resuming._report(script, 2, options, found, 1.0)  # noqa: SLF001 (pure)
    assert (report.verdict, report.exit_code) == (verdict, code)
    why = "" if code == 0 else "no update of the resumed run was compared"
    assert report.runs[0].why == why
