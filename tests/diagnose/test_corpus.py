"""Every program of the corpus yields what its header says, and nothing else.

Those without the marks `corpus` and `release` are chosen by what they cover. With the
examples of the pages (test_rules) that is every slug, every intervention that proves a
cause, both verdicts, and of what is sound every function and class of
torch.distributed, of its wrapper and of torch.nn that a program uses: see
tests/corpus/coverage.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.corpus import coverage
from tests.corpus.programs import Program, programs
from tests.diagnose import recorded
from tests.diagnose.test_rules import HANGS, skip_below


def _marks(program: Program) -> list[pytest.MarkDecorator]:
    if program.slow:
        return [pytest.mark.slow]
    if program.name in coverage.quick():
        return []
    is_in_ci = program.name in coverage.in_ci()
    return [pytest.mark.corpus if is_in_ci else pytest.mark.release]


ALL = [pytest.param(p, id=p.name, marks=_marks(p)) for p in programs().values()]


@pytest.mark.usefixtures("causes_alone")
@pytest.mark.parametrize("program", ALL)
def test_program_yields_what_its_header_says(
    program: Program,
    jobs: list[str],
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    skip_below(*program.needs)
    # Ranks that never answer are given up sooner.
    pool = request.getfixturevalue("short" if HANGS & set(program.slugs) else "pool")
    report = recorded.check(pool, program.path, program.options, program.name)
    found = tuple((f.slug, f.fix.verified if f.fix else None) for f in report.findings)
    assert (report.verdict, found) == (program.verdict, program.findings)
    assert report.runs[0].gradients.compared or program.findings
    for name, value in coverage.properties(program.name, report, jobs):
        record_property(name, value)
