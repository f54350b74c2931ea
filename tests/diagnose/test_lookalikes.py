"""What looks like one cause and is another comes out as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.ranks.pool import Pool
from tests.diagnose.lookalikes import LOOKALIKES
from tests.diagnose.negative_controls import HEAD
from tests.diagnose.test_rules import checked

pytestmark = [pytest.mark.corpus, pytest.mark.usefixtures("no_script")]


@pytest.mark.parametrize("name", list(LOOKALIKES))
def test_lookalike_comes_out_as_what_it_is(
    name: str, short: Pool, tmp_path: Path
) -> None:
    source, findings = LOOKALIKES[name]
    report = checked(short, tmp_path, HEAD + source)
    found = [(f.slug, f.fix.verified if f.fix else None) for f in report.findings]
    assert found == findings
