"""Whether a rank's loss depends on other ranks: the same step, and no group in sight.

A collective may be called for a log, a bound or a clock, and its result go nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ddpcheck.diagnose.probes.evidence import Cut, ModuleCall, RankEvidence
from ddpcheck.run.interventions.rows import gather

LOSS, AFTER = "loss", "after backward"
_SAME = 1e-9  # relative; the same operations give the same numbers in any dtype


def with_what_others_say(
    found: RankEvidence, again: Callable[[], RankEvidence]
) -> RankEvidence:
    """Returns the evidence with `asks_others`, `group_factor` and `addend_factors`.

    Modules whose outputs are wrong by as much without the group communicate for what
    they keep, and are told as those that call nobody.

    Args:
        found: what the step showed with the group.
        again: does the same step once more, from the same beginning.
    """
    try:
        alone = gather.alone(again)
    except Exception:  # noqa: BLE001 (a program that needs its group: it may ask)
        return found
    asked = _asks_others(found, alone)
    factor = _group_factor(found.cuts, alone.cuts)
    factors = tuple(map(_group_factor, found.addends, alone.addends))
    modules = tuple(_without_idle_calls(found.modules, alone.modules))
    return replace(
        found,
        modules=modules,
        asks_others=asked,
        group_factor=factor,
        addend_factors=factors if len(factors) == len(found.addends) else (),
    )


def _without_idle_calls(
    calls: tuple[ModuleCall, ...], alone: tuple[ModuleCall, ...]
) -> Iterator[ModuleCall]:
    known = {(m.name, m.call): m.rel_diff for m in alone}
    idle: list[ModuleCall] = []
    for m in calls:  # what a module calls comes before it
        theirs = known.get((m.name, m.call))
        inside = sum(i.collectives for i in idle if i.name.startswith(f"{m.name}."))
        is_wrong = m.collectives and m.rel_diff and theirs is not None
        if not (is_wrong and _is_close(m.rel_diff or 0.0, theirs or 0.0)):
            yield replace(m, collectives=max(0, m.collectives - inside))
            continue
        idle.append(replace(m, collectives=max(0, m.collectives - inside)))
        normalises = m.normalises or (m.writes_buffers and m.is_scale_invariant)
        yield replace(m, collectives=0, normalises=normalises)


def _asks_others(found: RankEvidence, alone: RankEvidence) -> tuple[str, ...]:
    """Returns what is another one where no group is in sight: of LOSS and AFTER.

    A loss that is scaled up before backward and down after it is the same; one that is
    the same before that has gradients that the step itself multiplies otherwise.
    """
    if _are_close(_numbers(found, 1.0), _numbers(alone, 1.0)):
        return ()
    ours, theirs = found.after_backward or 1.0, alone.after_backward or 1.0
    if _are_close(_numbers(found, 1 / ours), _numbers(alone, 1 / theirs)):
        return (AFTER,)
    return LOSS, AFTER


def _group_factor(found: Sequence[Cut], alone: Sequence[Cut]) -> float | None:
    """Returns the one factor that the group brings into all gradients, if it is one."""
    pairs = [
        (cut.ratio, other.ratio)
        for cut, other in zip(found, alone, strict=False)
        if cut.key == other.key
        and other.ratio
        and _is_close(cut.residual, other.residual)
    ]
    if not pairs or len(found) != len(alone):
        return None
    factors = [mine / theirs for mine, theirs in pairs]
    is_one = all(_is_close(factor, factors[0]) for factor in factors)
    return factors[0] if is_one and math.isfinite(factors[0]) else None


def _numbers(found: RankEvidence, factor: float) -> list[tuple[str, float]]:
    """Returns what is known of the loss and its gradients, times a factor.

    Gradients have what the step multiplies them by after backward.
    """
    loss = (found.loss or 0.0) * found.after_backward
    numbers = [("loss", loss * factor)]
    for cut in found.cuts:
        name = f"{cut.key} {cut.micro}"
        numbers += [(name, cut.ratio * factor), (name, cut.residual)]
    for direct in found.direct:
        numbers += [(direct.name, direct.ratio * factor)]
        numbers += [(direct.name, direct.residual)]
    return numbers


def _are_close(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> bool:
    return len(ours) == len(theirs) and all(
        name == other and _is_close(value, known)
        for (name, value), (other, known) in zip(ours, theirs, strict=True)
    )


def _is_close(value: float, other: float) -> bool:
    if not (math.isfinite(value) and math.isfinite(other)):
        return repr(value) == repr(other)
    return abs(value - other) <= _SAME * max(1.0, abs(value), abs(other))
