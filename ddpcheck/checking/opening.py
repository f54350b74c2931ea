"""How a check gets its ranks: what they import, and how long that may take."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddpcheck.checking import plan
from ddpcheck.checking.plan import Cell
from ddpcheck.errors import frames
from ddpcheck.errors.problem import DeadlineError, UsageError
from ddpcheck.ranks.hosts import Hosts
from ddpcheck.ranks.pool import SOLO, Deadline, Pool, Preload, PreloadError
from ddpcheck.report.progress import Silent
from ddpcheck.run.session.session import (
    CannotCheckError,
    crew_of,
    index_of,
    preload_problem,
)
from ddpcheck.run.spec import RunSpec
from ddpcheck.target import importing
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

PRELOAD_FIRST = ("torch", "ddpcheck.run.process.temporary", "ddpcheck.run.jobs")
# No mistake in the target's file needs it.
PRELOAD_LATER = ("ddpcheck.run.process.later",)
# Of a session of many checks: some will diverge, and its ranks may be replaced.
PRELOAD_MODULES = (
    *PRELOAD_FIRST,
    *PRELOAD_LATER,
    "ddpcheck.diagnose.probes.reference",
    "ddpcheck.diagnose.probes.rank",
)
_OPENED_AHEAD = 16  # ranks, forked before it is known whether they are wanted


def pool_for(
    ref: TargetRef,
    options: Options,
    hosts: Hosts | None = None,
    *,
    loopback: bool = True,
) -> Pool:
    """Returns a pool, not yet started, with ranks that import the target file.

    Args:
        ref: the target, in a file.
        options: for the deadline.
        hosts: the other processes of a given group.
        loopback: whether all ranks are on this machine.

    Raises:
        UsageError: target-missing-file.
    """
    assert ref.path is not None
    importing.check_file(Path(ref.path))
    what = Preload(
        modules=PRELOAD_FIRST,
        later=PRELOAD_LATER,
        call="ddpcheck.run.jobs:load_in_server",
        arguments={"path": ref.path, "names": [list(pair) for pair in ref.names]},
    )
    return Pool(what, timeout_s=options.limit_s, hosts=hosts, loopback=loopback)


@contextlib.contextmanager
def in_time(pool: Pool, options: Options, progress: Silent) -> Iterator[None]:
    """Ends what takes longer than the user gives the whole check.

    Raises:
        CannotCheckError: there is no run to report.
        DeadlineError: the same, inside another such context, which may have one.
    """
    limit_s, is_outer = options.deadline_s, not pool.is_in_time
    end = None if limit_s is None else Deadline(limit_s, time.monotonic() + limit_s)
    try:
        with pool.bounded(end):
            yield
    except DeadlineError as error:
        pool.retire_busy()
        if not is_outer:
            raise
        doing = f" while {progress.doing}" if progress.doing else ""
        raise CannotCheckError(f"{error}{doing}", "") from error


def wait_for_imports(pool: Pool, ref: TargetRef) -> None:
    """Returns when the pool of `pool_for` can fork ranks.

    Raises:
        UsageError: environment-import.
        CannotCheckError: the import hangs or kills its process.
    """
    name = Path(ref.path or "target").name
    try:
        pool.wait_for_imports()
    except PreloadError as error:
        problem = preload_problem(error, name)
        if problem is not None:
            raise UsageError(problem) from error
        if error.kind == "hung":
            what = name if error.of_user else "torch and ddpcheck"
            message = f"importing {what} did not end within {error.limit_s:g} s"
            message += frames.in_users(error.detail)
            message += "; if it needs longer: --timeout-s" if error.of_user else ""
        elif error.kind == "raised":
            message = f"importing {name} failed unexpectedly"
        else:
            message = (
                f"importing {name} ends the process (os._exit, or a crash in native "
                f"code); to see which, run: python {name}"
            )
        raise CannotCheckError(message, error.detail) from error


def open_ahead(pool: Pool, options: Options, only: Sequence[Cell] | None) -> None:
    """Forks ranks while the reference computes; most world sizes will be used.

    Not for many: the batch may have fewer samples, which is not known yet.
    """
    pool.open(SOLO)
    cells = plan.cells(options) if only is None else only
    specs = (RunSpec(mode=c.mode, world_size=c.world_size) for c in cells)
    for size, index in dict.fromkeys((crew_of(s), index_of(s)) for s in specs):
        if SOLO < size <= _OPENED_AHEAD:
            pool.open(size, index)
