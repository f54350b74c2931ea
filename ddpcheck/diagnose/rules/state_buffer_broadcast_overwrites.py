"""Detects state/buffer-broadcast-overwrites."""

from __future__ import annotations

from ddpcheck.diagnose.facts import fitted
from ddpcheck.diagnose.facts.buffers import Owners, diverging_buffers, read_at_once
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import GlobalModule, Substitute, Switch

SLUG = "state/buffer-broadcast-overwrites"
LINK = "update"


def detect(case: Case) -> Proposal | None:
    """Proposes it for other modules whose buffers differ after a step."""
    fit = fitted.by_the_step(case, sent=True)
    if fit is not None:
        return fit
    owner = diverging_buffers(case, batch_norm=False)
    if owner is None:
        return read_at_once(case, sent=True) or _detect_per_sample_state(case)
    if not owner.written_in_forward:
        is_own = owner.are_broadcast and not owner.are_exchanged
        at_once = read_at_once(case, sent=True)
        return _by_the_step(owner, at_once) if is_own else at_once
    found = Proposal(
        summary="forward updates a buffer from the local shard, and "
        + (
            "before each forward rank 0's value overwrites the others: only rank "
            "0's data count"
            if owner.are_broadcast
            else (
                "DDP does not broadcast it: every rank keeps the value of its own data"
            )
        ),
        facts=owner.facts,
        fix="all-reduce the increment in forward",
        fixes=(Substitute(boundary="state", names=tuple(owner.modules)),),
        module=owner.modules[0],
    )
    if not owner.are_called:
        return found
    seen = tuple(GlobalModule(name=name) for name in owner.modules)
    if "" not in owner.modules or owner.are_read_at_once:
        # The module's inputs may have no samples, as those of losses.
        written = (Substitute(boundary="writes", names=tuple(owner.modules)),)
        return replaced(found, fixes=seen, fallback=replaced(found, fixes=written))
    # Giving all rows to the whole model would also hide any other cause inside.
    return replaced(found, fallback=replaced(found, fixes=seen))


def _by_the_step(owner: Owners, at_once: Proposal | None) -> Proposal:
    found = Proposal(
        summary="a buffer is updated between forwards from the local shard, and "
        "before each forward rank 0's value overwrites the others: only rank 0's "
        "data count",
        facts=(*owner.facts, "no forward writes these buffers: the training step does"),
        fix="all-reduce the increment before it is added",
        fixes=(Substitute(boundary="state", names=tuple(owner.modules)),),
        module=owner.modules[0],
    )
    if at_once is None:
        return found
    return replaced(found, fixes=at_once.fixes)


def _detect_per_sample_state(case: Case) -> Proposal | None:
    """Proposes it as speculative for buffers that are not compared: they hold samples.

    An example is the state of a recurrent network, row by row: all ranks get that of
    rank 0's samples.
    """
    sent = case.outcome.facts().get("broadcast_buffers", ())
    if not sent or not case.first_broken("gradients") or case.run.faults:
        return None
    return Proposal(
        summary="before each forward rank 0's buffers overwrite those of the other "
        "ranks, which hold state of their own samples",
        facts=(
            f"buffers that DDP broadcasts: {names(sorted(sent))}; without the "
            "broadcast the runs are equal",
        ),
        fix="keep per-sample state in plain attributes, or pass it in and return it",
        code="model = DistributedDataParallel(model, broadcast_buffers=False)",
        fixes=(Switch.BUFFER_BROADCAST_OFF,),
        speculative=True,
        last_resort=1,
    )
