"""Whether ranks have equal tensors: judged by digests and by their differences.

Also whether an average of weights after an update makes them equal, instead of DDP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ddpcheck.compare import tolerance
from ddpcheck.report.data import Difference
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.spec import RunOutcome, StepResult

OF_RANKS = ("gradients", "weights")  # what must be equal on all ranks
# Times the tolerance: an update of this size would reveal a wrong gradient.
_VISIBLE = 1e3
# Excess far above rounding, and the fraction of it by which ranks that agree may
# differ.
_FAR_OFF, _ALIKE = 100.0, 0.01


def by_step(outcome: RunOutcome) -> list[list[StepResult]]:
    """Returns the results of the ranks per step, up to the last step of any rank."""
    steps: dict[int, list[StepResult]] = {}
    for rank in range(len(outcome.ranks)):
        for result in outcome.steps(rank):
            steps.setdefault(result.step, []).append(result)
    return [steps[step] for step in sorted(steps)]


def ranks_agree(
    outcome: RunOutcome, rtol: float, names: tuple[str, ...] = OF_RANKS
) -> bool:
    """Returns whether ranks are equal after every step, by name of the quantity."""
    world = len(outcome.ranks)
    if world < 2:  # noqa: PLR2004
        return True
    for results in by_step(outcome):
        for name in names:
            found = [s.digests.get(name) for s in results]
            rows = [
                {t.name: t for t in s.quantities[name].tensors}
                for s in results
                if name in s.quantities
            ]
            if not tolerance.digests_agree(found, rtol) or not are_off_alike(rows):
                return False
    return True


def are_off_alike(ranks: Sequence[Mapping[str, Difference]]) -> bool:
    """Returns whether tensors that differ from the reference are equal on all ranks.

    A digest of all tensors does not show a small one among large ones.

    Args:
        ranks: for each rank the facts of its tensors that are far off, by name.
    """
    for name in set.intersection(*map(set, ranks)) if ranks else ():
        differences = [rank[name] for rank in ranks]
        factors = [t.ratio for t in differences if t.ratio is not None]
        if (
            len(factors) < len(differences)
            or min(t.excess for t in differences) < _FAR_OFF
        ):
            continue
        off = max(max(t.rel_diff, abs((t.ratio or 0.0) - 1)) for t in differences)
        if max(factors) - min(factors) > _ALIKE * off:
            return False
    return True


def ranks_differ(outcome: RunOutcome, quantity: str, step: int, rtol: float) -> bool:
    """Returns whether the ranks' tensors of a quantity differ after a step."""
    digests = [
        s.digests.get(quantity)
        for r in range(len(outcome.ranks))
        for s in outcome.steps(r)
        if s.step == step
    ]
    return not tolerance.digests_agree(digests, rtol)


Rewritten = Literal["rewritten_before", "rewritten_after"]  # keys of RankFacts


def first_parting(outcome: RunOutcome, fact: Rewritten, rtol: float) -> int | None:
    """Returns the first step in which the weights of ranks diverge, None without one.

    Args:
        outcome: of a run with explicitly averaged gradients, which records the weights.
        fact: where in a step.
        rtol: of digests that are the same.
    """
    facts = [f.get(fact, {}) for f in outcome.facts_of_ranks()]
    for step in sorted(set.intersection(*(set(t) for t in facts)) if facts else ()):
        first, later = zip(*(t[step] for t in facts), strict=True)
        if tolerance.digests_agree(first, rtol) and not tolerance.digests_agree(
            later, rtol
        ):
            return step
    return None


def averages_weights(outcome: RunOutcome) -> bool:
    """Returns whether ranks step with local gradients, and then average weights.

    As local SGD with an average after every step: the weights equal the single-process
    weights after each step, though they moved by far more than the tolerance, no rank
    has the averaged gradients, and ranks whose weights diverge at the update write them
    after it.
    """
    steps = by_step(outcome)
    wrong = [s for s in steps if any(_mismatched(r, "gradients") for r in s)]
    if not mode_of(outcome.spec.mode).is_wrapped or not wrong:
        return False
    if any(_mismatched(result, "weights") for results in steps for result in results):
        return False
    rtol = outcome.spec.rtol
    return all(
        result.least_move > _VISIBLE * rtol
        for results in wrong
        for result in results
        if _mismatched(result, "gradients")
    ) and not any(
        tolerance.digests_agree([r.digests.get("gradients") for r in results], rtol)
        or not _share_weights(results, rtol)
        for results in wrong
    )


def _share_weights(ranks: list[StepResult], rtol: float) -> bool:
    """Returns whether ranks diverge at an update and weights are written after it.

    Also if ranks with wrong gradients copy the weights of a rank with right ones, as
    from a parameter server, if the update itself communicated the gradients, or if only
    ranks without an update have wrong gradients and get their weights from others
    (join). Otherwise an optimizer that uses only signs, or normalizes, may hide wrong
    gradients.
    """
    if all(result.reduces_in_update for result in ranks):
        return True
    wrong = [result for result in ranks if _mismatched(result, "gradients")]
    if not any(result.parted for result in wrong):
        return True
    if len(wrong) < len(ranks):  # weights of the others are copied
        pairs = [parted for result in wrong for parted in result.parted]
        return all(after != left for after, left in pairs)
    updates = list(zip(*(result.parted for result in ranks), strict=False))
    return bool(updates) and all(
        not tolerance.digests_agree([after for after, _ in pairs], rtol)
        and any(after != left for after, left in pairs)
        for pairs in updates
    )


def _mismatched(result: StepResult, name: str) -> bool:
    return name in result.quantities and bool(result.quantities[name].mismatched)
