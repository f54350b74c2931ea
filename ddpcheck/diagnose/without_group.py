"""What DataParallel's replicas lack: a process group.

A norm that synchronises its statistics is right on ranks but uses the shard in a
replica, where there is no process group. Ranks whose model has no process group behave
like replicas, and can be probed and fixed.
"""

from __future__ import annotations

import dataclasses
import math

from ddpcheck.diagnose.proposal import BY_DDP
from ddpcheck.diagnose.search.loop import Search
from ddpcheck.report.data import Finding, Run, Tolerance
from ddpcheck.run.intervention import Switch
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunOutcome

_ALONE = Switch.MODEL_WITHOUT_GROUP
_SAME = 1e-3  # relative; the mean over ranks and one backward round otherwise


def found(
    session: Session,
    outcome: RunOutcome,
    run: Run,
    rest: list[int],
    limit: Tolerance,
    ddp: Run,
) -> list[Finding]:
    """Returns the findings of DataParallel runs, if such ranks differ in the same way.

    Fixes in the forward must make them equal; [] otherwise.

    Args:
        session: of the target.
        outcome: of DataParallel, divergent.
        run: the same, assembled.
        rest: numbers of all such runs.
        limit: what is equal.
        ddp: the run of DDP at this world size, equivalent.
    """
    fixes = (*outcome.spec.fixes, _ALONE)
    spec = outcome.spec.but(mode=DDP.name, fixes=fixes)
    stand_in = session.run([spec])[0]
    if not _differs_alike(run, assemble.to_run(stand_in, limit.rtol)):
        return []
    search = Search(session, stand_in, limit, fix=True)
    search.run()
    if search.rest is not None:
        return []
    made = search.findings(rest)
    if any(f.link != "forward" or not (f.fix and f.fix.verified) for f in made):
        return []
    return [_of_replicas(f, run, ddp) for f in made]


def _differs_alike(run: Run, other: Run) -> bool:
    """Returns whether the first gradients are off by the same."""
    mine, theirs = run.gradients.excess_by_step[:1], other.gradients.excess_by_step[:1]
    return (
        bool(mine and theirs)
        and not other.faults
        and min(mine[0], theirs[0]) > 1
        and math.isclose(mine[0], theirs[0], rel_tol=_SAME)
    )


def _of_replicas(finding: Finding, run: Run, ddp: Run) -> Finding:
    """Returns a finding of such ranks in the words for DataParallel."""
    assert finding.fix is not None
    fix = dataclasses.replace(
        finding.fix,
        text="use DistributedDataParallel: the collectives of the ranks are right, "
        "and replicas have no process group for them",
        code="model = DistributedDataParallel(model)",
        safe=True,
        proof="intervention",
        intervention=BY_DDP,
        excess_before=assemble.worst_excess(run),
        excess_after=assemble.worst_excess(ddp),
    )
    facts = (
        *finding.facts,
        "found on ranks whose model has no process group: their gradients differ "
        "by as much as DataParallel's, and with the rows of all ranks in these "
        "modules they equal the single-process gradients",
        f"DDP at world size {run.world_size} equals the single-process run",
    )
    return dataclasses.replace(
        finding,
        summary="DataParallel's replicas have no process group; in ranks without one "
        + finding.summary,
        facts=facts,
        fix=fix,
        controls=(),
    )
