"""Causes of divergences under a parameter server.

Its own rules come first, and a run with the other reduction decides. What else is
wrong is wrong under DDP, too, whose ranks can be probed: DDP averages as such a server
does.
"""

from __future__ import annotations

import dataclasses
import math

from ddpcheck.diagnose.facts.server_case import ServerCase
from ddpcheck.diagnose.facts.text import number, worst_of
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.diagnose.registry import SERVER_RULES, asked
from ddpcheck.diagnose.rules import ps_reduce_mismatch
from ddpcheck.diagnose.search import findings
from ddpcheck.diagnose.search.loop import Search
from ddpcheck.report.data import Finding, Fix, Run, Tolerance
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import RunOutcome, RunSpec

_SAME = 1e-3  # relative; the server's mean and DDP's round otherwise
_OTHER = {"mean": "sum", "sum": "mean"}


def found(
    session: Session, outcome: RunOutcome, run: Run, index: int, limit: Tolerance
) -> list[Finding]:
    """Returns what the server's own rules find, where the other reduction mends it."""
    case = _case(outcome, run)
    for rule in SERVER_RULES:
        proposal = asked(rule, case)
        if proposal is None:
            continue
        spec = outcome.spec.but(ps_reduce=_OTHER[case.reduce])
        after = assemble.to_run(session.run([spec])[0], limit.rtol)
        if after.verdict == "equivalent":
            facts = (*proposal.facts, *_with_rate(session, outcome, proposal, limit))
            return [_finding(proposal, facts, run, index, after)]
    return []


def unverified(outcome: RunOutcome, run: Run, index: int) -> list[Finding]:
    """Returns what they propose, without a run (--no-fix)."""
    case = _case(outcome, run)
    made = [asked(rule, case) for rule in SERVER_RULES]
    return [_finding(p, p.facts, run, index, None) for p in made if p is not None][:1]


def stand_in(
    session: Session, outcome: RunOutcome, run: Run, limit: Tolerance
) -> RunOutcome | None:
    """Returns a run under DDP that diverges as the mean over workers does, if it does.

    The step's gradients are off by the same, or its ranks fail alike.
    """
    made = session.run([outcome.spec.but(mode=DDP.name)])[0]
    theirs = assemble.to_run(made, limit.rtol)
    if theirs.verdict != "divergent":
        return None
    mine = run
    if outcome.spec.ps_reduce != "mean" and not run.faults:
        again = session.run([outcome.spec.but(ps_reduce="mean")])[0]
        mine = assemble.to_run(again, limit.rtol)
    return made if are_off_alike(mine, theirs) else None


def explained(
    session: Session,
    outcome: RunOutcome,
    run: Run,
    index: int,
    limit: Tolerance,
    search: Search,
) -> list[Finding]:
    """Returns the findings of the stand-in, and what the server does beside them.

    Args:
        session: of the target.
        outcome: of the run with a server.
        run: the same, judged.
        index: of the run.
        limit: what is equal.
        search: on the stand-in, at its end.
    """
    fact = (
        f"found under DDP at world size {run.world_size}, whose ranks diverge as "
        "workers do whose gradients are averaged"
    )
    known = search.findings([index])
    told = [dataclasses.replace(f, facts=(*f.facts, fact)) for f in known]
    mended = search.mended()
    if mended is None or run.faults:
        return told
    mine, other = (
        assemble.to_run(made, limit.rtol)
        for made in session.run(_both(mended(outcome.spec)))
    )
    if mine.verdict == "equivalent" or other.verdict != "equivalent":
        return told
    case = dataclasses.replace(_case(outcome, run), first=())
    proposal = asked(ps_reduce_mismatch, case, ps_reduce_mismatch.proposed)
    assert proposal is not None
    facts = (*proposal.facts, "seen with the other causes fixed")
    return [*told, _finding(proposal, facts, mine, index, other)]


def _both(spec: RunSpec) -> list[RunSpec]:
    return [spec, spec.but(ps_reduce=_OTHER[spec.ps_reduce])]


def unknown(outcome: RunOutcome, run: Run, index: int) -> Finding:
    """Returns an honest finding."""
    facts = [f"rank {f.rank}: {f.summary}" for f in run.faults[:1]]
    facts += worst_of(run)
    if _clips(outcome):
        facts.append(
            "each worker clips its own gradient before it is pushed, and DDP's ranks "
            "clip what is reduced; no reduction and no learning rate makes that equal "
            "to one process, clipping on the server does"
        )
    return Finding(
        slug=findings.UNKNOWN,
        link="reduce" if run.gradients.mismatched or run.faults else "update",
        runs=(index,),
        summary="the cause is unknown; workers of a parameter server diverge, and "
        "ranks of DDP do not diverge alike",
        facts=tuple(facts),
    )


def _case(outcome: RunOutcome, run: Run) -> ServerCase:
    reference = outcome.reference.facts
    steps = outcome.steps(0)
    gradients = steps[0].quantities.get("gradients") if steps else None
    updates = reference["schedule"]
    return ServerCase(
        run=run,
        reduce=outcome.spec.ps_reduce,
        first=tuple(r for r in gradients.tensors if r.excess > 1) if gradients else (),
        optimizer=reference["optimizer"],
        numbers=tuple(updates[0][1]) if updates else (),
        clips=_clips(outcome),
    )


def _clips(outcome: RunOutcome) -> bool:
    return any(f.get("clips") for f in outcome.facts_of_ranks())


def _with_rate(
    session: Session, outcome: RunOutcome, proposal: Proposal, limit: Tolerance
) -> tuple[str, ...]:
    """Returns what the run with the other learning rate says, or this one's weights."""
    factor = proposal.evidence["lr_factor"]
    spec = outcome.spec if factor is None else outcome.spec.but(ps_lr=factor)
    run = assemble.to_run(session.run([spec])[0], limit.rtol)
    if run.weights.worst is None:
        return ()
    off = number(run.weights.worst.rel_diff)
    if factor is None:
        return (f"the weights differ by {off} relative at most",)
    state = "are those of one process" if not run.weights.mismatched else "still differ"
    return (f"run with that learning rate: the weights {state} (by {off} at most)",)


def _finding(
    proposal: Proposal,
    facts: tuple[str, ...],
    run: Run,
    index: int,
    after: Run | None,
) -> Finding:
    verified = None if after is None else after.verdict == "equivalent"
    other = _OTHER[proposal.evidence["reduce"]]
    ended = "are equal" if verified else "still differ"
    ran = f"with the {other} of the gradients on the server the runs {ended}"
    return Finding(
        slug=proposal.slug,
        link=proposal.link,
        runs=(index,),
        proven_runs=(index,) if verified else (),
        summary=proposal.summary,
        facts=facts,
        evidence=proposal.evidence.copy(),
        fix=Fix(
            text=proposal.fix,
            code=proposal.code,
            safe=proposal.safe,
            verified=verified,
            proof="intervention" if verified else None,
            intervention="" if verified is None else ran,
            excess_before=assemble.worst_excess(run),
            excess_after=None if after is None else assemble.worst_excess(after),
        ),
    )


def are_off_alike(mine: Run, theirs: Run) -> bool:
    """Returns whether the first gradients are off by the same, or both break off."""
    if mine.faults or theirs.faults:
        raised = [
            {f.summary for f in r.faults if f.kind == "raised"} for r in (mine, theirs)
        ]
        return bool(mine.faults and theirs.faults) and raised[0] == raised[1]
    pairs = zip(
        (mine.gradients, mine.weights, mine.buffers),
        (theirs.gradients, theirs.weights, theirs.buffers),
        strict=True,
    )
    for one, other in pairs:
        if one.mismatched or other.mismatched:
            first, second = one.excess_by_step[:1], other.excess_by_step[:1]
            return bool(first and second) and math.isclose(
                first[0], second[0], rel_tol=_SAME
            )
    return False
