"""Faults that no rule explains: which rank, where, and what it was doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpcheck.diagnose.facts import faults, rank_table
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.errors import frames
from ddpcheck.report.data import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFault:
    """How a run broke off: the first ranks, and what they did.

    `kind` as in Fault. `ranks` are all ranks if all did the same.
    """

    kind: str
    ranks: tuple[int, ...]
    first: Fault
    frame: frames.Frame | None

    @property
    def where(self) -> str:
        """Where the first of the ranks was, as the end of a sentence, or ""."""
        return f", at {self.frame.short}" if self.frame else ""


def of(case: Case, kind: str) -> RankFault | None:
    """Returns the fault of this kind that broke off the run, None for another."""
    begun = begun_by(case.run.faults)
    if not begun or begun[0].kind != kind:
        return None
    if begun[0].kind == "hung":
        begun = _waited_for(case, begun)
    first = begun[0]
    frame = frames.users(first.stack) or frames.innermost(first.stack)
    return RankFault(
        kind=first.kind,
        ranks=tuple(f.rank for f in begun),
        first=first,
        frame=frame,
    )


def proposal(
    case: Case, fault: RankFault, *, slug: str, link: str, summary: str, fix: str
) -> Proposal:
    """Returns the proposal for a fault; no intervention can prove it."""
    return Proposal(
        slug=slug,
        link=link,
        summary=summary,
        facts=facts(case, fault),
        fix=fix,
        evidence={
            "ranks": rank_table.rows(case),
            "differs": list(fault.ranks),
            "where": rank_table.where(fault.frame),
        },
    )


def _waited_for(case: Case, hung: list[Fault]) -> list[Fault]:
    """Returns the ranks that others wait for: computing or silent, else the last."""
    busy = faults.busy_ranks(case.run)
    known = [f for f in hung if f.rank in busy or not f.stack]
    if known:
        return known
    calls, backwards = faults.calls_of_ranks(case), faults.backwards_of_ranks(case)
    far = {f.rank: (backwards[f.rank], len(calls[f.rank])) for f in hung}
    return [f for f in hung if far[f.rank] == min(far.values())]


def begun_by(found: Sequence[Fault]) -> list[Fault]:
    """Returns the faults that may have caused the others, all of one kind.

    Deaths before exceptions before waiting, faults of a rank itself before others.
    """
    own = faults.own_faults(found)
    for group in (own, found):
        for kind in ("died", "raised", "hung"):
            some = [f for f in group if f.kind == kind]
            if some:
                return some
    return []


def verb(fault: RankFault, word: str) -> str:
    """Returns the verb for one rank or several: "raises", "raise"."""
    return word if len(fault.ranks) > 1 else word + "s"


def message(fault: RankFault) -> str:
    """Returns the message of the first of the ranks."""
    return rank_table.message(fault.first)


def facts(case: Case, fault: RankFault) -> tuple[str, ...]:
    """Returns what differs, then what every rank did last."""
    every = len(fault.ranks) == len(case.outcome.ranks)
    named = rank_table.named(fault.ranks)
    first = (
        f"all {len(fault.ranks)} ranks do the same"
        if every
        else f"{named} differs from the others{fault.where}"
    )
    return (first, *rank_table.facts(case, fault.ranks), *_last_output(fault))


def _last_output(fault: RankFault) -> list[str]:
    lines = fault.first.stderr.strip().splitlines()
    if not lines:
        return []
    return [f"rank {fault.first.rank} wrote last: {lines[-1][:160]}"]
