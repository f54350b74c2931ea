"""The recorded cases of the corpus: rules and the search without a process.

Each file of tests/recorded has what ranks answered in the check of one program, or of
the example of one page; see recorded.py. The same rules and the same search find the
same causes in it. A change that needs other runs is reported as such, and its cases
have to be recorded again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.report.pages import pages
from ddpcheck.target.options import Options
from tests.corpus.programs import Program, programs
from tests.diagnose import recorded
from tests.diagnose.test_pages import OF_SCRIPTS
from tests.diagnose.test_rules import RAISES, UNVERIFIED, modes_of

pytestmark = pytest.mark.usefixtures("no_script")
PROGRAMS = [p for p in programs().values() if p.findings]
NO_TARGETS = {*RAISES, *OF_SCRIPTS}  # their examples are not checked as targets
PAGES = [slug for slug in pages.rule_slugs() if slug not in NO_TARGETS]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_recorded_program_yields_what_its_header_says(program: Program) -> None:
    report = recorded.replay(program.path, program.options, program.name)
    found = tuple((f.slug, f.fix.verified if f.fix else None) for f in report.findings)
    assert (report.verdict, found) == (program.verdict, program.findings)


FIXES = {
    "ddp/parameter-beside-networks-that-are-clipped-by-hand": "wrap heat too",
    "sync/hooks-that-keep-rounding-small": "clip once, after the last backward and "
    "before the optimizer's step, in place of the hooks on body.weight, body.bias",
    "sync/history-on-the-optimizer": "all-reduce the values that determine "
    "optimizer.history.losses, then make the same update on all ranks",
}


@pytest.mark.parametrize(("name", "text"), FIXES.items(), ids=FIXES)
def test_fix_names_what_is_wrong_in_this_file(name: str, text: str) -> None:
    program = programs()[name]
    report = recorded.replay(program.path, program.options, name)
    (finding,) = report.findings
    assert finding.fix is not None
    assert finding.fix.text == text


@pytest.mark.parametrize("slug", PAGES)
def test_recorded_example_yields_its_finding(slug: str, tmp_path: Path) -> None:
    path = tmp_path / "target.py"
    path.write_text(pages.targets(slug)[0], encoding="utf-8")
    options = Options(world_sizes=(2,), modes=modes_of(slug))
    report = recorded.replay(path, options, f"page/{slug}")
    found = [(f.slug, f.fix and f.fix.verified) for f in report.findings]
    assert found == [(slug, None if slug in UNVERIFIED else True)]


def test_every_rule_has_a_recorded_case() -> None:
    slugs = {slug for program in PROGRAMS for slug in program.slugs} | {*PAGES}
    assert {*pages.rule_slugs()} - slugs <= NO_TARGETS
