"""What a check found, as a Report, also of a check that ends before it is complete.

Runs in the tool's own process: no torch, no user code.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from dataclasses import dataclass, field

from ddpcheck.checking import plan
from ddpcheck.compare import tolerance
from ddpcheck.diagnose import engine, reproduce, shrink
from ddpcheck.diagnose.reproduce import Smallest
from ddpcheck.errors.problem import EndedError, cut
from ddpcheck.report.data import (
    EXIT_CODES,
    EXIT_SIGNAL,
    Finding,
    NotCompared,
    Report,
    Run,
    Scope,
    TargetInfo,
    Tolerance,
    in_order,
)
from ddpcheck.report.progress import Silent, about
from ddpcheck.run.facts import REMARKS
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.modes.sim import SIM
from ddpcheck.run.session import acceptance, assemble
from ddpcheck.run.session.session import Session, expected_s
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target import target as targets
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

# No compared number shows this: --noise sample replaced the ranks' noise.
_ONE_STREAM = (
    "the generators of all ranks are in the same state when the step draws noise for "
    "its samples, although ddpcheck seeded them differently: without --noise sample "
    "all ranks draw the same noise (rng/same-stream-all-ranks)"
)

# Of a training program, in the order in which it uses them.
_PARTS = ("data loader", "sampler", "AMP", "scheduler")

# A run, probe or search of ddpcheck failed: its result is not known.
_INTERNAL = "internal error of ddpcheck, please report it: "

_NOTHING_MASKED = (
    "--loss masked: no target is -100 or NaN, so the loss is the mean, and counts that "
    "differ between ranks were not checked"
)


def accept(
    runs: list[Run], findings: list[Finding], reasons: dict[str, str]
) -> tuple[list[Finding], list[str]]:
    """Marks accepted findings; an acceptance that covers nothing is a warning."""
    marked = acceptance.accept(runs, findings, reasons)
    warnings = acceptance.idle(runs, marked, reasons)
    return marked, warnings + acceptance.unproven(runs, marked)


def with_idle(report: Report, reasons: dict[str, str]) -> Report:
    """Returns the report of several checks, with what acceptances cover in all."""
    others = [text for text in report.warnings if not text.startswith("accept: ")]
    if report.ended:
        reasons = {}  # what was accepted may be in a run that was not made
    idle = acceptance.idle(report.runs, report.findings, reasons)
    return dataclasses.replace(report, warnings=(*others, *idle))


def make(
    *,
    ref: TargetRef,
    base: ReferenceResult,
    limit: Tolerance,
    outcomes: list[RunOutcome],
    runs: list[Run],
    findings: list[Finding],
    not_compared: list[NotCompared],
    warnings: list[str],
    seconds: float,
    smallest: Smallest | None,
    fixed: str = "",
    diff: str = "",
    ended: str = "",
    signal: int = 0,
) -> Report:
    """Returns the report; its verdict follows from runs and findings.

    Args:
        ref: the target.
        base: the reference.
        limit: of all runs.
        outcomes: of the runs.
        runs: those that were made.
        findings: of the diagnosis.
        not_compared: what was not compared, and why.
        warnings: about the check.
        seconds: that it took.
        smallest: the run that reproduce.py shows.
        fixed: the text of fixed.py.
        diff: the same as a change of the user's file.
        ended: why the check ended before it was complete, if it did; equal runs are
            then no verdict.
        signal: the number of the signal that ended it, 0 for none.
    """
    findings = in_order(findings)
    verdict = acceptance.verdict(runs, findings)
    if ended and verdict == "equivalent":
        verdict = "not-checked"
    return Report(
        verdict=verdict,
        exit_code=EXIT_SIGNAL + signal if signal else EXIT_CODES[verdict],
        ended=ended,
        scope=_scope(ref, base, outcomes),
        target=_target_info(ref, base),
        tolerance=limit,
        environment=_environment(base),
        runs=tuple(runs),
        findings=tuple(findings),
        not_compared=tuple(dict.fromkeys(not_compared)),
        warnings=tuple(dict.fromkeys(warnings)),
        seconds=seconds,
        reproduce=reproduce.script(ref, findings, smallest),
        fixed=fixed,
        diff=diff,
    )


def unchecked(ref: TargetRef, why: str, exit_code: int, *, ended: str = "") -> Report:
    """Returns the report on a target that could not be run at all, or was not yet.

    For programs that read files; users get the message of the error.
    """
    path = ref.path or ""
    return Report(
        verdict="not-checked",
        exit_code=exit_code,
        target=TargetInfo(
            name=ref.name, path=path, sha256=targets.sha256(path) if path else ""
        ),
        tolerance=Tolerance(rtol=0.0, origin="nothing was compared"),
        environment=_versions(),
        not_compared=(NotCompared(what="everything", why=why),),
        ended=ended,
    )


def _target_info(ref: TargetRef, base: ReferenceResult) -> TargetInfo:
    path = ref.path or ""
    facts = base.facts
    assert base.spec is not None
    return TargetInfo(
        name=ref.name,
        path=path,
        sha256=targets.sha256(path) if path else "",
        model=facts["model"],
        num_parameters=facts["num_parameters"],
        num_tensors=facts["num_tensors"],
        batch_size=facts["batch_size"],
        loss=base.spec.loss,
        optimizer=facts["optimizer"],
        backwards=facts["backwards"],
        steps=base.spec.steps,
    )


def _scope(ref: TargetRef, base: ReferenceResult, outcomes: list[RunOutcome]) -> Scope:
    """Returns what took part in the training of this target, and what did not."""
    facts = base.facts
    found = {*facts["parts"]}
    for outcome in outcomes:  # a sampler asks for ranks
        found |= {*outcome.facts().get("parts", ())}
    step = "train_step" if facts["has_train_step"] else "loss"
    if ref.is_script:
        step = "the script's own steps"
        found.add("data loader")  # its batches are those of the ranks
    checked = ["model", step, facts["optimizer"]]
    checked += ["wrap"] * facts["has_wrap"]
    if facts["backwards"] > 1:
        checked.append(f"accumulation ({facts['backwards']} backwards an update)")
    left = [p for p in _PARTS if not any(f.startswith(p) for f in found)]
    return Scope(checked=(*checked, *sorted(found)), not_checked=tuple(left))


def _rounded_starts(outcomes: list[RunOutcome]) -> list[str]:
    """Returns a warning about weights that model() rounds differently per process."""
    found: dict[str, float] = {}
    for outcome in outcomes:
        for facts in outcome.facts_of_ranks():
            for name, size in facts.get("rounded_start", {}).items():
                found[name] = max(size, found.get(name, 0.0))
    if not found:
        return []
    name = max(found, key=lambda n: found[n])
    more = len(found) - 1
    others = f" and {more} other tensor{'s' * (more > 1)}" if more else ""
    return [
        f"two calls of model() differ by rounding: {name}{others}, by at most "
        f"{found[name]:.3g} of the largest value; all runs begin with the same weights"
    ]


def _is_one_stream(outcome: RunOutcome) -> bool:
    """Returns whether all ranks' own noise, which the run replaced, is equal."""
    if not mode_of(outcome.spec.mode).is_ranks:
        return False
    streams = {f.get("stream") for f in outcome.facts_of_ranks()}
    return len(outcome.ranks) > 1 and len(streams) == 1 and streams != {None}


def version(package: str) -> str:
    """Returns the version of an installed package, "unknown" where it is not."""
    from importlib import metadata  # noqa: PLC0415

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _environment(base: ReferenceResult) -> dict[str, str]:
    assert base.spec is not None
    return {
        **_versions(),
        "device": base.spec.device,
        "backend": _backend(base.facts["gpus"]),
        "seed": str(base.spec.seed),
    }


def _versions() -> dict[str, str]:
    return {
        "ddpcheck": version("ddpcheck"),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "platform": f"{sys.platform} {platform.machine()}",
        "cpus": str(os.cpu_count()),
    }


def _backend(gpus: int) -> str:
    # A launcher's group has ranks on other machines, each with its own GPUs.
    return f"NCCL for up to {gpus} ranks on a machine, else gloo" if gpus else "gloo"


def warnings_of(
    base: ReferenceResult, planned: plan.Plan, outcomes: list[RunOutcome]
) -> list[str]:
    """Returns the warnings about how the target was run."""
    found = [*base.warnings, *planned.warnings, *_rounded_starts(outcomes)]
    found += [remark for o in outcomes for remark in o.facts().get(REMARKS, ())]
    if any(_is_one_stream(outcome) for outcome in outcomes):
        found.append(_ONE_STREAM)
    if any(not o.reference.facts.get("masks", True) for o in outcomes):
        found.append(_NOTHING_MASKED)
    idle = base.facts["idle"]
    # If the single-process run does nothing, no run is judged.
    idles = base.facts.get("nothing") or base.facts.get("never_updates")
    if not idle or base.facts["has_wrap"] or idles:
        return found
    is_never = set(idle) <= set(base.facts["unused"])
    where = "" if is_never else " in one of the updates"
    return [
        *found,
        f"{len(idle)} parameters get no gradient{where} ({cut(idle, 3)}): DDP was "
        "built with find_unused_parameters=True; without it the second step raises",
    ]


def internal(session: Session) -> list[str]:
    """Returns a warning on each failure of ddpcheck itself."""
    return [_INTERNAL + text for text in session.internal]


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
    diagnoses: bool = True

    def expect(self, base: ReferenceResult, planned: plan.Plan) -> None:
        """Notes the planned runs, and announces how long they take."""
        self.base, self.planned, self.outcomes = base, planned, {}
        self.began = time.perf_counter()
        seconds = self.left_s()
        if seconds + self.began - self.started > _LONG_S:
            self.progress.announce(_how_long(planned, base, self.options, seconds))
        self._show()

    def ran(self, outcome: RunOutcome) -> None:
        """Notes a planned run that has ended; runs of the diagnosis do not count."""
        if self.planned is None or self.runs is not None:
            return
        if outcome.spec in self.planned.specs:
            self.outcomes[outcome.spec] = outcome
            self._show()

    def left(self) -> list[RunSpec]:
        """Returns the runs that are planned and not made."""
        specs = self.planned.specs if self.planned else []
        return [spec for spec in specs if spec not in self.outcomes]

    def _show(self) -> None:
        assert self.planned is not None
        left = self.left()
        if not left:
            return
        made, total = len(self.outcomes), len(self.planned.specs)
        self.progress(f"making runs, {made} of {total} done")
        self.progress.expect(self.left_s())

    def left_s(self) -> float:
        """Returns how long the remaining runs take, as the finished ones took."""
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
        left, is_asked = self.left(), isinstance(error, EndedError)
        made, total = len(self.outcomes), len(self.planned.specs)
        where = f"after {made} of {total} runs" if left else "in the diagnosis"
        reason = str(error).splitlines()[0]
        ended = f"{reason} {where}" if is_asked else f"{reason}, {where}"
        every = self.broken_off + self.diagnosis.findings
        found, unused = accept(runs, every, self.options.accept)
        names = [f"{spec.mode} at world size {spec.world_size}" for spec in left]
        missing = [NotCompared(what=name, why=_NOT_RUN) for name in names]
        # What was accepted may be in a run that was not made.
        warnings = warnings_of(self.base, self.planned, outcomes)
        warnings += internal(self.session)
        return make(
            ref=self.session.ref,
            base=self.base,
            limit=limit,
            outcomes=outcomes,
            runs=runs,
            findings=found,
            not_compared=missing
            + self.planned.not_compared
            + assemble.not_compared(outcomes, runs),
            warnings=warnings + ([] if left else unused),
            fixed=self.diagnosis.fixed,
            diff=self.diagnosis.diff,
            seconds=time.perf_counter() - self.started,
            smallest=shrink.divergent(self.session, outcomes, runs),
            ended=ended,
            signal=error.number if isinstance(error, EndedError) else 0,
        )


def judged_early(
    outcomes: list[RunOutcome], options: Options
) -> tuple[list[Run], Tolerance]:
    """Returns the runs of a check that ended before its tolerance was known.

    A difference that may be rounding is no divergence: the difference of the gradients,
    which no optimizer amplifies, must exceed any rounding that a check accepts.
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
    limit_s, ends = options.deadline_s, ""
    if limit_s is not None and seconds > limit_s:
        ends = f", more than --deadline-s {limit_s:g}"
    return (
        f"{runs} {about(seconds)} (the single-process run took {base.seconds:.0f} s)"
        f"{ends}; finding a cause takes longer; to make it shorter: {shorter}"
    )
