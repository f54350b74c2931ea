"""Which findings explain nn.DataParallel's divergent runs too, and which do not.

DataParallel shards the forward as DDP does and computes the loss on all outputs, so
what breaks in the forward link breaks both, and the loss only where it is computed
inside forward.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container
from dataclasses import dataclass

from ddpcheck.diagnose import without_group
from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase, Proposal
from ddpcheck.diagnose.facts.text import number
from ddpcheck.diagnose.proposal import fix_of
from ddpcheck.diagnose.registry import (
    DATA_PARALLEL_DETECTORS,
    DATA_PARALLEL_FAULT_RULES,
    asked,
)
from ddpcheck.diagnose.rules.data_batch_layout import SLUG as BATCH_LAYOUT
from ddpcheck.diagnose.rules.norm_local_batch_stats import SLUG as LOCAL_STATISTICS
from ddpcheck.report.data import Finding, Run, Tolerance
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import ONE_SIDED, RunOutcome, RunSpec

_SAME = 1e-3  # relative; DataParallel sums in another order than DDP
_ROUNDING = 2.0  # of an excess: one for either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """DDP's run at a world size of DataParallel's.

    `index`: of the run in the report, None where nobody asked for it. `num_findings`:
    how many it has. `is_proven`: with their fixes it equals the single-process run.
    """

    run: Run
    index: int | None = None
    num_findings: int = 0
    is_proven: bool = False


def twin_of(runs: list[Run], run: Run, findings: list[Finding]) -> Twin | None:
    """Returns DDP's run of the same settings as DataParallel's, if one was made."""
    settings = run.world_size, run.batch_norm, run.loss, run.noise
    for index, other in enumerate(runs):
        found = other.world_size, other.batch_norm, other.loss, other.noise
        if mode_of(other.mode).explained_by == "ranks" and found == settings:
            told = [f for f in findings if index in f.runs]
            proven = bool(told) and all(index in f.proven_runs for f in told)
            return Twin(
                run=other, index=index, num_findings=len(told), is_proven=proven
            )
    return None


def judged(
    twin: Twin, mine: list[Finding], found: list[Finding], index: int, run: Run
) -> list[Finding]:
    """Returns what `explain` found, judged by the numbers of DDP's run.

    DDP's interventions need ranks. Where they mend the twin, and DataParallel is off by
    the very same numbers, these are explained, too; by others they are not.

    Args:
        twin: DDP's run.
        mine: its findings, as they were given to `explain`.
        found: what `explain` returned, in the same order, and others after them.
        index: of DataParallel's run.
        run: that run.
    """
    shared = [f for f in found[: len(mine)] if index in f.runs]
    has_own = any(index in f.runs for f in found[len(mine) :])
    is_like = run.shard_sizes == twin.run.shard_sizes and twin.run.ranks_agree
    if has_own or not shared or len(shared) < twin.num_findings or not is_like:
        return found  # no numbers of DDP's to compare with
    if differs_as(run, twin.run):
        if not twin.is_proven:
            return found
        return [_proven(f, index) if index in f.runs else f for f in found]
    slugs = ", ".join(f.slug for f in shared)
    unknown = Finding(
        slug="unknown",
        link="forward",
        runs=(index,),
        summary="the cause is unknown; the differences of DataParallel are not "
        f"those that {slugs} makes under DDP",
    )
    return [*found, unknown]


def _proven(finding: Finding, index: int) -> Finding:
    proven = tuple(sorted({*finding.proven_runs, index}))
    return dataclasses.replace(finding, proven_runs=proven)


def differs_as(run: Run, other: Run) -> bool:
    """Returns whether DataParallel's run is off by what DDP's is, tensor by tensor.

    Buffers are one replica's, where DDP's are the worst rank's.
    """
    for kind in ("gradients", "weights"):
        mine, theirs = _rows(run, kind), _rows(other, kind)
        if not all(_is_close(mine[k], theirs[k]) for k in mine.keys() & theirs.keys()):
            return False
        steps = zip(
            getattr(run, kind).excess_by_step,
            getattr(other, kind).excess_by_step,
            strict=False,
        )
        if not all(_is_close(a, b) for a, b in steps):
            return False
    mine, theirs = _rows(run, "buffers"), _rows(other, "buffers")
    return all(
        mine[k] <= theirs[k] or _is_close(mine[k], theirs[k])
        for k in mine.keys() & theirs.keys()
    )


def _rows(run: Run, kind: str) -> dict[tuple[str, int], float]:
    return {(row.name, row.step): row.excess for row in getattr(run, kind).tensors}


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_SAME, abs_tol=_ROUNDING)


def explain(
    session: Session,
    outcomes: list[RunOutcome],
    runs: list[Run],
    rest: list[int],
    findings: list[Finding],
    limit: Tolerance,
) -> list[Finding]:
    """Returns the findings with DataParallel's runs added, or one of their own."""
    both = shared(findings, runs[rest[0]], outcomes[rest[0]])
    known = {finding.slug for finding in both}
    own = _own(session, outcomes, runs, rest, limit, known)
    if both and not all(f.fix and f.fix.verified for f in own):
        return [_with(f, rest) if f in both else f for f in findings]
    return [*findings, *own]


def shared(findings: list[Finding], run: Run, outcome: RunOutcome) -> list[Finding]:
    """Returns the findings of DDP's runs that may explain DataParallel's `run`, too.

    The loss is computed on all outputs, but where forward computes it: where outputs
    are wrong, or others than one process's, it is not the loss.
    """
    # The order of samples in the batch decides which a replica has, too.
    of_forward = [f for f in findings if f.link == "forward" or f.slug == BATCH_LAYOUT]
    outputs = run.outputs.excess_by_step[:1]
    told = outcome.facts().get("not_compared", {})
    if of_forward or (outputs and outputs[0] > 1) or ONE_SIDED in told.values():
        return of_forward
    return [f for f in findings if f.link in ("loss", "backward", "update")]


def alone(findings: list[Finding], run: Run, outcome: RunOutcome) -> list[Finding]:
    """Returns the same of findings that nobody asked for: DDP has run for them alone.

    Not of buffers that DDP sends: what replicas write is lost in another way.
    """
    found = [f for f in findings if not f.slug.startswith("state/buffer-")]
    return shared(found, run, outcome)


def explain_faults(
    session: Session,
    outcomes: list[RunOutcome],
    runs: list[Run],
    limit: Tolerance,
    *,
    is_asked: bool,
) -> tuple[list[Run], list[Finding]]:
    """Returns the runs, and findings of those that DataParallel cannot do.

    They stay "not-checked", and say why where it is known: whether a target should run
    under DataParallel is its author's business. `is_asked`: it is this one's, who wants
    nothing else of it; then they are divergent.
    """
    faulty = [i for i, r in enumerate(runs) if mode_of(r.mode).cannot_run and r.faults]
    if not faulty or any(map(assemble.not_the_targets, runs[faulty[0]].faults)):
        return runs, []
    case = DataParallelCase(run=runs[faulty[0]])
    proposal, after = _of_fault(session, outcomes[faulty[0]].spec, case, limit)
    # Here replicas run one after another: one that waits for another does so in vain.
    if is_asked and all(f.kind == "raised" for i in faulty for f in runs[i].faults):
        diverge = (
            dataclasses.replace(r, verdict="divergent", why="") if i in faulty else r
            for i, r in enumerate(runs)
        )
        return list(diverge), [_broken_off(case, proposal, after, faulty)]
    if proposal is None:
        return runs, []
    cannot_run = mode_of(case.run.mode).cannot_run
    why = f"{cannot_run}: {proposal.summary} ({proposal.slug}); "
    return [
        dataclasses.replace(r, why=why + r.faults[0].summary) if i in faulty else r
        for i, r in enumerate(runs)
    ], []


def _broken_off(
    case: DataParallelCase,
    proposal: Proposal | None,
    after: float,
    faulty: list[int],
) -> Finding:
    """Returns what explains runs that DataParallel breaks off, with what they raise."""
    raised = (
        "the single-process run trains; under DataParallel: "
        f"{case.run.faults[0].summary}"
    )
    if proposal is None:
        return Finding(
            slug="unknown",
            link="forward",
            runs=tuple(faulty),
            summary="the cause is unknown; DataParallel cannot run this target",
            facts=(raised,),
        )
    found = _finding(proposal, faulty, math.inf, after, verified=after <= 1)
    still = (
        ""
        if after <= 1
        else (", and differs from the single-process run for another cause")
    )
    return dataclasses.replace(found, facts=(raised, f"with the fix it runs{still}"))


def _of_fault(
    session: Session, spec: RunSpec, case: DataParallelCase, limit: Tolerance
) -> tuple[Proposal | None, float]:
    """Returns the cause whose fix makes the runs equal, or else lets it run at all.

    With the excess that is left.
    """
    runs: tuple[Proposal | None, float] = None, math.inf
    for rule in DATA_PARALLEL_FAULT_RULES:
        proposal = asked(rule, case)
        if proposal is None:
            continue
        mended = session.run([spec.but(fixes=spec.fixes + proposal.fixes)])[0]
        run = assemble.to_run(mended, limit.rtol)
        told = proposal, assemble.worst_excess(run)
        if run.verdict == "equivalent":
            return told
        if run.verdict == "divergent" and runs[0] is None:
            runs = told
    return runs


def _with(finding: Finding, rest: list[int]) -> Finding:
    return dataclasses.replace(finding, runs=tuple(sorted({*finding.runs, *rest})))


def _own(
    session: Session,
    outcomes: list[RunOutcome],
    runs: list[Run],
    rest: list[int],
    limit: Tolerance,
    known: Container[str],
) -> list[Finding]:
    """Returns the findings for a divergence that DataParallel alone has.

    Where DDP is wrong as well, one that a run has verified, or none. `known`: what may
    explain both.
    """
    run, spec = runs[rest[0]], outcomes[rest[0]].spec
    same = [r for r in runs if _is_searched(r) and r.world_size == run.world_size]
    ddp_is_fine = bool(same) and all(r.verdict == "equivalent" for r in same)
    facts = outcomes[rest[0]].reference.facts
    case = DataParallelCase(
        run=run,
        has_batch_norm=facts["has_batch_norm"] and LOCAL_STATISTICS not in known,
        draws=bool(facts["draws"]),
    )
    before = assemble.worst_excess(run)
    unproven: list[Finding] = []
    for rule, detect in DATA_PARALLEL_DETECTORS:
        proposal = asked(rule, case, detect)
        if proposal is None:
            continue
        after, verified = None, None
        may_fail = proposal.speculative or not ddp_is_fine
        if proposal.fixes:
            fixed = spec.but(fixes=spec.fixes + proposal.fixes)
            if may_fail and not _mends_a_step(session, fixed, limit):
                continue
            mended = session.run([fixed])[0]
            after = assemble.worst_excess(assemble.to_run(mended, limit.rtol))
            verified = after <= 1
        elif ddp_is_fine:  # the fix is to use DDP
            after, verified = assemble.worst_excess(same[0]), True
        found = _finding(proposal, rest, before, after, verified=verified)
        if not verified and may_fail:
            unproven += [] if proposal.speculative else [found]
            continue
        if not ddp_is_fine:
            return [found]
        return [dataclasses.replace(found, facts=(*found.facts, _fine(run)))]
    if ddp_is_fine and facts["asks_distributed"]:
        outcome = outcomes[rest[0]]
        made = without_group.found(session, outcome, run, rest, limit, same[0])
        if made:
            return made
    unknown = _unknown(outcomes[rest[0]], run, rest, ddp_is_fine=ddp_is_fine)
    return unproven[:1] or [unknown]


def _is_searched(run: Run) -> bool:
    return mode_of(run.mode).explained_by == "ranks"


def _fine(run: Run) -> str:
    return f"DDP at world size {run.world_size} equals the single-process run"


def _mends_a_step(session: Session, fixed: RunSpec, limit: Tolerance) -> bool:
    """Returns whether the first step is right, before all are run."""
    mended = session.run([fixed.but(steps=1)])[0]
    return assemble.worst_excess(assemble.to_run(mended, limit.rtol)) <= 1


def _finding(
    proposal: Proposal,
    rest: list[int],
    before: float,
    after: float | None,
    *,
    verified: bool | None,
) -> Finding:
    return Finding(
        slug=proposal.slug,
        link=proposal.link,
        runs=tuple(rest),
        summary=proposal.summary,
        facts=proposal.facts,
        fix=fix_of(proposal, verified=verified, before=before, after=after),
        benign=proposal.benign,
        # Of the first run alone; where DDP is the fix, it ends all that replicas do.
        proven_runs=tuple(rest[:1]) if verified and proposal.fixes else (),
    )


def _unknown(
    outcome: RunOutcome, run: Run, rest: list[int], *, ddp_is_fine: bool
) -> Finding:
    """Returns the finding of an unknown cause."""
    facts_of_one = outcome.reference.facts
    worst = run.worst
    is_update = run.weights.mismatched and not run.gradients.mismatched
    link = "update" if is_update else "forward"
    facts = []
    if worst is not None:
        facts.append(
            f"{worst.name} differs by {number(worst.rel_diff)} relative after step "
            f"{worst.step + 1}"
        )
    if link == "update" and worst is not None and worst.name in facts_of_one["idle"]:
        facts.append(
            "DataParallel gives unused parameters gradients of zeros, so weight "
            "decay and momentum change them; the single-process run gives them no "
            "gradient"
        )
    if ddp_is_fine:
        facts.append(_fine(run))
    if facts_of_one["asks_distributed"]:
        facts.append(
            "the target uses torch.distributed, and DataParallel has no process "
            "group: code that acts on all ranks does not run there"
        )
    return Finding(
        slug="unknown",
        link=link,
        runs=tuple(rest),
        summary="the cause is unknown; under DataParallel "
        + ("alone " if ddp_is_fine else "")
        + f"the {link} differs",
        facts=tuple(facts),
    )
