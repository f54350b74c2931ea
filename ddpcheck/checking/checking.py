"""target -> plan -> runs -> compare -> diagnose -> Report: the table of contents.

Runs in the tool's own process, which imports no torch and no user code.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddpcheck.checking import batch_checks, plan, reporting
from ddpcheck.checking.plan import Cell
from ddpcheck.checking.unfinished import Made
from ddpcheck.compare import tolerance
from ddpcheck.diagnose import data_parallel, engine, reproduce, shrink, simulated
from ddpcheck.diagnose.facts import external_state, unlike_numbers
from ddpcheck.errors import frames, raised
from ddpcheck.errors.problem import SignalError, UsageError
from ddpcheck.ranks.hosts import Hosts
from ddpcheck.ranks.pool import SOLO, Pool, Preload, PreloadError, ServerDiedError
from ddpcheck.report.data import EXIT_SIGNAL, Report
from ddpcheck.report.progress import Silent
from ddpcheck.run.modes import memory
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session import assemble, noise_floor
from ddpcheck.run.session.session import (
    CannotCheckError,
    RunOutcome,
    Session,
    preload_problem,
)
from ddpcheck.run.spec import NATIVE, ReferenceResult, RunSpec
from ddpcheck.target import importing
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

Verdict = Callable[[Report], None]

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

# That the search for the smallest run may take, or as long as the runs took.
_LEAST_SHRINKING_S = 15.0

# A run, probe or search of ddpcheck failed: its result is not known.
_INTERNAL = "internal error of ddpcheck, please report it: "
_MOST_OF_ROOM = 0.8  # the rest is for activations, whose size is not known before


def check_file(
    ref: TargetRef,
    options: Options,
    *,
    progress: Silent | None = None,
    on_verdict: Verdict = lambda _: None,
) -> Report:
    """Checks the target file that `ref` names; arguments as of `check`.

    Raises:
        SignalError: a signal came before any run was made.
        UsageError: the file or an option is wrong.
        CannotCheckError: the target hangs or kills its process before any run.
    """
    progress = progress or Silent()
    with pool_for(ref, options) as pool:
        progress("importing torch and the target")
        pool.start()
        wait_for_imports(pool, ref)
        return check(pool, ref, options, progress=progress, on_verdict=on_verdict)


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
            message = f"importing {name} failed in a way that is not foreseen"
        else:
            message = (
                f"importing {name} ends the process (os._exit, or a crash in native "
                f"code); to see which, run: python {name}"
            )
        raise CannotCheckError(message, error.detail) from error


def check(
    pool: Pool,
    ref: TargetRef,
    options: Options,
    *,
    progress: Silent | None = None,
    session: Session | None = None,
    only: Sequence[Cell] | None = None,
    on_verdict: Verdict = lambda _: None,
) -> Report:
    """Checks a target on a pool that has done its imports.

    Where a signal or the end of the engine cuts the check off, the report is on the
    finished runs, and states this.

    Args:
        pool: of ranks.
        ref: the target.
        options: what was asked for.
        progress: told what is being done.
        session: of this pool and target, whose references are then made once.
        only: the runs to make; those of the plan by default. One that is not planned
            is not made, and the report says why.
        on_verdict: takes the report when all is known but how small the run can be
            that reproduce.py shows; what is returned differs in that alone, and in the
            exit code where a signal ended the search for it.

    Raises:
        UsageError: the file or an option is wrong.
        CannotCheckError: the single-process run hangs or dies.
        SignalError: a signal came before any run was made, or once more.
    """
    session = session or Session(pool, ref)
    made = Made(session, options, time.perf_counter(), progress or Silent())
    session.on_run, session.progress = made.ran, made.progress
    session.is_bounded = options.timeout_s is not None
    made.progress.follow(session.where)
    try:
        report = _check(made, only)
    except (SignalError, ServerDiedError, CannotCheckError) as error:
        is_last = isinstance(error, SignalError) and error.again
        early = None if is_last else made.report(error)
        if early is None:
            raise
        on_verdict(early)
        return early
    on_verdict(report)
    return _shrunk(made, report)


def _shrunk(made: Made, report: Report) -> Report:
    """Returns the report with a smaller run in its reproduce.py, if time allows."""
    session, limit, diagnosis = made.session, made.limit, made.diagnosis
    known = shrink.divergent(list(made.outcomes.values()), list(report.runs))
    if not report.reproduce or known is None or limit is None:
        return report
    made.progress("shrinking reproduce.py")
    needed_s = sum(run.seconds for run in report.runs)
    session.deadline = time.monotonic() + max(_LEAST_SHRINKING_S, needed_s)
    try:
        found = shrink.smallest(
            session, known, limit, diagnosis.removable, diagnosis.mended
        )
    except SignalError as error:
        if error.again:
            raise
        return dataclasses.replace(report, exit_code=EXIT_SIGNAL + error.number)
    except (ServerDiedError, CannotCheckError):
        return report
    finally:
        session.deadline = None
    text = reproduce.script(session.ref, list(report.findings), found)
    return dataclasses.replace(report, reproduce=text)


def _check(made: Made, only: Sequence[Cell] | None) -> Report:
    session, options, progress = made.session, made.options, made.progress
    session.pool.device = options.run_device
    _open_ahead(session.pool, options, only)
    session.room = memory.room(options.max_memory)
    progress("running the reference: single process on the global batch")
    base = session.reference(_base_spec(options))
    options = made.options = _with_settings(options, base.facts.get("settings", {}))
    base = _at_tolerance(base, options)
    assert base.spec is not None
    planned = plan.make(options, base.spec, base.facts, only)
    if options.world_sizes is None and options.max_memory is None:
        _leave_room(session, planned, base)
    _check_memory(session, planned, base)
    made.expect(base, planned)
    outcomes = session.run(planned.specs)
    if options.dtype == "auto" and _converts_after_wrapping(outcomes):
        outcomes = _as_float32(made, only)
    return _conclude(made, outcomes)


def _conclude(made: Made, outcomes: list[RunOutcome]) -> Report:
    """Judges the runs, and diagnoses those that differ."""
    session, base, options = made.session, made.base, made.options
    assert base is not None
    assert base.spec is not None
    assert made.planned is not None
    batch_checks.check_repeats(session, base, outcomes)
    made.progress("measuring how exactly the single-process run repeats")
    floor = noise_floor.measure(session, options.tolerance, base.spec, outcomes)
    outcomes, limit = floor.apply(session, outcomes), floor.limit
    runs = [assemble.to_run(outcome, limit.rtol) for outcome in outcomes]
    asked = [mode_of(name) for name in options.modes or ()]
    is_asked = bool(asked) and all(mode.cannot_run for mode in asked)
    runs, broken_off = data_parallel.explain_faults(
        session, outcomes, runs, limit, is_asked=is_asked
    )
    made.runs, made.limit, made.broken_off = runs, limit, broken_off
    made.outcomes = dict(zip(made.planned.specs, outcomes, strict=True))
    diagnosis = made.diagnosis
    batch_checks.check_lists(session, outcomes, runs, limit.rtol)
    if any(run.verdict == "divergent" for run in runs):
        try:
            engine.diagnose(
                session, outcomes, runs, limit, options, made.progress, diagnosis
            )
        except (UsageError, CannotCheckError, ServerDiedError):
            raise
        except Exception as error:  # noqa: BLE001 (ours: the verdict is known)
            _give_up(made, error)
    else:
        diagnosis.warnings += batch_checks.undetectable(session, runs, outcomes, limit)
        diagnosis.warnings += external_state.warnings(outcomes, runs)
        diagnosis.warnings += unlike_numbers.warnings(outcomes, runs, limit.rtol)
    every = broken_off + diagnosis.findings
    findings, unused = reporting.accept(runs, every, options.accept)
    warnings = reporting.warnings_of(base, made.planned, outcomes)
    warnings += batch_checks.list_warnings(base)
    warnings += [_INTERNAL + said for said in session.internal]
    return reporting.make(
        ref=session.ref,
        base=base,
        limit=limit,
        outcomes=outcomes,
        runs=runs,
        findings=findings,
        not_compared=made.planned.not_compared
        + assemble.not_compared(outcomes, runs)
        + diagnosis.not_compared,
        warnings=warnings + floor.warnings() + diagnosis.warnings + unused,
        seconds=time.perf_counter() - made.started,
        smallest=shrink.divergent(outcomes, runs),
    )


def _give_up(made: Made, error: Exception) -> None:
    """Leaves what is not explained yet unknown: the search for causes has failed."""
    stack = raised.whole_stack(error)
    said = f"{type(error).__name__}: {raised.text_of(error)}"
    own = next((f for f in frames.frames(stack) if f.is_own), None)
    if own is not None:
        said += f" ({own.short})"
    made.session.internal[said] = stack
    found, runs = made.diagnosis.findings, made.runs or []
    explained = {index for finding in found for index in finding.runs}
    rest = [
        index
        for index, run in enumerate(runs)
        if run.verdict == "divergent" and index not in explained
    ]
    if rest:
        unknown = simulated.unknown(runs[rest[0]], rest)
        summary = "the cause is unknown: ddpcheck itself failed while it looked for it"
        found.append(dataclasses.replace(unknown, summary=summary))


def _leave_room(session: Session, planned: plan.Plan, base: ReferenceResult) -> None:
    """Leaves out default runs that need too much memory, unless all do."""
    sizes, room = base.facts["sizes"], session.room
    if room is None:
        return
    needed = {s: memory.needed(sizes, s.mode, s.world_size) for s in planned.specs}
    too_large = [s for s in planned.specs if needed[s] > _MOST_OF_ROOM * room.limit]
    if len(too_large) == len(planned.specs):
        return
    for spec in too_large:
        planned.drop(
            spec,
            f"it needs about {memory.gib(needed[spec])} GiB, and {room.origin} must "
            f"also hold activations; --world-sizes {spec.world_size} runs it anyway",
        )


def _check_memory(session: Session, planned: plan.Plan, base: ReferenceResult) -> None:
    """Refuses what does not fit before any of it runs.

    Raises:
        UsageError: option-max-memory.
    """
    name = Path(session.ref.path or "").name or "the target"
    runs = [(spec.mode, spec.world_size) for spec in planned.specs]
    memory.check(name, base.facts["sizes"], runs, session.room)


def _as_float32(made: Made, only: Sequence[Cell] | None) -> list[RunOutcome]:
    """Returns the outcomes of a float32 model as it comes.

    In float64 a later `.to(float64)`, or `.float()`, would be another program.
    """
    assert made.base is not None
    assert made.base.spec is not None
    spec = made.base.spec.but(dtype="float32", constants=NATIVE)
    base = _at_tolerance(made.session.reference(spec), made.options)
    assert base.spec is not None
    planned = plan.make(made.options, base.spec, base.facts, only)
    made.expect(base, planned)
    return made.session.run(planned.specs)


def _at_tolerance(base: ReferenceResult, options: Options) -> ReferenceResult:
    """Sets the tolerance above which ranks send a whole tensor.

    Raises:
        UsageError: option-value, of a tolerance below the rounding of the dtype.
    """
    assert base.spec is not None
    if options.tolerance is not None:
        tolerance.check_chosen(options.tolerance, base.spec.dtype)
    default = tolerance.default(base.spec.dtype).rtol
    rtol = min(default, options.tolerance or default)
    return dataclasses.replace(base, spec=base.spec.but(rtol=rtol))


def _converts_after_wrapping(outcomes: list[RunOutcome]) -> bool:
    made_so = any(o.spec.constants == NATIVE for o in outcomes)
    return not made_so and any(o.facts().get("applied_after_wrap") for o in outcomes)


def _open_ahead(pool: Pool, options: Options, only: Sequence[Cell] | None) -> None:
    """Forks ranks while the reference computes; most world sizes will be used.

    Not for many: the batch may have fewer samples, which is not known yet.
    """
    pool.open(SOLO)
    cells = plan.cells(options) if only is None else only
    crews = (mode_of(c.mode).processes(c.world_size) for c in cells)
    for size in dict.fromkeys(filter(None, crews)):
        if size <= _OPENED_AHEAD:
            pool.open(size)


def _base_spec(options: Options) -> RunSpec:
    return RunSpec(
        mode=SINGLE.name,
        dtype=options.dtype,
        noise=options.noise,
        steps=options.steps,
        seed=options.seed,
        loss=options.loss[0],
        device=options.run_device,
        batch_norm="asis",
    )


def _with_settings(options: Options, settings: dict[str, Any]) -> Options:
    """Fills options that were not given from the target's own settings."""
    settings = {**options.project, **settings}
    changes: dict[str, Any] = {}
    if options.world_sizes is None and settings.get("world_sizes"):
        changes["world_sizes"] = tuple(settings["world_sizes"])
    if options.simulate is None and settings.get("simulate"):
        changes["simulate"] = tuple(settings["simulate"])
    if options.tolerance is None and settings.get("tolerance"):
        changes["tolerance"] = float(settings["tolerance"])
    accept = settings.get("accept") or {}
    if not isinstance(accept, dict):
        accept = dict.fromkeys(accept, "accepted in the target")
    changes["accept"] = {**accept, **options.accept}
    return dataclasses.replace(options, **changes)
