"""What a script's report says as a whole: its three verdicts, over world sizes.

gradient    the same samples give the same gradient
update      the same gradient gives the same weights: learning rate, clip, state
data        the ranks' samples are those that one process draws
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from ddpcheck.report.data import (
    EXIT_CODES,
    EXIT_SIGNAL,
    Finding,
    NotCompared,
    Part,
    PartName,
    Quantity,
    Report,
    Row,
    Run,
    in_order,
)

_NO_STEP = "the ranks failed before the first update"
_BY_GRADIENTS = "the gradients differ, and weights by them"
_FAILED = "ranks failed before it was compared"
_NEVER = math.inf  # the step in which nothing differs


def parts(
    run: Run | None,
    findings: Sequence[Finding],
    in_data: Sequence[Finding],
    left_out: Sequence[NotCompared],
    world_size: int,
) -> tuple[Part, ...]:
    """Returns the three verdicts at one world size.

    Args:
        run: that was compared with the single process, None if none was.
        findings: on it.
        in_data: findings on the samples of the ranks.
        left_out: what of the samples was not compared.
        world_size: of the ranks.
    """
    if run is None or run.verdict == "not-checked":
        why = _NO_STEP if run is None else run.why
        trained = _open("gradient", world_size, why), _open("update", world_size, why)
    else:
        trained = _trained(run, findings)
    return (*trained, _data(in_data, left_out, world_size))


def _open(what: PartName, world_size: int, why: str) -> Part:
    return Part(what=what, world_size=world_size, verdict="not-checked", why=why)


def _trained(run: Run, findings: Sequence[Finding]) -> tuple[Part, Part]:
    """Returns the verdicts on the gradients and on the updates.

    What differs first decides: after an update that differs, gradients do, too.
    """
    size = run.world_size
    at_gradients = _first(run.gradients)
    at_update = min(_first(run.weights), _first(run.buffers))
    gradient = Part(what="gradient", world_size=size, verdict="equivalent")
    update = Part(what="update", world_size=size, verdict="equivalent")
    if at_gradients < _NEVER and at_gradients <= at_update:
        gradient = dataclasses.replace(gradient, verdict="divergent")
        update = _open("update", size, _BY_GRADIENTS)
        if any(finding.link == "update" for finding in findings):
            update = dataclasses.replace(update, verdict="divergent", why="")
    elif at_update < _NEVER:
        update = dataclasses.replace(update, verdict="divergent")
    elif run.faults:
        gradient, update = (_open(p.what, size, _FAILED) for p in (gradient, update))
    elif not run.ranks_agree:
        update = dataclasses.replace(update, verdict="divergent")
    return gradient, update


def _first(quantity: Quantity) -> float:
    """Returns the first step (from 0) in which something differs."""
    if not quantity.mismatched:
        return _NEVER
    series = enumerate(quantity.excess_by_step)
    worst = 0 if quantity.worst is None else quantity.worst.step
    return next((step for step, excess in series if not excess <= 1), worst)


def _data(
    in_data: Sequence[Finding], left_out: Sequence[NotCompared], world_size: int
) -> Part:
    if in_data:
        return Part(what="data", world_size=world_size, verdict="divergent")
    # What is left out of a pass leaves a part of the verdict.
    whole = [item.why for item in left_out if item.what.startswith("the samples")]
    if whole:
        return _open("data", world_size, whole[0])
    return Part(what="data", world_size=world_size, verdict="equivalent")


def sound(
    findings: Sequence[Finding],
    runs: Sequence[Run],
    rows: Sequence[Row],
    *,
    by_passes: bool,
) -> tuple[Finding, ...]:
    """Accepts what is right in a script although the numbers differ.

    Args:
        findings: on these runs.
        runs: that were compared.
        rows: the facts of the script.
        by_passes: whether the optimizers' numbers follow the passes over the data.
    """
    found = with_own_noise(scaled(findings, runs, rows), runs)
    return of_passes(found, runs) if by_passes and _grow(rows) else found


def of_passes(findings: Sequence[Finding], runs: Sequence[Run]) -> tuple[Finding, ...]:
    """Accepts a schedule that is made for the passes, where a pass has fewer updates.

    A run has shown that nothing else differs.

    Args:
        findings: on these runs.
        runs: that were compared.
    """
    return tuple(
        dataclasses.replace(one, accepted=_OF_PASSES)
        if _is_decided(one, runs) and all(_OF_NUMBERS in fact for fact in one.facts)
        else one
        for one in findings
    )


_OF_NUMBERS = " at the update of step "  # see facts/unlike_numbers.py
_OF_PASSES = (
    "the schedule follows the passes over the data: an update has the samples of "
    "several updates of the single process"
)


def scaled(
    findings: Sequence[Finding], runs: Sequence[Run], rows: Sequence[Row]
) -> tuple[Finding, ...]:
    """Accepts a learning rate that is scaled as the samples of an update are.

    Where each rank has a batch of its own size, and the learning rate grows with their
    number, or with its root, a run has shown that nothing else differs.

    Args:
        findings: on these runs.
        runs: that were compared.
        rows: the facts of the script.
    """
    rates = [row for row in rows if row.what.startswith("learning rate")]
    if (
        not _of_samples(rows)
        or not _grow(rows)
        or not any(_is_scaled(rates, power) for power in (1.0, 0.5))
    ):
        return tuple(findings)
    return tuple(
        dataclasses.replace(one, accepted=_SCALED) if _is_of_rates(one, runs) else one
        for one in findings
    )


def _of_samples(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.what.startswith("samples of an update")]


def _grow(rows: Sequence[Row]) -> bool:
    """Returns whether updates have W times the samples, as far as that is known."""
    return all(r.ranks == r.single * r.world_size for r in _of_samples(rows))


_SCALED = (
    "the learning rate grows with the world size, and so do the samples of an update"
)


def with_own_noise(
    findings: Sequence[Finding], runs: Sequence[Run]
) -> tuple[Finding, ...]:
    """Accepts that each rank draws noise of its own, as dropout does.

    It is right so, and a script cannot be asked to leave it out; a run in which the
    noise follows the samples has shown that nothing else differs.
    """
    return tuple(_accepted_noise(one, runs) for one in findings)


def _accepted_noise(finding: Finding, runs: Sequence[Run]) -> Finding:
    is_noise = finding.slug == "rng/stochastic-layer" and finding.benign
    is_all = set(finding.runs) <= set(finding.proven_runs)
    agree = all(runs[index].ranks_agree for index in finding.runs)
    if finding.accepted is not None or not (is_noise and is_all and agree):
        return finding
    fix = finding.fix and dataclasses.replace(finding.fix, text=_NO_FIX)
    return dataclasses.replace(finding, accepted=_NOISE, fix=fix)


_NOISE = "each rank draws its own noise, and without that the runs are equal"
_NO_FIX = "nothing is wrong with training"


def _is_scaled(rates: Sequence[Row], power: float) -> bool:
    """Returns whether each learning rate is that of one process times W ** power."""
    return bool(rates) and all(
        math.isclose(row.ranks, row.single * row.world_size**power, rel_tol=1e-6)
        for row in rates
    )


def _is_of_rates(finding: Finding, runs: Sequence[Run]) -> bool:
    """Returns whether learning rates that all ranks have are shown to be all of it."""
    is_of_rates = all(fact.startswith("lr ") for fact in finding.facts)
    return is_of_rates and _is_decided(finding, runs)


def _is_decided(finding: Finding, runs: Sequence[Run]) -> bool:
    """Returns whether numbers that all ranks have are shown to be all that differs."""
    return (
        finding.slug == "sync/control-desync"
        and finding.accepted is None
        and set(finding.runs) <= set(finding.proven_runs)
        and all(runs[index].ranks_agree for index in finding.runs)
    )


def merged(reports: Sequence[Report]) -> Report:
    """Returns one report of those of several world sizes.

    The first one that diverges has the run that reproduce.py shows.
    """
    first, *others = reports
    for other in others:
        first = _two(first, other)
    return first


def _two(first: Report, other: Report) -> Report:
    start = len(first.runs)
    moved = tuple(
        dataclasses.replace(
            finding,
            runs=tuple(index + start for index in finding.runs),
            proven_runs=tuple(index + start for index in finding.proven_runs),
        )
        for finding in other.findings
    )
    worst = max((first, other), key=lambda one: _SEVERITY[one.verdict])
    ended = first.ended or other.ended
    verdict = "not-checked" if ended and not _is_divergent(worst) else worst.verdict
    return dataclasses.replace(
        first,
        verdict=verdict,
        exit_code=max(
            code if code >= EXIT_SIGNAL else EXIT_CODES[verdict]
            for code in (first.exit_code, other.exit_code)
        ),
        target=first.target if first.target.num_tensors else other.target,
        tolerance=first.tolerance if first.tolerance.rtol else other.tolerance,
        scope=first.scope if first.scope.checked else other.scope,
        runs=first.runs + other.runs,
        findings=_joined(first.findings, moved, _sizes(other)),
        not_compared=tuple(dict.fromkeys(first.not_compared + other.not_compared)),
        warnings=tuple(dict.fromkeys(first.warnings + other.warnings)),
        facts=first.facts + other.facts,
        parts=first.parts + other.parts,
        seconds=first.seconds + other.seconds,
        reproduce=first.reproduce or other.reproduce,
        ended=ended,
    )


def _sizes(report: Report) -> str:
    sizes = dict.fromkeys(str(run.world_size) for run in report.runs)
    return f"W={', '.join(sizes)}"


def _joined(
    findings: Sequence[Finding], others: Sequence[Finding], at: str
) -> tuple[Finding, ...]:
    """Returns the findings of two world sizes, each cause once.

    What differs in more than numbers is another cause. Sentences that differ in these
    follow, with the world size.

    Args:
        findings: of the first.
        others: of the second.
        at: what the second is called.
    """
    found = list(findings)
    for other in others:
        same = [i for i, one in enumerate(found) if _identity(one) == _identity(other)]
        if not same:
            found.append(other)
            continue
        one = found[same[0]]
        found[same[0]] = dataclasses.replace(
            one,
            runs=one.runs + other.runs,
            proven_runs=one.proven_runs + other.proven_runs,
            facts=(*one.facts, *_of_other(one, other, at)),
        )
    return tuple(in_order(found))


def _of_other(one: Finding, other: Finding, at: str) -> list[str]:
    """Returns what another world size adds to a finding: facts, or its numbers."""
    known = {*map(_without_numbers, one.facts)}
    new = [fact for fact in other.facts if _without_numbers(fact) not in known]
    if other.summary != one.summary:
        new.insert(0, f"at {at}: {other.summary}")
    return new


def _identity(finding: Finding) -> tuple[object, ...]:
    """Returns what two findings on one cause have in common: also how it was proven."""
    fix = finding.fix
    proof = (_without_numbers(fix.text), fix.verified, fix.proof) if fix else ()
    start = _without_numbers(finding.start.text) if finding.start else ""
    summary = _without_numbers(finding.summary)
    return (finding.slug, summary, finding.where, finding.accepted, start, *proof)


def _without_numbers(text: str) -> str:
    return re.sub(r"[0-9]+", "", text)


def _is_divergent(report: Report) -> bool:
    return report.verdict == "divergent"


_SEVERITY = {"equivalent": 0, "not-checked": 1, "divergent": 2}
