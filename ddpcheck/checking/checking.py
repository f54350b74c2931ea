"""One whole check. Read this module first: it is the idea of ddpcheck.

A single process trains the target for a few steps on the global batch B:

    g = dL(f(B), T) / dw

W ranks train the same target, each on its shard (B_r, T_r), and DDP averages:

    g' = (1 / W) sum_r dL(f(B_r), T_r) / dw

`check` runs both, compares every gradient, weight and buffer of every step and rank,
and hands over what differs:

    session.reference(spec)      the single process; its tensors go to a trace file
    plan.make(...)               which modes and world sizes, and what is left out
    session.run(specs)           the ranks; each compares its tensors with the trace
    noise_floor.measure(...)     how exactly the single process repeats itself
    assemble.to_run(outcome)     ranks and steps merged and judged: excess <= 1 passes
    engine.diagnose(...)         which link of the chain differs, and which cause
    reporting.make(...)          the Report, plain data that renderers read

This runs in the process of the command line, which imports no torch and no user code.
`opening` starts the ranks, `plan` has what the reference decides of the other runs,
`reporting` also reports on a check that ends early.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from ddpcheck.checking import batch_checks, opening, plan, reporting
from ddpcheck.checking.plan import Cell
from ddpcheck.checking.reporting import Made
from ddpcheck.diagnose import data_parallel, engine, reproduce, shrink, simulated
from ddpcheck.diagnose.facts import external_state, unlike_numbers
from ddpcheck.errors.problem import EndedError, UsageError
from ddpcheck.ranks.pool import Pool, ServerDiedError
from ddpcheck.report.data import EXIT_SIGNAL, Report
from ddpcheck.report.progress import Silent
from ddpcheck.run.modes import memory
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import assemble, noise_floor
from ddpcheck.run.session.session import CannotCheckError, InternalError, Session
from ddpcheck.run.spec import NATIVE, RunOutcome
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

Verdict = Callable[[Report], None]

# That the search for the smallest run may take, or as long as the runs took.
_LEAST_SHRINKING_S = 15.0


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
    with (
        opening.pool_for(ref, options) as pool,
        opening.in_time(pool, options, progress),
    ):
        progress("importing torch and the target")
        pool.start()
        opening.wait_for_imports(pool, ref)
        return check(pool, ref, options, progress=progress, on_verdict=on_verdict)


def check(
    pool: Pool,
    ref: TargetRef,
    options: Options,
    *,
    progress: Silent | None = None,
    session: Session | None = None,
    only: Sequence[Cell] | None = None,
    on_verdict: Verdict = lambda _: None,
    diagnoses: bool = True,
) -> Report:
    """Checks a target on a pool that has done its imports.

    Where a signal, the deadline or the end of the engine cuts the check off, the report
    is on the finished runs, and states this.

    Args:
        pool: of ranks.
        ref: the target.
        options: what was asked for.
        progress: shows the current phase.
        session: of this pool and target, whose references are then made once.
        only: the runs to make; those of the plan by default. One that is not planned
            is not made, and the report gives the reason.
        on_verdict: takes the report when all is known but how small the run can be
            that reproduce.py shows; what is returned differs in that alone, and in the
            exit code where a signal ended the search for it.
        diagnoses: whether causes are looked for.

    Raises:
        UsageError: the file or an option is wrong.
        CannotCheckError: the single-process run hangs or dies, or the deadline came
            before any run was made.
        SignalError: a signal came before any run was made, or once more.
    """
    session = session or Session(pool, ref)
    made = Made(session, options, time.perf_counter(), progress or Silent())
    session.on_run, session.progress = made.ran, made.progress
    session.is_bounded = options.timeout_s is not None
    made.diagnoses = diagnoses
    made.progress.follow(session.where)
    with opening.in_time(pool, options, made.progress):
        try:
            report = _check(made, only)
        except (EndedError, ServerDiedError, CannotCheckError) as error:
            is_last = isinstance(error, EndedError) and error.again
            early = None if is_last else made.report(error)
            if early is None:
                raise
            if isinstance(error, EndedError):
                pool.retire_busy()
            on_verdict(early)
            return early
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 (ours: what was compared stays)
            on_verdict(early := _after_failure(made, error))
            return early
        on_verdict(report)
        return _shrunk(made, report)


def _after_failure(made: Made, error: Exception) -> Report:
    """Returns the report on the runs that were made when ddpcheck itself failed.

    Raises:
        Exception: the error, where there is no run to report.
    """
    made.session.pool.retire_busy()
    made.session.note_own(error)
    words = f"{type(error).__name__}: {error}".splitlines()[0]
    told = InternalError(f"internal error of ddpcheck: {words}", "")
    try:
        early = made.report(told)
    except Exception:  # noqa: BLE001 (the same error, as a rule)
        early = None
    if early is None:
        raise error
    return early


def _shrunk(made: Made, report: Report) -> Report:
    """Returns the report with a smaller run in its reproduce.py, if time allows."""
    session, limit, diagnosis = made.session, made.limit, made.diagnosis
    known = shrink.divergent(session, list(made.outcomes.values()), list(report.runs))
    if not report.reproduce or known is None or limit is None:
        return report
    made.progress("shrinking reproduce.py")
    needed_s = sum(run.seconds for run in report.runs)
    session.deadline = time.monotonic() + max(_LEAST_SHRINKING_S, needed_s)
    try:
        found = shrink.smallest(
            session, known, limit, diagnosis.removable, diagnosis.mended
        )
    except EndedError as error:
        if error.again:
            raise
        session.pool.retire_busy()
        if not error.number:
            return report  # the deadline: the check itself was complete
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
    opening.open_ahead(session.pool, options, only)
    session.room = memory.room(options.max_memory)
    progress("running the reference: single process on the global batch")
    base = session.reference(plan.base_spec(options))
    options = made.options = plan.with_settings(options, base.facts.get("settings", {}))
    base = plan.at_tolerance(base, options)
    assert base.spec is not None
    planned = plan.make(options, base.spec, base.facts, only)
    if options.world_sizes is None and options.max_memory is None:
        plan.leave_room(session, planned, base)
    plan.check_memory(session, planned, base)
    made.expect(base, planned)
    outcomes = session.run(planned.specs)
    if options.dtype == "auto" and plan.converts_after_wrapping(outcomes):
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
    diagnosis, undetected = made.diagnosis, []
    batch_checks.check_lists(session, outcomes, runs, limit.rtol)
    if not made.diagnoses:
        pass
    elif any(run.verdict == "divergent" for run in runs):
        try:
            engine.diagnose(session, outcomes, runs, limit, options, diagnosis)
        except (UsageError, CannotCheckError, ServerDiedError):
            raise
        except Exception as error:  # noqa: BLE001 (ours: the verdict is known)
            _give_up(made, error)
    else:
        made.progress("training one step on the samples in another order")
        undetected += batch_checks.undetectable(session, runs, outcomes, limit)
        undetected += external_state.warnings(outcomes, runs)
        undetected += unlike_numbers.warnings(outcomes, runs, limit.rtol)
    every = broken_off + diagnosis.findings
    findings, unused = reporting.accept(runs, every, options.accept)
    warnings = reporting.warnings_of(base, made.planned, outcomes)
    warnings += batch_checks.list_warnings(base)
    warnings += reporting.internal(session)
    return reporting.make(
        ref=session.ref,
        base=base,
        limit=limit,
        outcomes=outcomes,
        runs=runs,
        findings=findings,
        not_compared=made.planned.not_compared + assemble.not_compared(outcomes, runs),
        warnings=warnings + floor.warnings() + undetected + unused,
        seconds=time.perf_counter() - made.started,
        smallest=shrink.divergent(session, outcomes, runs),
        fixed=diagnosis.fixed,
        diff=diagnosis.diff,
    )


def _give_up(made: Made, error: Exception) -> None:
    """Reports unexplained runs as unknown, after a failure in the search for causes."""
    made.session.note_own(error)
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


def _as_float32(made: Made, only: Sequence[Cell] | None) -> list[RunOutcome]:
    """Returns the outcomes of a float32 model as it comes.

    In float64 a later `.to(float64)`, or `.float()`, would be another program.
    """
    assert made.base is not None
    assert made.base.spec is not None
    spec = made.base.spec.but(dtype="float32", constants=NATIVE)
    base = plan.at_tolerance(made.session.reference(spec), made.options)
    assert base.spec is not None
    planned = plan.make(made.options, base.spec, base.facts, only)
    made.expect(base, planned)
    return made.session.run(planned.specs)
