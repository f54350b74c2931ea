"""The update judged separately: what differs when every update has right gradients.

The run that fixes a loss gives all samples to the code after it, too. With the
single-process gradients at every update, and the local samples around it, only the
update and the end of the step are left to differ.
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import rewritten
from ddpcheck.diagnose.facts.experiments import with_fixes
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.rules import state_ema_teacher_divergence, sync_control_desync
from ddpcheck.report.data import Run
from ddpcheck.run.intervention import Substitute

_GIVEN = Substitute(boundary="gradients")
_UPDATE = with_fixes("the single-process gradients at every update", _GIVEN)
_TOGETHER = with_fixes(
    "the same, and numbers read from tensors as the mean over ranks",
    _GIVEN,
    sync_control_desync.TOGETHER,
)


def judge(case: Case, known: set[str]) -> Proposal | None:
    """Returns what the update itself does wrong, in addition to the causes `known`."""
    if not case.facts["has_train_step"] or case.run.faults:
        return None
    run = case.result(_UPDATE)
    if run.faults or run.gradients.mismatched or not run.weights.mismatched:
        return None
    first, wrong = _first(run)
    untrained = case.untrained
    if wrong <= untrained:
        told = state_ema_teacher_divergence.SLUG in known
        return None if told or _are_in_the_loss(case, wrong) else _state(first, wrong)
    if sync_control_desync.SLUG in known or run.ranks_agree:
        return None
    if rewritten(case, "before") is not None:
        return None  # weights differ before the first update
    # Ranks agree, but the mean of their losses need not be the single-process loss.
    together = case.result(_TOGETHER)
    agrees = not together.faults and together.ranks_agree
    return _decision(first, wrong - untrained) if agrees else None


def _first(run: Run) -> tuple[int, set[str]]:
    """Returns the first step after which weights differ, and their names."""
    rows = [row for row in run.weights.tensors if row.excess > 1]
    first = min(row.step for row in rows)
    return first, {row.name for row in rows if row.step == first}


def _are_in_the_loss(case: Case, wrong: set[str]) -> bool:
    """Returns whether these weights are written before the loss's backward.

    Inputs of the loss, such as moments of a normaliser, are no separate update.
    """
    ranks = case.probed.ranks if case.probed else ()
    written = {name for rank in ranks for name in rank.written_by_backward}
    owners = {name.rpartition(".")[0] for name in wrong}
    return owners <= written or any(m.writes_parameters for m in case.modules())


def _state(first: int, wrong: set[str]) -> Proposal:
    return Proposal(
        slug=state_ema_teacher_divergence.SLUG,
        link=state_ema_teacher_divergence.LINK,
        summary="weights that no optimizer trains (an average, a teacher) are "
        "updated using the local shard, or its size",
        facts=(
            _fact(first, wrong, "untrained"),
            "no run separates this cause: when the loss gets all samples, the code "
            "after it does, too",
        ),
        fix="make the update of the global batch on all ranks: all-reduce its counts",
    )


def _decision(first: int, wrong: set[str]) -> Proposal:
    return sync_control_desync.unproven(
        _fact(first, wrong, "trained"),
        "when every number read from a tensor is the mean over ranks, they agree",
    )


def _fact(first: int, wrong: set[str], kind: str) -> str:
    return (
        f"given the single-process gradients at every update, {len(wrong)} {kind} "
        f"parameters differ after step {first + 1}: {names(sorted(wrong))}"
    )
