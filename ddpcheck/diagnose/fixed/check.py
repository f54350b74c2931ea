"""Writes fixed.py for the causes that were found, and runs it as a target.

It counts only if the ranks of two world sizes train as one process does, in processes
in which no user code has run. If that one process trains as that of the user's file,
the fix is safe. With several causes, each is left out once: what remains is its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.diagnose.facts.text import number
from ddpcheck.diagnose.fixed import draft, patch
from ddpcheck.diagnose.fixed.draft import Facts, Written
from ddpcheck.diagnose.fixed.kinds import choose
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import ServerDiedError
from ddpcheck.report.data import JUDGED, Finding, Run, Tolerance
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import CannotCheckError, Session, crew_of
from ddpcheck.run.spec import RunOutcome, RunSpec
from ddpcheck.target import importing

_MOST_DRAFTS = 3  # that are run: most fixes have one or two
_MOST_RANKS = 4  # of a world size that nobody asked for
_MOST_HERE = 8  # of a launcher's ranks, all on this machine
_MOST_CAUSES = 4  # of which each is left out once
# No new processes, or the file is no target in them.
_NO_RANKS = (UsageError, CannotCheckError, ServerDiedError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A file that was run, and what its runs showed.

    `unequal`: runs of other modes, which the file does not make equal. `changes`: what
    it changes of single-process training, "" for nothing. `remaining`: of each cause,
    the excess without its part of the file, None where that was not run. `diff`: the
    same as a change of the user's file, run as well unless it can be no other program;
    "" where it is another.
    """

    file: Written
    equal: tuple[RunSpec, ...]
    unequal: tuple[RunSpec, ...] = ()
    changes: str = ""
    excess: float  # the worst that is left
    remaining: tuple[float | None, ...] = ()
    diff: str = ""


def make(
    session: Session,
    outcome: RunOutcome,
    proposals: Sequence[Proposal],
    sizes: Sequence[int],
    limit: Tolerance,
    others: Sequence[RunSpec] = (),
) -> Fixed | None:
    """Returns the file that fixes all these causes, None if no kind of fix does.

    One that leaves single-process training as it is comes before others.

    Args:
        session: of the target.
        outcome: of the divergent run.
        proposals: of the causes, whose fixes make that run equal.
        sizes: world sizes of the check.
        limit: the tolerance.
        others: runs of other modes that diverge, too.
    """
    ref, spec = session.ref, outcome.spec
    path = ref.path or ref.source
    is_far = session.pool.is_given and spec.world_size > _MOST_HERE
    # With a loss or batch norms of ddpcheck's own the runs are not those of the file.
    is_own = (spec.loss, spec.batch_norm) == ("asis", "asis")
    if path is None or ref.is_script or not proposals or not is_own or is_far:
        return None
    facts = _facts(outcome, Path(path), on_gpu=session.pool.device != "cpu")
    found = choose.drafts(proposals, facts, spec.world_size)
    specs = [spec, *(spec.but(world_size=n) for n in _more(outcome, sizes))]
    unsafe: Fixed | None = None
    for one in itertools.islice(found, _MOST_DRAFTS):
        written = draft.write(one, session.ref, facts, _slugs(proposals))
        session.progress.detail(f"checking {draft.NAME}")
        fixed = _checked(session, written, specs, others, limit)
        if fixed is not None and fixed.changes and ref.path is None:
            fixed = None  # these objects are not what their file makes
        if fixed is not None and not fixed.changes:
            fixed = _with_parts(session, fixed, proposals, facts, limit)
            return _with_diff(session, fixed, facts, Path(path), limit)
        unsafe = unsafe or fixed
    return unsafe and _with_parts(session, unsafe, proposals, facts, limit)


def _slugs(proposals: Sequence[Proposal]) -> list[str]:
    return [p.slug for p in proposals]


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
    written: Written,
    specs: Sequence[RunSpec],
    others: Sequence[RunSpec],
    limit: Tolerance,
) -> Fixed | None:
    """Returns the file if all these runs are equal with it; the others need not be."""
    try:
        with session.of_file(written.text) as ranks:
            if ranks is None:
                return None
            alone = specs[0].but(mode=SINGLE.name, world_size=1)
            for spec in (alone, *specs):  # all start at once
                ranks.pool.open(crew_of(spec))
            outcome, first = ranks.run([alone, specs[0]])
            changes = _changes(outcome, limit)
            if changes is None:
                return None
            runs = [assemble.to_run(first, limit.rtol)]
            if changes:
                ranks.compare_with_own()
                runs = [_run(ranks, specs[0], limit)]
            for spec in specs[1:]:
                if _is_equal(runs[-1]):
                    runs.append(_run(ranks, spec, limit))
            if not _is_equal(runs[-1]):
                return None
            found = {spec: _run(ranks, spec, limit) for spec in others}
    except _NO_RANKS:
        return None
    return Fixed(
        file=written,
        equal=(*specs, *(s for s, run in found.items() if _is_equal(run))),
        unequal=tuple(s for s, run in found.items() if run.verdict == "divergent"),
        changes=changes,
        excess=max(map(assemble.worst_excess, runs)),
    )


def _excess(
    session: Session, text: str, spec: RunSpec, limit: Tolerance, *, own: bool = False
) -> float | None:
    """Returns the excess of a run with a file, None if it cannot run.

    `own`: compared with the single process of the file.
    """
    try:
        with session.of_file(text) as ranks:
            if ranks is None:
                return None
            if own:
                ranks.compare_with_own()
            return assemble.worst_excess(_run(ranks, spec, limit))
    except _NO_RANKS:
        return None


def _run(ranks: Session, spec: RunSpec, limit: Tolerance) -> Run:
    return assemble.to_run(ranks.run([spec])[0], limit.rtol)


def _is_equal(run: Run) -> bool:
    """Returns whether all that is judged is equal, also where no step was taken.

    That is no verdict on a program, but what its single process does.
    """
    return run.verdict != "divergent" and assemble.worst_excess(run) <= 1


def _changes(outcome: RunOutcome, limit: Tolerance) -> str | None:
    """Returns what the file changes of the single process, None if that cannot train.

    A sentence with a number, "" where it trains as with the user's file.
    """
    run = assemble.to_run(outcome, limit.rtol)
    if run.faults:
        return None
    for name in JUDGED:
        worst = getattr(run, name).worst
        if worst is not None and not worst.excess <= 1:
            return (
                f"single-process {name} differ from those of the file: {worst.name} in "
                f"step {worst.step + 1} by rel diff {number(worst.rel_diff)}"
            )
    return _change_of_loss(outcome, limit.rtol) if _is_equal(run) else None


def _change_of_loss(alone: RunOutcome, rtol: float) -> str:
    losses = [step.loss for step in alone.steps(0)]
    expected = alone.reference.losses
    for step, (a, b) in enumerate(itertools.zip_longest(losses, expected), start=1):
        if a is b or (a is not None and b is not None and abs(a - b) <= rtol * abs(b)):
            continue
        now, before = ("none" if x is None else number(x) for x in (a, b))
        return f"the single-process loss of step {step} is {now}, in the file {before}"
    return ""


def _with_parts(
    session: Session,
    fixed: Fixed,
    proposals: Sequence[Proposal],
    facts: Facts,
    limit: Tolerance,
) -> Fixed:
    """Returns it with what remains without the part of each cause."""
    if not 1 < len(proposals) <= _MOST_CAUSES:
        return fixed
    spec = fixed.equal[0]
    remaining: list[float | None] = []
    for left in proposals:
        others = [p for p in proposals if p is not left]
        rest = next(iter(choose.drafts(others, facts, spec.world_size)), None)
        if rest is None:
            remaining.append(None)
            continue
        written = draft.write(rest, session.ref, facts, _slugs(others))
        own = bool(fixed.changes)
        remaining.append(_excess(session, written.text, spec, limit, own=own))
    return dataclasses.replace(fixed, remaining=tuple(remaining))


def _with_diff(
    session: Session, fixed: Fixed, facts: Facts, path: Path, limit: Tolerance
) -> Fixed:
    """Returns it with the change of the user's file, if that is equal as well."""
    folder, module = importing.place(path.resolve())
    renamed = {key: own for key, own in session.ref.names if key != own}
    file = fixed.file
    text = ""
    if "." not in module and not renamed:
        text = patch.changed(facts.source, file.code, file.imports)
    if not text:
        return fixed
    if not patch.is_certain(facts.source, file.code):
        runnable = patch.runnable(text, folder, str(path.resolve()))
        left = _excess(session, runnable, fixed.equal[0], limit)
        if left is None or not left <= 1:
            return fixed
    return dataclasses.replace(fixed, diff=patch.diff(facts.source, text, path.name))


def verified(findings: list[Finding], fixed: Fixed) -> list[Finding]:
    """Returns the findings of a search with the file as the proof of their fixes.

    Those of causes come first, in the order in which the file was made for them.
    """
    parts = itertools.chain(fixed.remaining, itertools.repeat(None))
    return [_verified(f, fixed, part) for f, part in zip(findings, parts, strict=False)]


def _verified(finding: Finding, fixed: Fixed, remaining: float | None) -> Finding:
    fix = finding.fix
    if fix is None or not fix.verified:
        return finding
    mended = dataclasses.replace(
        fix,
        proof="file",
        file=draft.NAME,
        code=fixed.file.code,
        safe=not fixed.changes,
        changes=fixed.changes,
        intervention=_sentence(fixed, remaining),
        excess_after=fixed.excess,
    )
    return dataclasses.replace(finding, fix=mended)


def _sentence(fixed: Fixed, remaining: float | None) -> str:
    """Returns what ran: the runs that are equal, and what a part of the file does."""
    said = f"with {draft.NAME} in place of the file {_listed(fixed.equal, 'is')} equal"
    if fixed.unequal:
        said += f", {_listed(fixed.unequal, 'still differs')}"
    if remaining is None:
        return said
    if remaining <= 1:
        return f"{said}, also without its part"
    return f"{said}; without its part excess {number(remaining)} remains"


def _listed(specs: Sequence[RunSpec], verb: str) -> str:
    """Returns runs in words: "ddp at W=2 and 4 is", "ddp at W=2 and ps at W=2 are"."""
    sizes: dict[str, list[str]] = {}
    for spec in specs:
        sizes.setdefault(spec.mode, []).append(str(spec.world_size))
    found = [f"{mode} at W={' and '.join(ns)}" for mode, ns in sizes.items()]
    if len(found) > 1:
        verb = {"is": "are"}.get(verb, verb.removesuffix("s"))
    return f"{' and '.join(found)} {verb}"
