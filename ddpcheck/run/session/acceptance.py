"""Which runs an accepted finding covers: the one definition for all ways to accept.

A finding covers a run only if it was found in that run, and everything worse than a
numerical difference there (ranks that fail, values that are not finite, ranks that
disagree) belongs to it or to another accepted finding. The runs that it does not cover
become a separate finding, which fails.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from ddpcheck.errors import frames
from ddpcheck.errors.problem import cut
from ddpcheck.report.data import JUDGED, Fault, Finding, Run, Verdict
from ddpcheck.report.render import numbers, status, wording
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.modes.sim import SIM
from ddpcheck.run.session import assemble
from ddpcheck.run.spec import CUT_OFF

# Slugs for which the single process trains and ranks fail: accepting one accepts that.
ABOUT_FAILED_RANKS = (
    "compile/ddp-optimizer",
    "data/uneven-batches",
    "ddp/forward-bypassed",
    "ddp/frozen-after-wrap",
    "ddp/param-replaced-after-wrap",
    "dp/replica-parameters-empty",
    "dp/scalar-gather",
    "dp/scatter-semantics",
    "dp/variable-length-gather",
    "graph/opaque-output",
    "graph/output-unused",
    "graph/rank-dependent-branch",
    "graph/reentrant-checkpoint",
    "graph/shared-parameter",
    "graph/skipped-backward",
    "graph/static-graph-violated",
    "graph/unused-parameter",
    "state/inplace-buffer-version",
    "sync/collective-mismatch",
    "sync/rank-died",
    "sync/rank-hung",
    "sync/rank-raised",
    "sync/static-graph-no-sync",
)
# Slugs for which the single process has numbers, and ranks have NaN or infinities.
ABOUT_NOT_FINITE = ("loss/empty-shard",)

_LEFT = "not accepted in "  # how the fact on runs that are not covered begins
_FAR = 10.0  # excess that is not rounding at the edge of the tolerance

NOT_FOUND = "was accepted but not found"

Held = Callable[[Finding, int], str | None]  # the reason, None where it is not held
Refused = Callable[[Finding, int], str]  # why it does not cover the run, "" if it does


def accept(
    runs: Sequence[Run], findings: Sequence[Finding], reasons: Mapping[str, str]
) -> list[Finding]:
    """Returns the findings, accepted for the runs that they cover.

    Args:
        runs: of the report.
        findings: of these runs.
        reasons: of the user, by slug.
    """
    return marked(
        runs,
        findings,
        lambda finding, _: reasons.get(finding.slug),
        lambda finding, index: (
            _beyond(runs[index], index, findings, finding, reasons)
            or _larger(runs, index, finding)
        ),
    )


def marked(
    runs: Sequence[Run], findings: Sequence[Finding], held: Held, refused: Refused
) -> list[Finding]:
    """Returns the findings; one that covers only some of its runs becomes two.

    Args:
        runs: of the report.
        findings: of these runs; accepted ones stay accepted.
        held: returns the reason to accept a finding in a run, None without one.
        refused: returns why the finding does not cover the run despite this.
    """
    found: list[Finding] = []
    for finding in findings:
        found += _marked(runs, finding, held, refused)
    return found


def _marked(
    runs: Sequence[Run], finding: Finding, held: Held, refused: Refused
) -> list[Finding]:
    if finding.accepted is not None:
        return [finding]
    reasons = {i: held(finding, i) for i in finding.runs}
    why = {i: refused(finding, i) for i, told in reasons.items() if told is not None}
    covered = tuple(i for i in finding.runs if why.get(i) == "")
    if not covered:
        return [_open(runs, finding, finding.runs, why)]
    accepted = _of_runs(finding, covered, accepted=reasons[covered[0]])
    left = tuple(i for i in finding.runs if i not in covered)
    return [accepted, _open(runs, finding, left, why)] if left else [accepted]


def _open(
    runs: Sequence[Run],
    finding: Finding,
    left: tuple[int, ...],
    why: Mapping[int, str],
) -> Finding:
    """Returns the finding of the runs that it does not cover, with the reasons."""
    labels = wording.labels(runs)
    by_reason: dict[str, list[str]] = {}
    for index in left:
        if why.get(index):
            by_reason.setdefault(why[index], []).append(labels[index])
    facts = [f"{_LEFT}{cut(named)}: {reason}" for reason, named in by_reason.items()]
    return _of_runs(finding, left, facts=(*finding.facts, *facts))


def _of_runs(finding: Finding, indices: tuple[int, ...], **changes: object) -> Finding:
    proven = tuple(i for i in finding.proven_runs if i in indices)
    return dataclasses.replace(
        finding,
        runs=indices,
        proven_runs=proven,
        **changes,  # type: ignore[arg-type]
    )


def _beyond(
    run: Run,
    index: int,
    findings: Sequence[Finding],
    finding: Finding,
    reasons: Collection[str],
) -> str:
    """Returns what no accepted slug of a run explains, "" if all is explained."""
    slugs = {f.slug for f in findings if index in f.runs and f.slug in reasons}
    if run.faults and slugs.isdisjoint(ABOUT_FAILED_RANKS):
        return f"{failed(run)}, which {finding.slug} does not cover"
    name = not_finite(run)
    if name and slugs.isdisjoint(ABOUT_NOT_FINITE):
        return f"{name} is not finite, which {finding.slug} does not cover"
    if not run.ranks_agree and index not in finding.proven_runs:
        return (
            "the ranks disagree, and no run shows that they do so by this cause alone"
        )
    return ""


def _larger(runs: Sequence[Run], index: int, finding: Finding) -> str:
    """Returns by how much a run without a proof differs more than those with one.

    A second cause may hide in it: simulated ranks can try no fix.
    """
    proven = [assemble.worst_excess(runs[i]) for i in finding.proven_runs]
    if not proven or index in finding.proven_runs:
        return ""
    now, most = assemble.worst_excess(runs[index]), max(proven)
    if now <= _FAR * most:
        return ""
    return (
        f"excess {numbers.excess(now)}, where the runs that are shown to differ by "
        f"{finding.slug} alone have {numbers.excess(most)}"
    )


def failed(run: Run) -> str:
    """Returns how the first failed rank failed: "rank 1 raised: KeyError: 'x'"."""
    first = min(run.faults, key=lambda f: (f.kind == "hung", f.rank))
    return f"rank {first.rank} {first.kind}: {first.summary}"


def not_finite(run: Run) -> str:
    """Returns what has NaN or infinity on ranks only, "" if nothing has.

    A tensor that is missing, or of another shape, has an infinite difference only.
    """
    for kind in status.KINDS:
        found = status.quantity(run, kind)
        worst = () if found.worst is None else (found.worst,)
        for row in (*worst, *found.tensors):
            is_number = row.why is not None or math.isfinite(row.abs_diff)
            if row.why == "NaN" or not is_number:
                what = "the loss" if kind == "losses" else f"{kind} of {row.name}"
                return f"{what} in step {row.step + 1}"
    return ""


def worse(run: Run, before: Run) -> list[str]:
    """Returns in which respects a run has become worse, for any finding, as text.

    Sizes aside: see `ddpcheck.checking.baseline`.
    """
    found = []
    if not failures(run.faults) <= failures(before.faults):
        found.append(f"{failed(run)}, which no rank did")
    name = not_finite(run)
    if name and not not_finite(before):
        found.append(f"{name} is not finite, and was")
    if before.ranks_agree and not run.ranks_agree:
        found.append("the ranks disagree, and did not")
    if new := _new_tensors(run, before):
        found.append(f"{cut(new, limit=3)} did not differ")
    return found


def failures(faults: Sequence[Fault]) -> set[str]:
    """Returns how ranks failed; a rank that hung only waited for the others.

    Only types of exceptions are compared: messages contain values and addresses.
    """
    kinds = {f.summary.partition(":")[0] for f in faults if f.kind != "hung"}
    return kinds or {"hung" for _ in faults}


def _new_tensors(run: Run, before: Run) -> list[str]:
    """Returns the names that differ widely now and did not before, the worst first."""
    found = []
    for kind in JUDGED:
        now, then = status.quantity(run, kind), status.quantity(before, kind)
        known = [r.name for r in then.tensors if not r.excess <= 1]
        if len(known) < then.mismatched:
            continue  # others differed, too
        far = dict.fromkeys(r.name for r in now.tensors if not r.excess <= _FAR)
        found += [f"{kind} of {name}" for name in far if name not in known]
    return found


def idle(
    runs: Sequence[Run], findings: Sequence[Finding], reasons: Mapping[str, str]
) -> list[str]:
    """Returns a warning on each acceptance that leaves out runs, or covers none.

    Args:
        runs: of the report.
        findings: of these runs, as `accept` has marked them.
        reasons: of the user, by slug.
    """
    return [text for slug in reasons if (text := _idle(runs, findings, slug))]


def _idle(runs: Sequence[Run], findings: Sequence[Finding], slug: str) -> str:
    found = [finding for finding in findings if finding.slug == slug]
    left = [
        fact.removeprefix("not ")
        for finding in found
        for fact in finding.facts
        if finding.accepted is None and fact.startswith(_LEFT)
    ]
    if left:
        return f"accept: {slug} is not {'; nor '.join(left)}"
    if found:
        return ""
    labels = wording.labels(runs)
    others = dict.fromkeys(
        f"{other.slug} in {cut([labels[i] for i in other.runs])}" for other in findings
    )
    why = f"what differs is {cut([*others], 3)}" if others else "no cause was found"
    if all(run.verdict != "divergent" for run in runs):
        why = "no run differs"
    return f"accept: {slug} {NOT_FOUND}: {why}"


def unproven(runs: Sequence[Run], findings: Sequence[Finding]) -> list[str]:
    """Returns a warning on the runs that pass, where no run proves that they may."""
    labels = wording.labels(runs)
    fails = {i for f in findings if f.accepted is None for i in f.runs}
    told: dict[str, list[str]] = {}
    for finding in findings:
        if finding.accepted is None:
            continue
        left = [i for i in finding.runs if i not in {*finding.proven_runs, *fails}]
        if left:
            told.setdefault(finding.slug, []).extend(labels[i] for i in left)
    return [
        f"accepted without a proof: {slug} in {cut(named)}; no run with its fix shows "
        "that nothing else differs there"
        for slug, named in told.items()
    ]


def verdict(
    runs: Sequence[Run],
    findings: Sequence[Finding],
    known: Callable[[int], bool] = lambda _: False,
) -> Verdict:
    """Returns the verdict: divergent unless accepted findings cover what differs.

    A run that could not be judged makes no pass, unless other modes stand for it.

    Args:
        runs: of the report.
        findings: of these runs.
        known: whether a divergent run without a finding passes.
    """
    for index, run in enumerate(runs):
        if run.verdict != "divergent":
            continue
        told = [f.accepted for f in findings if index in f.runs]
        if None in told or not (told or known(index)):
            return "divergent"
    left = [run for run in runs if run.verdict == "not-checked"]
    if len(left) == len(runs) or not all(map(is_left_to_others, left)):
        return "not-checked"
    return "equivalent"


def is_left_to_others(run: Run) -> bool:
    """Returns whether other modes stand for a run that was not checked.

    DataParallel may refuse a target, and not all targets can be simulated: the runs of
    DistributedDataParallel decide then. They do not where the run was cut off, or where
    ddpcheck itself failed in it.
    """
    if run.mode == SIM.name:
        return not run.faults and CUT_OFF not in run.why
    if not (run.faults and mode_of(run.mode).cannot_run):
        return False
    raised = [fault.stack for fault in run.faults if fault.kind == "raised"]
    return not any(map(frames.raised_in_own_work, raised))
