"""Checks a training script as it is: the ranks first, then one process on their data.

script_recordings   W ranks, and one process, run the script and are recorded: what the
                    ranks drew becomes the batches of all later runs
checking.check      the script as a target: the single process on these batches, and W
                    ranks, compared and diagnosed as any target is
script_report       adds what the recordings show: ranks that failed in the script's own
                    training, and the samples that they drew
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from ddpcheck.checking import (
    checking,
    opening,
    reporting,
    resuming,
    script_recordings,
    script_report,
    script_verdicts,
    sharded,
)
from ddpcheck.checking.script_endings import Endings
from ddpcheck.checking.script_recordings import Recordings
from ddpcheck.errors.problem import DeadlineError, EndedError, Problem, UsageError
from ddpcheck.ranks import made
from ddpcheck.ranks.budget import Budget
from ddpcheck.ranks.pool import SOLO, Pool, Preload, PreloadError
from ddpcheck.report.data import (
    EXIT_CODES,
    EXIT_SIGNAL,
    NotCompared,
    Report,
)
from ddpcheck.report.progress import Silent
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.script import traces
from ddpcheck.run.session import noise_floor
from ddpcheck.run.session.session import CannotCheckError, Session, preload_problem
from ddpcheck.run.spec import RunSpec
from ddpcheck.target import script as scripts
from ddpcheck.target.options import Options
from ddpcheck.target.script import Known, Script
from ddpcheck.target.target import TargetRef

DEFAULT_WORLD_SIZES = (2,)

_MODULES = (
    *opening.PRELOAD_FIRST,
    "ddpcheck.run.script.recording",
    "ddpcheck.run.script.as_target",
    "ddpcheck.run.script.resuming",
)
# Ranks that part from each other within so many are followed to there.
_MOST_STEPS = 100
_WITHOUT_BATCH = "target-raises", "target-batch-empty"


def check_script(
    script: Script,
    options: Options,
    *,
    progress: Silent | None = None,
    on_verdict: Callable[[Report], None] = lambda _: None,
    budget: Budget | None = None,
    outer: Pool | None = None,
) -> Report:
    """Checks a script at each world size that is asked for, by default 2.

    Args:
        script: with its arguments.
        options: what was asked for.
        progress: shows the current phase.
        on_verdict: takes the report.
        budget: of the machine, which several sessions share.
        outer: that has done the imports for several scripts: see `preload`.

    Raises:
        UsageError: script-fails, script-no-training, or as `checking.check`.
        CannotCheckError: the script hangs as a single process, or kills it.
    """
    progress = progress or Silent()
    script = dataclasses.replace(
        script, allows_writes=options.allow_writes, cuda_as_cpu=options.cuda_as_cpu
    )
    sizes = options.world_sizes or DEFAULT_WORLD_SIZES
    held = contextlib.nullcontext() if budget is None else budget.taken(max(sizes) + 1)
    with _opened(script, options, progress, outer) as pool, held:
        report = script_verdicts.merged(
            _reports(pool, script, sizes, options, progress)
        )
    report = reporting.with_idle(report, options.accept)
    on_verdict(report)
    return report


def _reports(
    pool: Pool,
    script: Script,
    sizes: Sequence[int],
    options: Options,
    progress: Silent,
) -> list[Report]:
    """Returns the report of each world size; a signal leaves the later ones out.

    So do the deadline, and a world size at which the script cannot be checked.

    Raises:
        EndedError: it came before any run was made.
    """
    reports: list[Report] = []
    for position, size in enumerate(sizes):
        try:
            reports.append(_check(pool, script, size, options, progress))
        except (EndedError, CannotCheckError) as error:
            number = error.number if isinstance(error, EndedError) else 0
            if not reports or (isinstance(error, EndedError) and error.again):
                raise
            verdict = reports[-1].verdict
            verdict = "not-checked" if verdict == "equivalent" else verdict
            what = str(error).splitlines()[0]
            reports[-1] = dataclasses.replace(
                reports[-1],
                verdict=verdict,
                ended=f"{what} at world size {size}",
                exit_code=EXIT_SIGNAL + number if number else EXIT_CODES[verdict],
            )
        if reports[-1].ended:
            left = [
                NotCompared(what=f"world size {later}", why=reports[-1].ended)
                for later in sizes[position + (size in _sizes(reports[-1])) :]
            ]
            every = (*reports[-1].not_compared, *left)
            reports[-1] = dataclasses.replace(reports[-1], not_compared=every)
            break
    return reports


def _sizes(report: Report) -> set[int]:
    return {run.world_size for run in report.runs}


@contextlib.contextmanager
def _of_calls(script: Script, known: Known) -> Iterator[None]:
    """Tells why a script does not train on what the ranks' models were given.

    Raises:
        CannotCheckError: it has no loaders, and raises in the single process, or its
            models are given no data.
    """
    try:
        yield
    except UsageError as error:
        if known.draws or error.problem.slug not in _WITHOUT_BATCH:
            raise
        raise CannotCheckError(_unseen(script), error.problem.found) from error


def _check_calls(
    script: Script, known: Known, session: Session, report: Report
) -> None:
    """Raises where what the model is given is not all that the loss is taken of.

    The rows of the rest do not follow those of the model's batch into another order.

    Raises:
        CannotCheckError: a divergence proves nothing.
    """
    fixes = [finding.fix for finding in report.findings]
    is_proven = any(fix is not None and fix.proof is not None for fix in fixes)
    # Ranks that part from each other do so on any data.
    is_proven |= any(run.faults or not run.ranks_agree for run in report.runs)
    if known.draws or report.verdict != "divergent" or report.ended or is_proven:
        return
    run = report.runs[0]
    spec = RunSpec(mode=SINGLE.name, dtype=run.dtype, steps=known.steps)
    if not noise_floor.holds_in_other_orders(session, spec, run.world_size):
        raise CannotCheckError(
            _unseen(script), "with the rows in another order the gradients are others"
        )


def _check_replicas(script: Script, recordings: Recordings) -> None:
    """Raises where the ranks are no replicas of one model.

    Raises:
        CannotCheckError: their parts are not compared.
    """
    for outcome in recordings.ranks:
        if outcome.kind == "done" and outcome.value.cut:
            message = (
                f"{script.name} cuts its model over the ranks by {outcome.value.cut}: "
                "checked are scripts whose ranks have the whole model each, or cut it "
                "by fully_shard"
            )
            raise CannotCheckError(message, "")


def _unseen(script: Script) -> str:
    return (
        f"{script.name} has no DataLoader, and its loss takes more than the model is "
        "given: the batch of the single process is not known; pass what is drawn to "
        "ddpcheck.global_batch"
    )


def _recorded(
    pool: Pool, script: Script, world_size: int, options: Options, progress: Silent
) -> tuple[Script, Recordings, Endings]:
    """Returns the script as it runs, and recordings of the steps that are asked for.

    If the ranks are one model in these steps, and part from each other later on, then
    of the steps until there.
    """
    script, recordings = script_recordings.with_devices(
        pool, script, world_size, options
    )
    endings = _endings(pool, script, recordings, options.steps)
    parting = recordings.parting()
    if parting is not None and options.steps <= parting < _MOST_STEPS:
        progress(f"recording {parting + 1} steps of {script.name}")
        longer = dataclasses.replace(options, steps=parting + 1)
        recordings = script_recordings.record(pool, script, world_size, longer)
        endings = _endings(pool, script, recordings, options.steps)
    return script, recordings, endings


def _check(
    pool: Pool, script: Script, world_size: int, options: Options, progress: Silent
) -> Report:
    if options.resume_at is not None:
        return resuming.check(pool, script, world_size, options, progress)
    progress(f"recording {script.name} on {world_size} ranks and as one process")
    script, recordings, endings = _recorded(pool, script, world_size, options, progress)
    if recordings.single.kind == "done":
        pool.import_more(recordings.single.value.modules)
    _check_replicas(script, recordings)
    faults = endings.faults()
    known = recordings.known()
    if not known.steps:
        if slow := endings.slow():
            raise CannotCheckError(slow, "")
        if not faults:
            raise _no_training(script)
        unchecked = reporting.unchecked(
            _ref(script, known), "the ranks failed before the first update", 1
        )
        return script_report.with_more(unchecked, script, recordings, endings, options)
    asked = dataclasses.replace(
        options, world_sizes=(world_size,), modes=(DDP.name,), steps=known.steps
    )
    try:
        report = _compared(pool, script, known, asked, progress, recordings)
    except (UsageError, CannotCheckError) as error:
        why = _why_unchecked(error)
        if why is None:
            raise
        # What the script's own training shows is found all the same.
        unchecked = reporting.unchecked(_ref(script, known), why, 1)
        report = script_report.with_more(
            unchecked, script, recordings, endings, options
        )
        if report.verdict != "divergent":
            raise
        return report
    return script_report.with_more(report, script, recordings, endings, options)


def _compared(
    pool: Pool,
    script: Script,
    known: Known,
    options: Options,
    progress: Silent,
    recordings: Recordings,
) -> Report:
    """Returns the report on the ranks against the single process, on the same batches.

    Args:
        pool: that makes the runs.
        script: to check.
        known: of it, from the recordings of its ranks.
        options: with one world size, and the steps that are known.
        progress: shows the current phase.
        recordings: of its ranks.

    Raises:
        UsageError: as `checking.check`.
        CannotCheckError: the batches of the single process are not known.
    """
    checked = functools.partial(_checked, pool, script, options, progress)

    def checked_with(changed: Known) -> Report | None:
        try:
            return checked(changed)
        except (UsageError, CannotCheckError, DeadlineError):
            return None

    try:
        report = checked(known, diagnoses=not known.shards)
    except CannotCheckError:
        # The numbers that its ranks draw may make all that the loss takes.
        known = dataclasses.replace(known, gives_numbers=True)
        again = checked_with(known) if known.has_numbers else None
        if again is None:
            raise
        report = again
    if known.shards:
        whole = dataclasses.replace(known, keeps_whole=True)
        seen = sharded.shown([outcome.progress for outcome in recordings.ranks])
        return sharded.explained(report, lambda: checked_with(whole), seen)
    fails = any(outcome.kind not in ("done", "stopped") for outcome in recordings.ranks)
    if known.draws and not fails and _has_faults(report):
        # Rows of a batch are no batch where its padding is used, as of sequences that
        # are packed.
        again = checked_with(dataclasses.replace(known, collates_shards=True))
        return report if again is None or _has_faults(again) else again
    return report


def _checked(
    pool: Pool,
    script: Script,
    options: Options,
    progress: Silent,
    known: Known,
    *,
    diagnoses: bool = True,
) -> Report:
    """Returns the report of one check, in processes that no other check has used."""
    session = Session(pool, _ref(script, known))
    try:
        with _of_calls(script, known):
            report = checking.check(
                pool,
                session.ref,
                options,
                session=session,
                progress=progress,
                diagnoses=diagnoses,
            )
        _check_calls(script, known, session, report)
        return report
    finally:
        pool.retire(known.world_size)
        pool.retire(SOLO)


def _why_unchecked(error: UsageError | CannotCheckError) -> str | None:
    """Returns why a script that trains cannot be checked, None for other errors."""
    if isinstance(error, CannotCheckError):
        return str(error)
    is_of_script = error.problem.slug in ("script-fails", "target-raises")
    return error.problem.message if is_of_script else None


def _endings(pool: Pool, script: Script, recordings: Recordings, asked: int) -> Endings:
    """Returns how the processes of a script ended that trains as a single process.

    Raises:
        UsageError: script-fails, script-writes.
        CannotCheckError: it hangs as a single process, or kills it.
    """
    endings = Endings(
        script=script,
        ranks=recordings.ranks,
        single=recordings.single,
        asked=asked,
        made=made.read(pool.folder),
        seconds=recordings.seconds,
        single_s=recordings.single_s,
    )
    endings.check()
    return endings


def preload(libraries: tuple[str, ...] = ()) -> Preload:
    """Returns what a pool for scripts imports before the first fork."""
    return Preload(
        modules=_MODULES,
        later=opening.PRELOAD_LATER,
        libraries=libraries,
        has_spare=True,
        environment=traces.offline(),
    )


def _has_faults(report: Report) -> bool:
    return any(run.faults for run in report.runs)


@contextlib.contextmanager
def _opened(
    script: Script, options: Options, progress: Silent, outer: Pool | None
) -> Iterator[Pool]:
    """Yields a pool that has imported what the script will import."""
    if outer is not None:
        with (
            outer.within(timeout_s=options.limit_s) as pool,
            opening.in_time(pool, options, progress),
        ):
            pool.device = options.run_device
            yield pool
        return
    libraries = every = scripts.libraries(script)
    while True:
        what = preload(libraries)
        with (
            Pool(what, timeout_s=options.limit_s) as pool,
            opening.in_time(pool, options, progress),
        ):
            pool.device = options.run_device
            pool.start()
            progress("importing torch and what the script imports")
            try:
                pool.wait_for_imports()
            except PreloadError as error:
                problem = preload_problem(error, script.name)
                if problem is not None:
                    raise UsageError(problem) from error
                message = f"importing torch for {script.name} failed"
                raise CannotCheckError(message, error.detail) from error
            if not pool.unfit:
                yield pool
                return
        # One starts threads: processes import it themselves, or all if others do, too.
        unfit = scripts.package(pool.unfit)
        fit = tuple(name for name in libraries if scripts.package(name) != unfit)
        libraries = fit if libraries == every else ()


def _ref(script: Script, known: Known) -> TargetRef:
    return TargetRef(
        path=script.path or None,
        module=script.module,
        factory="ddpcheck.run.script.as_target:load",
        arguments=(("script", script), ("known", known)),
        is_script=True,
    )


def _no_training(script: Script) -> UsageError:
    return UsageError(
        Problem(
            slug="script-no-training",
            message=f"{script.name} ended without a step of an optimizer",
            expected="a script that draws batches and steps a torch optimizer",
            found="the end of the script",
            fix="give it the arguments with which it trains; --cuda-as-cpu, if it ends "
            "for want of a GPU",
        )
    )
