"""Equal gradients, different updates."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.events import (
    factor_between_ranks,
    is_power_of_two,
    ranks_disagree,
    rewritten,
)
from ddpcheck.diagnose.facts.experiments import GIVEN_GRADIENTS
from ddpcheck.diagnose.facts.text import listed, names


def wrong_with_right_gradients(case: Case) -> tuple[int, set[str]] | None:
    """Returns the first step after which weights differ, and their names.

    In the run with the single-process gradients at every update: what is left to differ
    is the update and the end of the step. None if nothing does.
    """
    if not case.facts["has_train_step"] or case.run.faults:
        return None
    run = case.result(GIVEN_GRADIENTS)
    if run.faults or run.gradients.mismatched or not run.weights.mismatched:
        return None
    rows = [row for row in run.weights.tensors if row.excess > 1]
    first = min(row.step for row in rows)
    return first, {row.name for row in rows if row.step == first}


def fact_of_wrong(first: int, wrong: set[str], kind: str) -> str:
    """Returns the sentence on these weights, which are "trained" or "untrained"."""
    return (
        f"given the single-process gradients at every update, {len(wrong)} {kind} "
        f"parameters differ after step {first + 1}: {names(sorted(wrong))}"
    )


def step_of_update(case: Case) -> int | None:
    """Returns the step whose update makes the ranks' weights differ, or None."""
    if case.run.faults or any(m.writes_parameters for m in case.modules()):
        return None
    if any(f.get("updates_in_backward") for f in case.ranks) or any(
        f.get("start_differs") for f in case.ranks
    ):
        return None
    step = case.first_broken("weights")
    if step is None or not ranks_disagree(case, "weights", step):
        return None
    trained = set(case.mismatched("weights", step)) - case.untrained
    return step if trained else None


def parted_before(case: Case, step: int | None) -> bool:
    """Returns whether the ranks' weights differ before the update of a step."""
    parted = rewritten(case, "before")
    return step is not None and parted is not None and parted <= step


def written_after(case: Case) -> int | None:
    """Returns the step after whose update each rank writes its own weights.

    Their gradients were equal, and no known number decides about it.
    """
    step, first = step_of_update(case), case.first_broken("gradients")
    if step is None or parted_before(case, step) or case.facts["draws"]:
        return None
    if first is not None and first <= step:
        return None
    is_known = decided_by(case, step) is not None
    return None if is_known or rewritten(case, "after") is None else step


def at_other_times(case: Case, first: int | None) -> str | None:
    """Returns the fact that all ranks update their weights in other steps, if they do.

    `first`: the step in which gradients differ first, None for none.
    """
    step = case.first_broken("weights")
    if step is None or (first is not None and first <= step) or case.run.faults:
        return None
    if not case.facts["has_train_step"] or ranks_disagree(case, "weights", step):
        return None
    told = [case.facts["schedule"], *(f.get("schedule", []) for f in case.ranks)]
    known, *ranks = [[at + 1 for at, _ in updates] for updates in told]
    if known == ranks[0] or any(rank != ranks[0] for rank in ranks):
        return None
    return (
        f"steps with an update: {listed(known) or 'none'} in the single-process "
        f"run, {listed(ranks[0]) or 'none'} on every rank"
    )


def left_out_by_some(case: Case) -> str | None:
    """Returns the fact that some ranks skip an update, if they do.

    The gradients there are not known: such a step may have set them to None.
    """
    step = case.first_broken("weights")
    if step is None or case.run.faults:
        return None
    schedules = [f.get("schedule", []) for f in case.ranks]
    taken = [sum(at <= step for at, _ in told) for told in schedules]
    if min(taken) == max(taken) or not ranks_disagree(case, "weights", step):
        return None
    return f"updates up to step {step + 1}, per rank: {listed(taken)}"


def rewritten_alone(case: Case, first: int | None) -> str | None:
    """Returns the fact that ranks change reduced gradients locally, if they do.

    `first`: the step in which gradients differ first, None for none.
    """
    late = max((f.get("late_changes", 0) for f in case.ranks), default=0)
    reduces = all("F" in f.get("events", "") for f in case.ranks)
    if first is None or not late or not reduces or case.run.faults:
        return None
    if not case.loss_is_sound or not ranks_disagree(case, "gradients", first):
        return None
    factor = factor_between_ranks(case, "gradients", first)
    if factor is not None and is_power_of_two(case, factor):
        return None  # a loss scale
    return (
        f"{late} updates come after gradients were written without an exchange "
        "since backward; at the update these gradients differ between ranks"
    )


def decided_by(case: Case, step: int) -> str | None:
    """Returns what differs: "numbers" of the optimizer, or "updates".

    A rank that skips an update has fewer of them, not other numbers.
    """
    told = [case.facts["schedule"], *(f.get("schedule", []) for f in case.ranks)]
    known, *ranks = [[numbers for at, numbers in t if at <= step] for t in told]
    if any(len(rank) != len(known) for rank in ranks):
        return "updates"
    return "numbers" if any(rank != known for rank in ranks) else None
