"""A cause that the fix of another one hides, known by what the ranks did alone.

With the loss of all samples on every rank, a learning rate that follows it is the same
on all of them: the run that mends the loss mends the rate as well.
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.causes import Cause
from ddpcheck.diagnose.events import ranks_disagree
from ddpcheck.diagnose.rules import sync_control_desync
from ddpcheck.diagnose.text import listed

_HIDING = "loss.global"


def hidden(case: Case, causes: list[Cause]) -> list[Cause]:
    """Returns what the ranks' own numbers show beside these causes of the case."""
    slugs = {cause.proposal.slug for cause in causes}
    fixes = [fix for cause in causes for fix in cause.proposal.fixes]
    if sync_control_desync.SLUG in slugs or case.run.faults:
        return []
    if not any(fix.startswith(_HIDING) for fix in fixes):
        return []
    found = _own_numbers(case)
    if found is None:
        return []
    step, name, values = found
    proposal = Proposal(
        slug=sync_control_desync.SLUG,
        link=sync_control_desync.LINK,
        summary="the ranks update their weights with different numbers: each decides "
        "on its own",
        facts=(
            f"{name} at the update of step {step + 1}: {listed(values)} on the ranks",
            "no run tells it apart: where all ranks see one loss, they decide alike",
        ),
        fix=sync_control_desync.FIX,
        code=sync_control_desync.CODE,
    )
    return [Cause(proposal, before=causes[0].before)]


def _own_numbers(case: Case) -> tuple[int, str, list[float]] | None:
    """Returns (step, name, value per rank) of the first number that ranks differ in."""
    told = case.rank_facts("schedule", [])
    if len({len(rank) for rank in told}) != 1:
        return None
    for updates in zip(*told, strict=True):
        step = updates[0][0]
        for groups in zip(*(groups for _, groups in updates), strict=False):
            for name in groups[0]:
                values = [group.get(name, 0.0) for group in groups]
                if len(set(values)) > 1 and ranks_disagree(case, "weights", step):
                    return step, name, values
    return None
