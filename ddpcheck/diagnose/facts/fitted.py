"""Modules that are fitted to the shard before they are called.

An example is a normaliser of observations: a method other than forward updates its
buffers with the current samples, and forward uses them at once.
"""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import module, number
from ddpcheck.diagnose.probes.evidence import ModuleCall
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import GlobalModule, Substitute


def by_the_model(case: Case) -> Proposal | None:
    """Returns the proposal, on trial, for modules that the model's forward fits."""
    found = _modules(case, by_the_model=True)
    if not found:
        return None
    return replaced(
        _proposal(case, found, "its output for a sample depends on the others"),
        fix="fit to the samples of all ranks, using a collective with autograd",
    )


def by_the_step(case: Case, *, sent: bool) -> Proposal | None:
    """Returns the proposal, on trial, for modules that the training step fits.

    `sent`: whether DDP broadcasts rank 0's buffers before its forward; None is returned
    if that is not so.
    """
    found = _modules(case, by_the_model=False)
    if not found:
        return None
    own = f"{found[0].name}." if found[0].name else ""
    buffers = case.outcome.facts().get("broadcast_buffers", ())
    if any(name.startswith(own) for name in buffers) != sent:
        return None
    goes = (
        "DDP then broadcasts rank 0's buffers, so that only rank 0's samples count"
        if sent
        else "every rank uses its own buffers"
    )
    return _proposal(case, found, goes)


def _modules(case: Case, *, by_the_model: bool) -> list[ModuleCall]:
    """Returns them if nothing else differs: with the reference's buffers they do not.

    `by_the_model`: whether the model's forward writes these, or the step does.
    """
    found = [m for m in case.diverging() if m.through_buffers and not m.is_batch_norm]
    if len(found) < len(case.diverging()) or not case.loss_is_sound:
        return []
    written = {name for rank in case.probed_ranks for name in rank.written}
    return found if any(m.name in written for m in found) == by_the_model else []


def _proposal(case: Case, found: list[ModuleCall], goes: str) -> Proposal:
    first, named = found[0], module(found[0].name)
    control = () if any(m.collectives for m in found) else (GlobalModule(hides=False),)
    proposal = Proposal(
        link="forward",
        summary=f"{named} ({first.kind}) is fitted to the local shard before it is "
        f"called: {goes}",
        facts=(
            f"given the reference's input, the output of {named} differs from the "
            "single-process output: relative difference "
            f"{number(first.rel_diff or 0)}",
            "given the single-process buffers, it does not; when the model has the "
            "samples of all ranks, the runs are equal",
        ),
        fix=(
            "fit to the samples of all ranks: all-reduce the values that the "
            "buffers are computed from"
        ),
        fixes=(GlobalModule(),),
        control=control,
        module=first.name,
        speculative=True,
        last_resort=1,
    )
    if not case.facts["has_train_step"]:
        return proposal
    # The step fits it to its own samples, which no call of the model shows.
    last = replaced(
        proposal, fixes=(Substitute(boundary="batches"),), control=(), last_resort=2
    )
    return replaced(proposal, fallback=last)
