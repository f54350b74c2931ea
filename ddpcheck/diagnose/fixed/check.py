"""Writes fixed.py for the causes that were found, and runs it as a target.

It counts only if it trains as the single-process run of the user's file does: in one
process, and on the ranks of two world sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.diagnose.fixed import draft
from ddpcheck.diagnose.fixed.draft import Facts, Written
from ddpcheck.diagnose.fixed.kinds import choose
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.errors.problem import UsageError
from ddpcheck.report.data import Finding, Run, Tolerance
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import CannotCheckError, Session
from ddpcheck.run.spec import RunOutcome, RunSpec

_MOST_DRAFTS = 2  # that are run: a diagnosis may take a third longer
_MOST_RANKS = 4  # of a world size that nobody asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A file that was run, and the world sizes at which it was."""

    file: Written
    world_sizes: tuple[int, ...]
    excess: float  # the worst that is left


def make(
    session: Session,
    outcome: RunOutcome,
    proposals: Sequence[Proposal],
    sizes: Sequence[int],
    limit: Tolerance,
) -> Fixed | None:
    """Returns the file that fixes all these causes, None if no kind of fix does.

    Args:
        session: of the target.
        outcome: of the divergent run.
        proposals: of the causes, whose fixes make that run equal.
        sizes: world sizes of the check.
        limit: the tolerance.
    """
    path = session.ref.path
    if path is None or not proposals or outcome.spec.loss != "asis":
        return None
    facts = _facts(outcome, Path(path), on_gpu=session.pool.device != "cpu")
    spec = outcome.spec
    found = choose.drafts(proposals, facts, spec.world_size)
    for one in itertools.islice(found, _MOST_DRAFTS):
        slugs = [p.slug for p in proposals]
        written = draft.write(one, session.ref, facts, slugs)
        session.progress.detail("checking fixed.py")
        fixed = _checked(session, spec, written, _more(outcome, sizes), limit)
        if fixed is not None:
            return fixed
    return None


def _facts(outcome: RunOutcome, path: Path, *, on_gpu: bool) -> Facts:
    known = outcome.reference.facts
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        source = ""
    return Facts(
        has_wrap=known["has_wrap"],
        has_train_step=known["has_train_step"],
        idle=bool(known["idle"]),
        asks_group=known["asks_distributed"],
        source=source,
        on_gpu=on_gpu,
    )


def _more(outcome: RunOutcome, sizes: Sequence[int]) -> list[int]:
    """Returns a second world size: the next of the check's, or twice the first."""
    first, samples = outcome.spec.world_size, outcome.reference.facts["batch_size"]
    asked = [size for size in sorted(sizes) if size > first]
    usual = [2 * first] if 2 * first <= _MOST_RANKS else []
    return [size for size in asked or usual if size <= samples][:1]


def _checked(
    session: Session,
    spec: RunSpec,
    written: Written,
    more: list[int],
    limit: Tolerance,
) -> Fixed | None:
    sizes = (spec.world_size, *more)
    alone = spec.but(mode=SINGLE.name, world_size=1)
    specs = [alone, *(spec.but(world_size=size) for size in sizes)]
    runs: list[Run] = []
    try:
        for outcome in session.run_file(written.text, specs):
            run = assemble.to_run(outcome, limit.rtol)
            is_alone = outcome.spec is alone
            if run.verdict != "equivalent":
                return None
            if is_alone and not _has_its_losses(outcome, limit.rtol):
                return None
            runs.append(run)
    except (UsageError, CannotCheckError):
        return None
    if len(runs) < len(specs):
        return None
    excess = max(map(assemble.worst_excess, runs))
    return Fixed(file=written, world_sizes=sizes, excess=excess)


def _has_its_losses(alone: RunOutcome, rtol: float) -> bool:
    """Returns whether the single process of the file has the losses of the user's."""
    losses = [step.loss for step in alone.steps(0)]
    expected = alone.reference.losses
    return len(losses) == len(expected) and all(
        a is b or (a is not None and b is not None and abs(a - b) <= rtol * abs(b))
        for a, b in zip(losses, expected, strict=True)
    )


def verified(findings: list[Finding], fixed: Fixed) -> list[Finding]:
    """Returns the findings of a search with the file as the proof of their fixes."""
    return [_verified(finding, fixed) for finding in findings]


def _verified(finding: Finding, fixed: Fixed) -> Finding:
    fix = finding.fix
    if fix is None or not fix.verified:
        return finding
    sizes = " and ".join(map(str, fixed.world_sizes))
    mended = dataclasses.replace(
        fix,
        proof="file",
        file=draft.NAME,
        code=fixed.file.code,
        safe=True,  # its single process was compared with the user's
        intervention=f"with {draft.NAME} in place of the file the runs at W={sizes} "
        "are equal",
        excess_after=fixed.excess,
    )
    return dataclasses.replace(finding, fix=mended)
