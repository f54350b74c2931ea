"""Causes of divergences of simulated ranks, found on real ranks that diverge alike.

Probes need a process for each rank. A divergence at a large world size is searched at a
small one, with shards as uneven as at the large one.
"""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.text import worst_of
from ddpcheck.report.data import Finding, Run, Tolerance
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunOutcome

_LARGEST_STAND_IN = 8


def groups(runs: list[Run]) -> list[list[int]]:
    """Returns the divergent simulated runs, those of the same settings together."""
    found: list[list[int]] = []
    for i, run in enumerate(runs):
        kind = mode_of(run.mode).explained_by
        if kind != "stand-in" or run.verdict != "divergent":
            continue
        for group in found:
            if is_alike(runs[group[0]], run):
                group.append(i)
                break
        else:
            found.append([i])
    return found


def is_alike(first: Run, second: Run) -> bool:
    """Returns whether two runs differ in mode and world size alone."""
    return (first.batch_norm, first.loss) == (second.batch_norm, second.loss)


def joined(found: list[Finding], known: list[int], indices: list[int]) -> list[Finding]:
    """Returns the findings, those of the `known` runs with these runs added."""
    return [
        dataclasses.replace(f, runs=tuple(sorted({*f.runs, *indices})))
        if set(f.runs) & set(known)
        else f
        for f in found
    ]


def stand_in(
    session: Session, outcomes: list[RunOutcome], indices: list[int], limit: Tolerance
) -> RunOutcome | None:
    """Returns a run of real ranks that diverges too, None if none does.

    The smallest world size that leaves uneven shards as the simulated one does, and the
    smallest that leaves even ones.
    """
    outcome = outcomes[indices[0]]
    size = outcome.reference.facts["batch_size"]
    possible = range(2, min(size, _LARGEST_STAND_IN) + 1)
    uneven = bool(size % outcome.spec.world_size)
    chosen = [w for w in possible if bool(size % w) == uneven][:1]
    if uneven:
        chosen += [w for w in possible if size % w == 0][:1]
    for world_size in chosen:
        spec = outcome.spec.but(mode=DDP.name, world_size=world_size)
        made = session.run([spec])[0]
        if assemble.to_run(made, limit.rtol).verdict == "divergent":
            return made
    return None


def said(finding: Finding, few: int, many: int) -> Finding:
    """Returns the finding with the fact where it was found."""
    fact = f"found on {few} real ranks, which diverge as the {many} simulated ones do"
    return dataclasses.replace(finding, facts=(*finding.facts, fact))


def unknown(run: Run, indices: list[int]) -> Finding:
    """Returns the finding for a divergence that does not occur with few ranks."""
    facts = [f"rank {f.rank}: {f.summary}" for f in run.faults[:1]]
    return Finding(
        slug="unknown",
        link="update" if run.gradients.mismatched == 0 else "loss",
        runs=tuple(indices),
        summary="the cause is unknown; simulated ranks diverge, few real ones do not",
        facts=(*facts, *worst_of(run)),
    )
