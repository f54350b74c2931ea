"""The recorded cases of the corpus: rules and the search without a process.

Each file of tests/recorded has what ranks answered in the check of one program, see
test_corpus.py. The same rules and the same search find the same causes in it. A change
that needs other runs is reported, and its cases have to be recorded again.
"""

from __future__ import annotations

import pytest

from ddpcheck.checking import checking
from ddpcheck.diagnose import recording
from ddpcheck.diagnose.registry import FAULT_RULES, RULES
from ddpcheck.target.target import TargetRef
from tests.corpus.programs import Program, programs
from tests.diagnose.test_corpus import RECORDED

pytestmark = pytest.mark.usefixtures("no_script")
ALL = [p for p in programs().values() if (RECORDED / f"{p.name}.json.gz").exists()]


def _replayed(program: Program) -> tuple[str, tuple[tuple[str, bool | None], ...]]:
    ref = TargetRef(path=str(program.path))
    replay = recording.Replay(RECORDED / f"{program.name}.json.gz", ref)
    report = checking.check(replay.pool, ref, program.options, session=replay)
    assert not replay.internal, next(iter(replay.internal))
    found = tuple((f.slug, f.fix.verified if f.fix else None) for f in report.findings)
    return report.verdict, found


@pytest.mark.parametrize("program", ALL, ids=lambda p: p.name)
def test_recorded_case_yields_what_its_program_says(program: Program) -> None:
    assert _replayed(program) == (program.verdict, program.findings)


def test_every_rule_of_ranks_has_a_recorded_case() -> None:
    recorded = {slug for program in ALL for slug in program.slugs}
    assert {rule.SLUG for rule in (*RULES, *FAULT_RULES)} - recorded == set()
