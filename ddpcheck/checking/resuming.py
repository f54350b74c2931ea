"""Whether a script that is started again goes on as if it had not stopped.

whole       W ranks train K updates and some more
begun       they train K updates, and are stopped when the next one begins
resumed     they are started again, and find the files that `begun` has made

What is compared is the update with the same number (diagnose/script_data/resumed.py).
How a script saves and resumes is its own: see the page script-not-resumed.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import time
from pathlib import Path
from typing import Any

from ddpcheck.checking import reporting, script_reproduce
from ddpcheck.diagnose.script_data import resumed
from ddpcheck.diagnose.script_data.resumed import Compared
from ddpcheck.errors import frames
from ddpcheck.errors.problem import Problem, UsageError, cut
from ddpcheck.ranks import made
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import (
    EXIT_CODES,
    RESUME,
    Finding,
    NotCompared,
    Quantity,
    Report,
    Run,
    Tolerance,
    Verdict,
    in_order,
)
from ddpcheck.report.progress import Silent
from ddpcheck.run.session import acceptance
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target.options import Options
from ddpcheck.target.script import Script
from ddpcheck.target.target import TargetRef

_EMPTY = "no update of the resumed run was compared"
_OTHER_NOISE = (
    "the script keeps no states of generators, and other noise trains as well"
)
# Of torch, numpy and Python; or all of them at once, by accelerate.
_KEEPS_STATES = re.compile(rb"rng_state|getstate\b|get_state\b|save_state\b")
_NOT_SEEN = NotCompared(
    what="files of logs, and averages that no function of the script holds, after the "
    "resume",
    why="the model, its optimizers, gradient scalers, the samples and the variables of "
    "running functions are followed",
)


def check(
    pool: Pool, script: Script, world_size: int, options: Options, progress: Silent
) -> Report:
    """Checks a script at one world size, resumed at update `options.resume_at`.

    Raises:
        UsageError: script-not-resumed.
        CannotCheckError: ranks fail, or do not train alike from the same start.
    """
    started, at = time.perf_counter(), options.resume_at
    assert at is not None

    def followed(script: Script, updates: int, what: str) -> list[Outcome]:
        progress(f"{what} {script.name} on {world_size} ranks")
        job = Job(
            function="ddpcheck.run.script.resuming:follow",
            arguments={"script": script, "updates": updates},
        )
        task = pool.submit(job, world_size)
        try:
            pool.wait([task])
        finally:
            pool.retire(world_size)
        return task.outcomes

    whole = followed(script, at + options.steps, "training")
    _check_ran(script, whole)
    _check_reaches(script, _events(whole), at)
    named = dataclasses.replace(script, shares=f"resume{world_size}")
    begun = followed(named, at, "stopping")
    _check_ran(script, begun)
    _check_repeats(script, resumed.repeats(_events(whole), _events(begun)))
    more = tuple(shlex.split(options.resume_args or ""))
    again = dataclasses.replace(named, arguments=(*script.arguments, *more))
    outcomes = followed(again, options.steps, "resuming")
    failed = next((o for o in outcomes if o.kind != "done"), None)
    if failed is not None:
        raise _not_resumed(script, at, _how(script, failed), pool, failed)
    start = resumed.start_of(_events(whole)[0], _events(outcomes)[0], at)
    if not start:
        how = "its weights are those before the first update"
        raise _not_resumed(script, at, how, pool, None)
    found = resumed.compared(_events(whole), _events(outcomes), start)
    report = _report(script, world_size, options, found, time.perf_counter() - started)
    value = whole[0].value
    target = dataclasses.replace(
        report.target,
        model=value.model,
        optimizer=value.optimizer,
        num_parameters=value.num_parameters,
        num_tensors=value.num_tensors,
        batch_size=resumed.batch(_events(whole), at),
        steps=found.updates,
    )
    report = dataclasses.replace(report, target=target)
    return dataclasses.replace(
        report, reproduce=script_reproduce.text(script, report, options)
    )


def _events(outcomes: list[Outcome]) -> list[list[Any]]:
    return [list(outcome.progress) for outcome in outcomes]


def _how(script: Script, outcome: Outcome) -> str:
    """Returns how a rank failed, with the line of the script."""
    if outcome.raised is not None:
        lines = outcome.raised.message.strip().splitlines()
        place = (outcome.raised.where or "").removeprefix(f"{script.folder}/")
        where = f" ({place})" if place else ""
        return f"{outcome.raised.type_name}: {lines[0] if lines else ''}{where}"
    return f"a rank {'hangs' if outcome.kind == 'hung' else 'dies'}" + frames.in_users(
        outcome.stack
    )


def _check_ran(script: Script, outcomes: list[Outcome]) -> None:
    failed = next((o for o in outcomes if o.kind != "done"), None)
    if failed is not None:
        message = f"{script.name} fails before it is resumed: {_how(script, failed)}"
        raise CannotCheckError(message, failed.stack or failed.stderr)


def _check_reaches(script: Script, whole: list[list[Any]], at: int) -> None:
    last = resumed.moments(whole[0])[-1]
    if last.step > at or not last.ended:
        return
    raise UsageError(
        Problem(
            slug="script-not-resumed",
            message=f"{script.name} makes no update after update {at}",
            expected="a script that goes on after the update of --resume-at",
            found=f"its end after {last.step} updates",
            fix="give a smaller number, or the arguments with which it trains longer",
        )
    )


def _check_repeats(script: Script, step: int | None) -> None:
    if step is None:
        return
    message = (
        f"{script.name} does not train alike from the same start: two runs of the same "
        f"ranks have other weights after {step} updates"
    )
    raise CannotCheckError(message, "")


def _not_resumed(
    script: Script, at: int, how: str, pool: Pool, failed: Outcome | None
) -> UsageError:
    own = f"/{pool.folder.name}-"  # of the check: folders for temporary files
    every = made.read(pool.folder).paths
    files = [p for p in every if made.is_within(p, script.folder) and own not in p]
    short = [path.removeprefix(f"{script.folder}/") for path in files]
    wrote = f"it made {cut(short, 3)}" if short else "it made no file in its folder"
    stack = failed.raised.stack if failed is not None and failed.raised else ""
    return UsageError(
        Problem(
            slug="script-not-resumed",
            message=f"{script.name} does not go on from update {at} when it is started "
            "again",
            expected="a script that has saved its training by then, and resumes from "
            "that",
            found=f"{how}; until then {wrote}",
            fix='name the arguments with which it resumes: --resume-args="--resume '
            'FILE"; or a later --resume-at',
            stack=stack,
        )
    )


def _accepted(finding: Finding, script: Script) -> str | None:
    """Returns why a finding is accepted: other noise, where nothing is to be the same.

    A script that keeps the states of generators means to go on with the same noise.
    """
    if finding.slug != resumed.RANDOM or _KEEPS_STATES.search(_text(script)):
        return None
    return _OTHER_NOISE


def _text(script: Script) -> bytes:
    """Returns the source of the script, or of the package that its module is in."""
    if not script.module:
        return script.source
    package = Path(script.folder, *script.module.split("."))
    folder = package if package.is_dir() else package.parent
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def _report(
    script: Script,
    world_size: int,
    options: Options,
    found: Compared,
    seconds: float,
) -> Report:
    verdict: Verdict = "divergent" if found.findings else "equivalent"
    is_empty = not (found.findings or (found.tensors and found.updates))
    run = Run(
        mode=RESUME,
        world_size=world_size,
        dtype="float32",
        verdict="not-checked" if is_empty else verdict,
        why=_EMPTY if is_empty else "",
        weights=Quantity(compared=found.tensors, mismatched=found.lost),
        seconds=seconds,
    )
    own = [
        dataclasses.replace(one, runs=(0,), accepted=_accepted(one, script))
        for one in found.findings
    ]
    findings = in_order(acceptance.accept([run], own, options.accept))
    verdict = acceptance.verdict([run], findings)
    base = reporting.unchecked(
        TargetRef(path=script.path or None, module=script.module, is_script=True),
        "",
        EXIT_CODES[verdict],
    )
    warnings: tuple[str, ...] = ()
    if found.start != options.resume_at:
        warnings = (
            f"resume_at: the script resumes after update {found.start}, where it has "
            f"saved, not {options.resume_at}",
        )
    return dataclasses.replace(
        base,
        verdict=verdict,
        runs=(run,),
        findings=tuple(findings),
        not_compared=(*found.not_compared, _NOT_SEEN),
        warnings=warnings,
        tolerance=Tolerance(rtol=resumed.RTOL, origin="of what is restored"),
        seconds=seconds,
    )
