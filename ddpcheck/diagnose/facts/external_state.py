"""State that training code keeps outside the model, if it differs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.report.data import Run
from ddpcheck.run.facts import KeptOtherwise
from ddpcheck.run.intervention import Interventions, Substitute, substituted
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.spec import FEW, RunOutcome

_FAR = 0.05  # relative: more than any update of a step
_SAME = 1e-6  # relative, of differences: what rounding leaves of equal ones
_VISIBLE = 1e-3  # relative: far above rounding in any dtype


@dataclass(frozen=True, slots=True)
class ExternalState:
    """The facts about what differs, and the run that would prove it.

    `has_weights`: it contains parameters, as those of an average of the model;
    `is_trained`: all of it has gradients.
    `decides`: it consists of a few numbers that a step may use for a decision, without
    buffers.
    `is_alike`: the difference is equal on every rank.
    """

    has_weights: bool
    is_trained: bool
    decides: bool
    is_alike: bool
    facts: tuple[str, ...]
    fixes: Interventions


def before_gradients(case: Case) -> ExternalState | None:
    """Returns what differs after a step, if gradients differ from a later step on.

    Not if a fix already sets it to the single-process values.
    """
    first = case.first_broken("gradients")
    if not first or _is_substituted(case):
        return None
    worst: dict[str, float] = {}
    weights, trained, decides = False, True, True
    per_rank = [f.get("beside", {}) for f in case.ranks]
    for found in per_rank:
        for name, told in found.items():
            if told.step < first and told.rel_diff > case.close:
                worst[name] = max(worst.get(name, 0.0), told.rel_diff)
                weights |= told.is_weight
                trained &= told.is_trained
                decides &= told.size <= FEW and not told.is_buffer
    if not worst:
        return None
    largest = max(worst, key=lambda name: worst[name])
    facts = (
        f"after step {first} {largest}, which is neither a parameter nor a buffer "
        "of the model, differs from the single-process run by "
        f"{number(worst[largest])} relative",
        f"all values that differ so: {names(sorted(worst))}; when they are set to "
        "the single-process values after every step, the runs are equal",
    )
    fixes = (Substitute(boundary="beside", names=tuple(sorted(worst))),)
    return ExternalState(
        has_weights=weights,
        is_trained=trained,
        decides=decides,
        is_alike=all(_is_alike(per_rank, name, far) for name, far in worst.items()),
        facts=facts,
        fixes=fixes,
    )


def _is_substituted(case: Case) -> bool:
    return substituted(case.outcome.spec.fixes, "beside") is not None


def _is_alike(
    per_rank: Sequence[Mapping[str, KeptOtherwise]], name: str, far: float
) -> bool:
    told = [found.get(name) for found in per_rank]
    means = [t.mean_diff for t in told if t]
    if not means or max(means) - min(means) > _SAME * far:
        return False
    return all(t and math.isclose(t.rel_diff, far, rel_tol=_SAME) for t in told)


def own_samples(case: Case) -> list[str]:
    """Returns what stores a rank's own samples after a step, if the next differs."""
    first, broken = (case.first_broken(name) for name in ("gradients", "weights"))
    if not first or (broken is not None and broken < first):
        return []  # an earlier update made the ranks differ
    found = {
        name
        for f in case.ranks
        for name, told in f.get("beside", {}).items()
        if told.has_fewer_rows and told.step < first
    }
    return sorted(found)


def drawn_weights(case: Case) -> list[str]:
    """Returns weights outside the model that each rank has drawn for itself.

    They differ a lot after the first step, in which numbers are drawn: an average of
    the model would be as close as the model's own weights.
    """
    if not case.facts["draws"]:
        return []
    found = {
        name
        for f in case.ranks
        for name, told in f.get("beside", {}).items()
        if told.is_weight and not told.step and told.rel_diff > _FAR
    }
    return sorted(found)


def warnings(outcomes: Sequence[RunOutcome], runs: Sequence[Run]) -> list[str]:
    """Reports what differs there although no compared value does.

    Single numbers are left out: a loss for the log is local.
    """
    for outcome, run in zip(outcomes, runs, strict=True):
        if not mode_of(run.mode).is_ranks or run.verdict != "equivalent":
            continue
        worst: dict[str, float] = {}
        for facts in outcome.facts_of_ranks():
            for name, told in facts.get("beside", {}).items():
                if told.rel_diff > _VISIBLE and told.size > 1:
                    worst[name] = max(worst.get(name, 0.0), told.rel_diff)
        if worst:
            return [
                f"kept outside the model, not judged: {names(sorted(worst))} on "
                "ranks differ from the single-process run, by up to "
                f"{number(max(worst.values()))} relative at world size "
                f"{run.world_size}; no compared value depends on it, but evaluation "
                "or a checkpoint may"
            ]
    return []
