"""Modules that a training step fits to the shard before it calls the model.

A normaliser of observations, say: another method than forward updates its buffers with
the samples at hand, and forward goes by them at once.
"""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.diagnose.text import in_group, module, number


def of_shard(case: Case, slug: str, *, sent: bool) -> Proposal | None:
    """Returns the proposal, on trial, for such modules; None where there are none.

    With one process's buffers they are right. `sent`: whether DDP sends rank 0's
    buffers to all before its forward; None is returned where it is otherwise.
    """
    found = [m for m in case.diverging() if m.through_buffers and not m.is_batch_norm]
    if not found or len(found) < len(case.diverging()) or not case.loss_is_sound:
        return None
    first, named = found[0], module(found[0].name)
    buffers = case.outcome.facts().get("broadcast_buffers", ())
    if any(name.startswith(first.name) for name in buffers) != sent:
        return None
    goes = (
        "DDP then sends rank 0's buffers to all: only rank 0's samples count"
        if sent
        else "every rank goes by its own"
    )
    control = () if any(m.collectives for m in found) else ("module.in_group:",)
    proposal = Proposal(
        slug=slug,
        link="forward",
        summary=f"{named} ({first.kind}) is fitted to the samples of the shard before "
        f"it is called, and {goes}",
        facts=(
            f"{named}, fed with the reference's own input, returns other rows than in "
            f"one process: relative difference {number(first.rel_diff or 0)}",
            "with one process's buffers it does not; where the model has the samples "
            "of all ranks, the runs are equal",
        ),
        fix="fit to the samples of all ranks: reduce over ranks what buffers are made "
        "of",
        code=in_group("dist.all_reduce(moments)", "moments /= dist.get_world_size()"),
        fixes=("module.global:",),
        control=control,
        module=first.name,
        speculative=True,
        last_resort=1,
    )
    if not case.facts["has_train_step"]:
        return proposal
    # The step fits it to what it is given itself, which no call of the model shows.
    last = replaced(proposal, fixes=("data.whole",), control=(), last_resort=2)
    return replaced(proposal, fallback=last)
