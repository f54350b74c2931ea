"""What a check has made so far, and the report on one that ends before it is complete.

Runs in the tool's own process: no torch, no user code.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass, field

from ddpcheck.checking import plan, reporting
from ddpcheck.compare import tolerance
from ddpcheck.diagnose import engine, shrink
from ddpcheck.errors.problem import SignalError
from ddpcheck.report.data import Finding, NotCompared, Report, Run, Tolerance
from ddpcheck.report.progress import Silent, about
from ddpcheck.run.modes.sim import SIM
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session, expected_s
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.options import Options

_LONG_S = 60.0  # a longer check announces its duration
_NOT_RUN = "the check ended before this run"
_NOISE_UNKNOWN = (
    "the check ended before the rounding of the single-process run was measured; "
    "the difference may be rounding"
)


@dataclass(slots=True)
class Made:
    """What a check has finished so far, for the report if it ends early."""

    session: Session
    options: Options
    started: float
    progress: Silent
    base: ReferenceResult | None = None
    planned: plan.Plan | None = None
    outcomes: dict[RunSpec, RunOutcome] = field(default_factory=dict)
    runs: list[Run] | None = None  # once they are judged
    limit: Tolerance | None = None
    diagnosis: engine.Diagnosis = field(default_factory=engine.Diagnosis)
    broken_off: list[Finding] = field(default_factory=list)  # by DataParallel
    began: float = 0.0  # the first run

    def expect(self, base: ReferenceResult, planned: plan.Plan) -> None:
        """Notes the planned runs, and announces how long they take."""
        self.base, self.planned, self.outcomes = base, planned, {}
        self.began = time.perf_counter()
        seconds = self.left_s()
        if seconds + self.began - self.started > _LONG_S:
            self.progress.announce(_how_long(planned, base, self.options, seconds))
        self._say()

    def ran(self, outcome: RunOutcome) -> None:
        """Notes a run that has ended; those of the diagnosis are none of the plan's."""
        if self.planned is None or self.runs is not None:
            return
        if outcome.spec in self.planned.specs:
            self.outcomes[outcome.spec] = outcome
            self._say()

    def left(self) -> list[RunSpec]:
        """Returns the runs that are planned and not made."""
        specs = self.planned.specs if self.planned else []
        return [spec for spec in specs if spec not in self.outcomes]

    def _say(self) -> None:
        assert self.planned is not None
        left = self.left()
        if not left:
            return
        made, total = len(self.outcomes), len(self.planned.specs)
        self.progress(f"making runs, {made} of {total} done")
        self.progress.expect(self.left_s())

    def left_s(self) -> float:
        """Returns how long the rest takes, as those that were made took."""
        assert self.base is not None
        rest = sum(expected_s(spec, self.base) for spec in self.left())
        done = sum(expected_s(spec, self.base) for spec in self.outcomes)
        taken = time.perf_counter() - self.began
        return rest * (taken / done if done else 1.0)

    def report(self, error: BaseException) -> Report | None:
        """Returns the report on the runs finished before an error, None if none are."""
        if self.base is None or self.planned is None or not self.outcomes:
            return None
        runs, limit = self.runs, self.limit
        outcomes = [self.outcomes[s] for s in self.planned.specs if s in self.outcomes]
        if runs is None or limit is None:
            runs, limit = judged_early(outcomes, self.options)
        left, is_signal = self.left(), isinstance(error, SignalError)
        made, total = len(self.outcomes), len(self.planned.specs)
        where = f"after {made} of {total} runs" if left else "in the diagnosis"
        said = str(error).splitlines()[0]
        ended = f"{said} {where}" if is_signal else f"{said}, {where}"
        every = self.broken_off + self.diagnosis.findings
        found, unused = reporting.accept(runs, every, self.options.accept)
        names = [f"{spec.mode} at world size {spec.world_size}" for spec in left]
        missing = [NotCompared(what=name, why=_NOT_RUN) for name in names]
        # What was accepted may be in a run that was not made.
        warnings = reporting.warnings_of(self.base, self.planned, outcomes)
        return reporting.make(
            ref=self.session.ref,
            base=self.base,
            limit=limit,
            outcomes=outcomes,
            runs=runs,
            findings=found,
            not_compared=missing
            + self.planned.not_compared
            + assemble.not_compared(outcomes, runs),
            warnings=warnings + self.diagnosis.warnings + ([] if left else unused),
            seconds=time.perf_counter() - self.started,
            smallest=shrink.divergent(self.session, outcomes, runs),
            ended=ended,
            signal=error.number if isinstance(error, SignalError) else 0,
        )


def judged_early(
    outcomes: list[RunOutcome], options: Options
) -> tuple[list[Run], Tolerance]:
    """Returns the runs of a check that ended before its tolerance was known.

    What may be rounding is no divergence: that of the gradients, of which no optimizer
    makes more, must be larger than any rounding that a check accepts.
    """
    dtype = outcomes[0].spec.dtype
    chosen = options.tolerance
    limit = tolerance.default(dtype) if chosen is None else tolerance.chosen(chosen)
    runs = [assemble.to_run(outcome, limit.rtol) for outcome in outcomes]
    if chosen is not None:
        return runs, limit
    largest = tolerance.LARGEST_FLOOR[dtype] / limit.rtol
    for index, run in enumerate(runs):
        worst = run.gradients.worst
        is_certain = bool(run.faults) or (worst and not worst.excess <= largest)
        if run.verdict == "divergent" and not is_certain:
            runs[index] = dataclasses.replace(
                run, verdict="not-checked", why=_NOISE_UNKNOWN
            )
    return runs, limit


def _how_long(
    planned: plan.Plan, base: ReferenceResult, options: Options, seconds: float
) -> str:
    """Returns the announcement of a long check: its duration, and how to shorten it."""
    sizes = {spec.world_size for spec in planned.specs}
    modes = {spec.mode for spec in planned.specs}
    advice = {
        "--world-sizes 2": max(sizes) > 2 and modes != {SIM.name},  # noqa: PLR2004
        "--modes ddp": len(modes) > 1,
        "--no-fix": options.fix,
        "a smaller batch": True,
    }
    count = len(planned.specs)
    runs = "1 run takes" if count == 1 else f"{count} runs take"
    shorter = ", ".join(option for option, applies in advice.items() if applies)
    return (
        f"{runs} {about(seconds)} (the single-process run took {base.seconds:.0f} s); "
        f"finding a cause takes longer; to make it shorter: {shorter}"
    )
