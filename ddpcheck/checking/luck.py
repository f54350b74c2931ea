"""Runs that are equal by luck: what their data cannot show, as warnings."""

from __future__ import annotations

from ddpcheck.report.data import Run, Tolerance
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import RunOutcome, Session


def warnings(
    session: Session, runs: list[Run], outcomes: list[RunOutcome], limit: Tolerance
) -> list[str]:
    """Returns what to say of runs that would be equal with a fault in them, too."""
    mine = [
        o
        for o, run in zip(outcomes, runs, strict=True)
        if mode_of(run.mode).is_ranks and run.verdict == "equivalent"
    ]
    if not mine:
        return []
    facts = mine[0].reference.facts
    found = []
    if facts["at_rest"]:
        found.append(
            f"no weight changes in {mine[0].spec.steps} steps of the single-process "
            "run: gradients are compared, but no optimizer update is"
        )
    if facts["alike"]:
        found.append(
            "all samples of the batch are equal, so all shards are equal: a norm or "
            "loss that depends on the local shard cannot be detected; let batch() "
            "return samples that differ"
        )
        return found
    return found + _of_order(session, mine[0], limit)


def _of_order(session: Session, outcome: RunOutcome, limit: Tolerance) -> list[str]:
    """Says so where the run is equal only because of how the samples fall on shards.

    A mean over valid items is right whenever all shards hold the same number of them.
    """
    # One step shows it: what counts differ in, the first gradients differ in.
    shuffled = outcome.spec.but(shuffle=True, steps=1)
    if not session.trains(shuffled):
        return []
    again = session.run([shuffled])[0]
    run = assemble.to_run(again, limit.rtol)
    worst = run.gradients.worst
    if run.verdict != "divergent" or run.faults or worst is None or worst.excess <= 1:
        return []
    return [
        "equal only for this order of the samples: with the batch in another order "
        f"{worst.name} differs by {worst.rel_diff:.3g} at world size {run.world_size}; "
        "here all shards have equal counts, or the samples of one shard belong together"
    ]
