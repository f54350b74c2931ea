"""What a check found, as a Report."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from ddpcheck.checking import plan
from ddpcheck.diagnose import reproduce
from ddpcheck.diagnose.reproduce import Smallest
from ddpcheck.errors.problem import cut
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
)
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import acceptance
from ddpcheck.run.spec import REMARKS, ReferenceResult, RunOutcome
from ddpcheck.target import target as targets
from ddpcheck.target.target import TargetRef

# No compared number shows this: --noise sample replaced the ranks' noise.
_ONE_STREAM = (
    "the generators of all ranks are in the same state when the step draws noise for "
    "its samples, although ddpcheck seeded them differently: without --noise sample "
    "all ranks draw the same noise (rng/same-stream-all-ranks)"
)

# Of a training program, in the order in which it uses them.
_PARTS = ("data loader", "sampler", "AMP", "scheduler")

_NOTHING_MASKED = (
    "--loss masked: no target is -100 or NaN, so the loss is the mean, and counts that "
    "differ between ranks were not checked"
)


def accept(
    runs: list[Run], findings: list[Finding], reasons: dict[str, str]
) -> tuple[list[Finding], list[str]]:
    """Marks accepted findings; an acceptance that matches nothing is a warning."""
    marked = acceptance.accept(runs, findings, reasons)
    found = {f.slug for f in findings}
    unused = [slug for slug in reasons if slug not in found]
    warnings = [f"accept: {slug} was accepted but not found" for slug in unused]
    return marked, warnings + acceptance.unproven(runs, marked)


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
        not_compared: what no number speaks of.
        warnings: about the check.
        seconds: that it took.
        smallest: the run that reproduce.py shows.
        ended: why the check ended before it was complete, if it did; equal runs are
            then no verdict.
        signal: the number of the signal that ended it, 0 for none.
    """
    verdict = acceptance.verdict(runs, findings)
    if ended and verdict == "equivalent":
        verdict = "not-checked"
    return Report(
        verdict=verdict,
        exit_code=EXIT_SIGNAL + signal if signal else EXIT_CODES[verdict],
        ended=ended,
        scope=_scope(base, outcomes),
        target=_target_info(ref, base),
        tolerance=limit,
        environment=_environment(base),
        runs=tuple(runs),
        findings=tuple(findings),
        not_compared=tuple(dict.fromkeys(not_compared)),
        warnings=tuple(dict.fromkeys(warnings)),
        seconds=seconds,
        reproduce=reproduce.script(ref, findings, smallest),
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
            name=_name(ref), path=path, sha256=targets.sha256(path) if path else ""
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
        name=_name(ref),
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


def _scope(base: ReferenceResult, outcomes: list[RunOutcome]) -> Scope:
    """Returns what took part in the training of this target, and what did not."""
    facts = base.facts
    found = {*facts["parts"]}
    for outcome in outcomes:  # a sampler asks for ranks
        found |= {*outcome.facts().get("parts", ())}
    step = "train_step" if facts["has_train_step"] else "loss"
    checked = ["model", step, facts["optimizer"]]
    checked += ["wrap"] * facts["has_wrap"]
    if facts["backwards"] > 1:
        checked.append(f"accumulation ({facts['backwards']} backwards an update)")
    left = [p for p in _PARTS if not any(f.startswith(p) for f in found)]
    return Scope(checked=(*checked, *sorted(found)), not_checked=tuple(left))


def _name(ref: TargetRef) -> str:
    return Path(ref.path or "").name or str(ref.factory or "target")


def _rounded_starts(outcomes: list[RunOutcome]) -> list[str]:
    """Returns a warning about weights that model() rounds differently per process."""
    found: dict[str, float] = {}
    for outcome in outcomes:
        for rank in range(len(outcome.ranks)):
            for name, size in outcome.facts(rank).get("rounded_start", {}).items():
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
    streams = {outcome.facts(r).get("stream") for r in range(len(outcome.ranks))}
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
