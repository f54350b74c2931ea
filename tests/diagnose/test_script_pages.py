"""The example of a page on scripts yields that finding, its fixed line none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.checking import resuming
from ddpcheck.diagnose.script_data import judge, resumed
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import SOLO, Pool
from ddpcheck.report.pages import pages
from ddpcheck.report.progress import Silent
from ddpcheck.target.options import Options
from ddpcheck.target.script import script

pytestmark = pytest.mark.slow


@pytest.fixture
def own_pool(warm: Pool) -> Iterator[Pool]:
    """A pool of its own: a recording retires the ranks that it ran in."""
    with warm.within(timeout_s=60.0) as pool:
        yield pool


def _recorded(pool: Pool, path: Path, source: str) -> tuple[list[Any], Any]:
    """Returns the events of two ranks, and of a single process."""
    path.write_text(source, encoding="utf-8")
    tasks = []
    for folder, world_size in ((path.parent / "ranks", 2), (path.parent / "one", SOLO)):
        folder.mkdir()
        job = Job(
            function="ddpcheck.run.script.recording:record",
            arguments={
                "script": script(str(path), ()),
                "folder": str(folder),
                "steps": 3,
            },
        )
        tasks.append(pool.submit(job, world_size))
    pool.wait(tasks)
    ranks, (one,) = (task.outcomes for task in tasks)
    assert [outcome.kind for outcome in (*ranks, one)] == ["done"] * 3
    return [outcome.progress for outcome in ranks], one.progress


def _code(text: str) -> list[str]:
    return [line[4:] for line in text.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("slug", judge.SLUGS)
def test_example_yields_its_finding(slug: str, own_pool: Pool, tmp_path: Path) -> None:
    example = _code(pages.sections(pages.page(slug))["Example"])
    events = _recorded(own_pool, tmp_path / "train.py", "\n".join(example))
    found = judge.findings(*events, finished=True)
    assert [one.slug for one in found] == [slug]


def _mended(slug: str) -> list[str]:
    """Returns the example of a page with its fixed line."""
    parts = pages.sections(pages.page(slug))
    (fixed,) = _code(parts["Fix"])
    name = fixed.partition(" = ")[0] + " = "
    example = _code(parts["Example"])
    mended = [fixed if line.startswith(name) else line for line in example]
    assert mended != example
    return mended


def _resumed(pool: Pool, path: Path, source: list[str]) -> list[str]:
    """Returns the slugs of a script that is resumed after two updates."""
    path.write_text("\n".join(source), encoding="utf-8")
    started = dataclasses.replace(script(str(path), ()), folder=str(path.parent))
    report = resuming.check(pool, started, 2, Options(resume_at=2), Silent())
    return [finding.slug for finding in report.findings]


@pytest.mark.parametrize("slug", resumed.SLUGS)
def test_example_that_resumes_yields_its_finding(
    slug: str, own_pool: Pool, tmp_path: Path
) -> None:
    example = _code(pages.sections(pages.page(slug))["Example"])
    assert _resumed(own_pool, tmp_path / "train.py", example) == [slug]


@pytest.mark.parametrize("slug", resumed.SLUGS)
def test_fixed_line_of_a_resume_yields_no_finding(
    slug: str, own_pool: Pool, tmp_path: Path
) -> None:
    assert _resumed(own_pool, tmp_path / "train.py", _mended(slug)) == []


@pytest.mark.parametrize("slug", judge.SLUGS)
def test_fixed_line_yields_no_finding(
    slug: str, own_pool: Pool, tmp_path: Path
) -> None:
    mended = _mended(slug)
    events = _recorded(own_pool, tmp_path / "train.py", "\n".join(mended))
    assert judge.findings(*events, finished=True) == []
