r"""Where recorded cases are, and what writes them.

With DDPCHECK_RECORD=1 the checks of the corpus, and of the examples of all pages, are
written to tests/recorded, for test_recorded.py:

    DDPCHECK_RECORD=1 pytest -n auto -m "corpus or not corpus" \
        tests/diagnose/test_corpus.py tests/diagnose/test_rules.py
"""

from __future__ import annotations

import os
from pathlib import Path

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.diagnose import recording

FOLDER = Path(__file__).parents[1] / "recorded"


def path_of(name: str) -> Path:
    """Returns the file of a program, "loss/mean-of-a-shard", or "page/SLUG"."""
    return FOLDER / f"{name}.json.gz"


def check(pool: Pool, path: Path, options: Options, name: str) -> Report:
    """Returns the report of a target; writes its case if that is asked for."""
    ref = TargetRef(path=str(path))
    session = recording.Recorder(pool, ref)
    report = checking.check(pool, ref, options, session=session)
    if os.environ.get("DDPCHECK_RECORD") and report.findings:
        path_of(name).parent.mkdir(parents=True, exist_ok=True)
        recording.write(session, path_of(name))
    return report


def replay(path: Path, options: Options, name: str) -> Report:
    """Returns the report that the recorded answers give now."""
    ref = TargetRef(path=str(path))
    session = recording.Replay(path_of(name), ref)
    report = checking.check(session.pool, ref, options, session=session)
    assert not session.internal, next(iter(session.internal))
    return report
