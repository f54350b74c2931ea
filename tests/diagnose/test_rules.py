"""The example of every rule's page yields exactly that finding, its fix none."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.report.pages import pages
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.corpus import coverage
from tests.diagnose import recorded
from tests.diagnose.test_pages import OF_SCRIPTS
from tests.diagnose.test_pages import SLUGS as EVERY

# The examples of the others are scripts: test_script_pages.py.
SLUGS = [slug for slug in EVERY if slug not in OF_SCRIPTS]
# Their examples raise under DataParallel.
RAISES = ("dp/scatter-semantics", "dp/variable-length-gather")
# No run can prove these: what would end the fault would end any of its kind, or what
# decides is known to the target alone. Their pages say so.
UNVERIFIED = {
    "graph/skipped-backward",
    "state/optimizer-state",
    "sync/rank-died",
    "sync/rank-hung",
    "sync/rank-raised",
    "sync/scaler-desync",
}
HANGS = {"graph/skipped-backward", "sync/collective-mismatch", "sync/rank-hung"}
COMPILES = {"compile/ddp-optimizer"}


def params(slugs: list[str]) -> list[object]:
    """Returns parameters of a test, those that take long with the mark."""
    slow = pytest.mark.slow
    return [pytest.param(s, marks=slow) if s in COMPILES else s for s in slugs]


# What torch did not have yet in versions that ddpcheck runs on, and the first that was
# seen to have it. The verdicts there are right: training on ranks does raise.
TOO_NEW = {
    "state/inplace-buffer-version": (
        (2, 13),
        "its DDP writes buffers in place, which backward refuses",
    ),
    "state/buffer-not-synced": ((2, 9), "its DDP has no init_sync"),
}


def skip_where_too_new(slug: str) -> None:
    """Skips the example of a page that needs a newer torch."""
    skip_below(*TOO_NEW.get(slug, ((0, 0), "")))


def skip_below(first: tuple[int, int], why: str) -> None:
    """Skips what an older torch than `first` cannot run."""
    version = metadata.version("torch")
    if tuple(map(int, version.split(".")[:2])) < first:
        pytest.skip(f"torch {version}: {why}")


def checked(
    pool: Pool,
    folder: Path,
    source: str,
    modes: tuple[str, ...] = ("ddp",),
    *,
    fix: bool = True,
    name: str = "",
) -> Report:
    """Returns the report of a target with this source at world size 2.

    `name`: of its recorded case.
    """
    path = folder / "target.py"
    path.write_text(source, encoding="utf-8")
    options = Options(world_sizes=(2,), modes=modes, fix=fix)
    if name:
        return recorded.check(pool, path, options, name)
    return checking.check(pool, TargetRef(path=str(path)), options)


def modes_of(slug: str) -> tuple[str, ...]:
    """Returns the modes that a rule is about."""
    of = {"dp": ("dp", "ddp"), "ps": ("ps",)}
    return of.get(slug.partition("/")[0], ("ddp",))


@pytest.mark.usefixtures("no_file")
@pytest.mark.parametrize(
    "slug", params([s for s in SLUGS if s not in {*HANGS, *RAISES}])
)
def test_example_yields_its_finding(
    slug: str,
    pool: Pool,
    jobs: list[str],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    skip_where_too_new(slug)
    source, page = pages.targets(slug)[0], f"page/{slug}"
    report = checked(pool, tmp_path, source, modes_of(slug), name=page)
    for name, value in coverage.properties(page, report, jobs):
        record_property(name, value)
    verified = None if slug in UNVERIFIED else True
    found = [(f.slug, f.fix and f.fix.verified) for f in report.findings]
    assert (report.verdict, found) == ("divergent", [(slug, verified)]), report


@pytest.mark.parametrize("slug", RAISES)
def test_example_that_raises_names_its_rule(
    slug: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, pages.targets(slug)[0], ("dp", "ddp"))
    assert (report.verdict, report.findings) == ("equivalent", ())
    assert [r.verdict for r in report.runs] == ["not-checked", "equivalent"]
    (reason,) = [n.why for n in report.not_compared if n.what == "dp at world size 2"]
    assert reason.startswith("DataParallel cannot run this target: DataParallel")
    assert f"it runs ({slug}); RuntimeError: " in reason


@pytest.mark.parametrize("slug", sorted(HANGS))
def test_example_that_hangs_yields_its_finding(
    slug: str, short: Pool, tmp_path: Path
) -> None:
    report = checked(short, tmp_path, pages.targets(slug)[0], name=f"page/{slug}")
    found = [(f.slug, f.fix and f.fix.verified) for f in report.findings]
    verified = None if slug in UNVERIFIED else True
    assert (report.verdict, found) == ("divergent", [(slug, verified)])


@pytest.mark.parametrize("slug", params(SLUGS))
def test_mended_example_is_equivalent(slug: str, pool: Pool, tmp_path: Path) -> None:
    if slug != "state/buffer-not-synced":  # its fix takes init_sync away
        skip_where_too_new(slug)
    report = checked(pool, tmp_path, pages.targets(slug)[1], modes_of(slug))
    assert (report.verdict, [f.slug for f in report.findings]) == ("equivalent", [])
