"""Checks a training script as it is: the ranks first, then one process on their data.

record(...)           W ranks, and one process, run the script and are recorded
Recordings.known()    what the ranks drew becomes the batches of all later runs
checking.check(...)   the script as a target: the single process on these batches,
and W ranks, compared and diagnosed as any target is
_with_faults(...)     ranks that failed while they were recorded, which is the
script's own training
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddpcheck.checking import (
    checking,
    opening,
    reporting,
    resuming,
    script_draws,
    script_verdicts,
    script_waits,
    sharded,
)
from ddpcheck.checking.script_endings import Endings, steps
from ddpcheck.diagnose import script_data
from ddpcheck.diagnose.facts import rank_table
from ddpcheck.errors import frames
from ddpcheck.errors.problem import DeadlineError, EndedError, Problem, UsageError
from ddpcheck.ranks import made
from ddpcheck.ranks.budget import Budget
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import SOLO, Pool, Preload, PreloadError
from ddpcheck.report.data import (
    DATA,
    EXIT_CODES,
    EXIT_SIGNAL,
    Fault,
    Finding,
    NotCompared,
    Report,
    Run,
)
from ddpcheck.report.progress import Silent
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.script import traces
from ddpcheck.run.script.events import CALLS, Built, Drawn, Passed, Updated
from ddpcheck.run.session import acceptance, noise_floor
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
_SLUGS = {"raised": "sync/rank-raised", "died": "sync/rank-died"}


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
        CannotCheckError: it raises in the single process, and has no loaders.
    """
    try:
        yield
    except UsageError as error:
        if known.draws or error.problem.slug != "target-raises":
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
    script, recordings = _with_devices(pool, script, world_size, options)
    endings = _endings(pool, script, recordings, options.steps)
    parting = recordings.parting()
    if parting is not None and options.steps <= parting < _MOST_STEPS:
        progress(f"recording {parting + 1} steps of {script.name}")
        longer = dataclasses.replace(options, steps=parting + 1)
        recordings = _record(pool, script, world_size, longer)
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
    faults = endings.faults()
    known = recordings.known()
    if not known.steps:
        if not faults:
            raise _no_training(script)
        unchecked = reporting.unchecked(
            _ref(script, known), "the ranks failed before the first update", 1
        )
        return _with_more(unchecked, script, recordings, endings, options)
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
        report = _with_more(unchecked, script, recordings, endings, options)
        if report.verdict != "divergent":
            raise
        return report
    return _with_more(report, script, recordings, endings, options)


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

    def checked(known: Known, *, diagnoses: bool = True) -> Report:
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

    def checked_with(changed: Known) -> Report | None:
        try:
            return checked(changed)
        except (UsageError, CannotCheckError, DeadlineError):
            return None

    report = checked(known, diagnoses=not known.shards)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """What the ranks and the single process recorded of a script.

    `asked`: the steps to check. `seconds`: that the ranks took.
    """

    folder: str
    asked: int
    ranks: list[Outcome]
    single: Outcome
    seconds: float

    def known(self) -> Known:
        """Returns what later runs have to know."""
        built = [e for o in self.ranks for e in o.progress if isinstance(e, Built)]
        draws = bool(script_draws.drawn(self.ranks[0]))
        every = list(self.ranks)
        every += [] if self.single.kind == "done" else [self.single]
        most = min(self.asked, *map(steps, every))
        if draws:
            most = script_draws.usable_steps(self.ranks, most)
        return Known(
            folder=self.folder,
            world_size=len(self.ranks),
            steps=most,
            model=built[0].model if built else None,
            passes=tuple(sorted(_passes(self.ranks).items())),
            split=self._split(),
            ahead=tuple(script_draws.ahead(self.ranks[0])),
            draws=draws,
            has_all=self._has_all(),
            shards=any(one.shards for one in built),
            places=built[0].places if built else (),
        )

    def wants_devices(self) -> bool:
        """Returns whether the ranks train, and the single process ends at once."""
        is_idle = self.single.kind == "done" and not steps(self.single)
        return is_idle and min(map(steps, self.ranks)) > 0

    def parting(self) -> int | None:
        """Returns the first step (from 0) whose update makes the ranks differ.

        None where they never do, or do from the first update on.
        """
        updates = [
            [e for e in o.progress if isinstance(e, Updated)] for o in self.ranks
        ]
        agree = [
            len({update.weights for update in each}) == 1
            for each in zip(*updates, strict=False)
        ]
        return agree.index(False) if agree[:1] == [True] and False in agree else None

    def _has_all(self) -> bool:
        """Returns whether the single process gives its model the rows of all ranks."""
        single, each = _called(self.single), [_called(one) for one in self.ranks]
        most = min(self.asked, *map(steps, self.ranks))
        return all(
            single[step]
            and single[step] == sum((rank[step] for rank in each), Counter())
            for step in range(most)
        )

    def _split(self) -> int:
        ranks, single = _batches(self.ranks[0]), _batches(self.single)
        step = 1 if 1 in ranks and 1 in single else 0
        world_size = len(self.ranks)
        return world_size if single[step] == world_size * ranks[step] > 0 else 1


def _batches(outcome: Outcome) -> Counter[int]:
    """Returns how many batches each step has: draws, else calls of the model."""
    drawn = Counter(event.step for event in script_draws.drawn(outcome))
    if drawn:
        return drawn
    updates = [e for e in outcome.progress if isinstance(e, Updated)]
    return Counter({e.step: len(e.rows) for e in updates})


def _called(outcome: Outcome) -> defaultdict[int, Counter[str]]:
    """Returns the rows that the model is given in each step, where no loader draws."""
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event in outcome.progress:
        if isinstance(event, Drawn) and event.loader == CALLS:
            found[event.step].update(event.rows)
    return found


def _passes(ranks: list[Outcome]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for outcome in ranks:
        for event in outcome.progress:
            if isinstance(event, Passed):
                key = event.loader, event.turn
                found[key] = max(event.batches, found.get(key, 0))
    return found


def _with_devices(
    pool: Pool, script: Script, world_size: int, options: Options
) -> tuple[Script, Recordings]:
    """Returns the script, and what is recorded of it, with as many GPUs as it wants.

    Some train with several alone, even as a single process.
    """
    recordings = _record(pool, script, world_size, options)
    if script.cuda_as_cpu and recordings.wants_devices():
        script = dataclasses.replace(script, devices=world_size)
        recordings = _record(pool, script, world_size, options)
    return script, recordings


def _record(
    pool: Pool, script: Script, world_size: int, options: Options
) -> Recordings:
    """Runs the ranks, and one process, side by side, and records them."""
    folder = pool.folder / f"script{world_size}-{options.steps}-{script.devices}"
    single = folder / "alone"
    single.mkdir(parents=True)
    jobs = [
        Job(
            function="ddpcheck.run.script.recording:record",
            arguments={"script": script, "folder": str(place), "steps": options.steps},
        )
        for place in (folder, single)
    ]
    tasks = [pool.submit(jobs[0], world_size), pool.submit(jobs[1], SOLO)]
    try:
        pool.wait(tasks)
    finally:
        pool.retire(world_size)
        pool.retire(SOLO)
    return Recordings(
        folder=str(folder),
        asked=options.steps,
        ranks=tasks[0].outcomes,
        single=tasks[1].outcomes[0],
        seconds=tasks[0].seconds,
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


def _with_more(
    report: Report,
    script: Script,
    recordings: Recordings,
    endings: Endings,
    options: Options,
) -> Report:
    """Adds to the report what the recordings show by themselves.

    A run for ranks that failed while the script trained on its own, and one for the
    samples that they drew. Findings that fail come first.
    """
    runs, new = list(report.runs), list[Finding]()
    ranks = [outcome.progress for outcome in recordings.ranks]
    single, faults = recordings.single.progress, endings.faults()
    in_data = script_data.findings(ranks, single, finished=not faults)
    left_out = script_data.not_compared(ranks, single)
    known = [finding.slug for finding in in_data]
    if in_data:
        new = [dataclasses.replace(f, runs=(len(runs),)) for f in in_data]
        runs.append(_data_run(recordings, report))
    if faults:
        explained = _explained(report, len(runs), faults)
        if explained is not None:
            report = dataclasses.replace(report, findings=explained)
        # Ranks that wait for batches of others fail by it, and no rank does otherwise.
        elif _UNEVEN not in known or not all(map(_is_for_others, faults)):
            why = script_waits.cause(recordings.ranks, faults)
            new.insert(0, _of_faults(faults, len(ranks), len(runs), why))
        else:
            first = new[known.index(_UNEVEN)]
            more = (*first.runs, len(runs))
            new[known.index(_UNEVEN)] = dataclasses.replace(first, runs=more)
        runs.append(_failed_run(recordings, faults, report))
    table = script_data.table(ranks, single)
    if endings.are_regular and (late := script_data.unfinished(ranks, single)):
        new.append(dataclasses.replace(late, runs=(len(runs),)))
        runs.append(_failed_run(recordings, [], report))
    agree = all(run.ranks_agree for run in report.runs)
    if agree and not faults and (apart := script_data.apart(ranks)):
        new.append(dataclasses.replace(apart, runs=(len(runs),)))
        runs.append(_failed_run(recordings, [], report))
    others = script_verdicts.sound(
        report.findings,
        report.runs,
        table,
        by_passes=script_data.follows_passes(ranks, single),
    )
    every = [*acceptance.accept(runs, new, options.accept), *others]
    accepted = sorted(every, key=lambda one: one.accepted is not None)
    verdict = acceptance.verdict(runs, accepted)
    if report.ended and verdict == "equivalent":
        verdict = "not-checked"
    compared = next(iter(report.runs), None)
    made = dataclasses.replace(
        report,
        verdict=verdict,
        exit_code=report.exit_code
        if report.exit_code >= EXIT_SIGNAL
        else EXIT_CODES[verdict],
        runs=tuple(runs),
        findings=tuple(accepted),
        facts=table,
        parts=script_verdicts.parts(
            compared, report.findings, in_data, left_out, len(ranks)
        ),
        not_compared=tuple(
            dict.fromkeys((*endings.left_out(), *report.not_compared, *left_out))
        ),
        warnings=(*endings.warnings(), *report.warnings),
    )
    return dataclasses.replace(made, reproduce=_reproduce(script, made))


_UNEVEN = "data/uneven-batches"


def _data_run(recordings: Recordings, report: Report) -> Run:
    """Returns the run that stands for the samples which the ranks drew wrongly."""
    return Run(
        mode=DATA,
        world_size=len(recordings.ranks),
        dtype=report.runs[0].dtype if report.runs else "float32",
        verdict="divergent",
        seconds=recordings.seconds,
    )


def _failed_run(recordings: Recordings, faults: list[Fault], report: Report) -> Run:
    """Returns the run of the script's own training, in which ranks failed."""
    return Run(
        mode="script",
        world_size=len(recordings.ranks),
        dtype=report.runs[0].dtype if report.runs else "float32",
        verdict="divergent",
        faults=tuple(faults),
        seconds=recordings.seconds,
    )


def _is_for_others(fault: Fault) -> bool:
    """Returns whether a rank waits for others, or torch raises since they are gone."""
    place = frames.innermost(fault.stack)
    is_torchs = place is not None and (place.is_distributed or place.is_exchange)
    return fault.kind == "hung" or (fault.kind == "raised" and is_torchs)


def _explained(
    report: Report, run: int, faults: list[Fault]
) -> tuple[Finding, ...] | None:
    """Returns the findings where one of them is why ranks fail, also in this run.

    None where none is, or where a rank fails otherwise than in the runs of the finding.
    """
    found = list(report.findings)
    own = acceptance.failures([one for one in faults if not _is_for_others(one)])
    for index, one in enumerate(found):
        alike = [f for i in one.runs for f in report.runs[i].faults]
        is_known = one.slug in acceptance.ABOUT_FAILED_RANKS
        is_known &= own <= acceptance.failures(alike)
        if is_known and not one.slug.startswith("sync/rank-"):
            found[index] = dataclasses.replace(one, runs=(*one.runs, run))
            return tuple(found)
    return None


def _of_faults(
    faults: list[Fault], world_size: int, run: int, why: script_waits.Cause | None
) -> Finding:
    # A rank that waits for one that raised hangs; it is not the cause.
    first = min(faults, key=lambda fault: (list(_HOW).index(fault.kind), fault.rank))
    lines = [f"rank {f.rank}, after {f.step} updates: {f.summary}" for f in faults]
    lines = [
        line + frames.in_users(fault.stack)
        for line, fault in zip(lines, faults, strict=True)
    ]
    where = rank_table.where(frames.users(first.stack))
    if why is not None:
        return Finding(
            slug=why.slug,
            link=why.link,
            runs=(run,),
            summary=why.summary,
            facts=tuple(lines),
            where=where,
            fix=why.fix,
        )
    return Finding(
        slug=_SLUGS.get(first.kind, "sync/rank-hung"),
        link="sync",
        runs=(run,),
        summary=f"on {world_size} ranks the script does not go on where a single "
        f"process does: rank {first.rank} {_HOW[first.kind]}",
        facts=tuple(lines),
        where=where,
    )


_HOW = {"raised": "raises", "died": "dies", "hung": "hangs"}


_REPRODUCE = '''\
"""{name}: {slug}

Checks the script again, on as few ranks and steps as show it. Exit code 1: it diverges.
"""
import subprocess
import sys

COMMAND = [sys.executable, "-m", "ddpcheck", *{command!r}]
sys.exit(subprocess.run(COMMAND, cwd={folder!r}).returncode)
'''


def _reproduce(script: Script, report: Report) -> str:
    """Returns the text of reproduce.py, "" without a divergence."""
    divergent = [run for run in report.runs if run.verdict == "divergent"]
    if not divergent:
        return ""
    run = min(divergent, key=lambda one: one.world_size)
    started = ["-m", script.module] if script.module else [script.path]
    steps = [] if run.faults else ["--steps", str(_first_step(run) + 1)]
    command = ["run", "--world-sizes", str(run.world_size), *steps, "--no-fix"]
    return _REPRODUCE.format(
        name=script.name,
        slug=report.findings[0].slug if report.findings else "divergence",
        command=[*command, *started, *script.arguments],
        folder=script.folder,
    )


def _first_step(run: Run) -> int:
    """Returns the first step (from 0) in which something differs."""
    quantities = (run.gradients, run.weights, run.buffers)
    series = [quantity.excess_by_step for quantity in quantities]
    bad = [s for one in series for s, excess in enumerate(one) if not excess <= 1]
    return min(bad, default=0)
