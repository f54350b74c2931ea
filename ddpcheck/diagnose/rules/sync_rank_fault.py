"""Detects sync/rank-died, sync/rank-raised and sync/rank-hung.

Faults that no other rule explains: which rank, where, and what it was doing. One of the
slugs is proposed whenever a rank died, raised or hung; no intervention can prove it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddpcheck.diagnose.facts import faults, rank_table
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.rank_table import named
from ddpcheck.errors import frames
from ddpcheck.report.data import Fault

SLUGS: tuple[str, ...] = ("sync/rank-died", "sync/rank-raised", "sync/rank-hung")
LINK = "reduce"  # the others wait there

_KILLED = (
    "check whether the kernel killed it for lack of memory: see dmesg, or use a "
    "smaller W"
)
_DIED = "find what ends the rank's process; its output may say why"
_RAISED = (
    "make this code work on every rank: with its shard, its rank number and the "
    "wrapped model"
)
_OF_INNER = (
    "the wrapper has no {name}: read getattr(model, 'module', model).{name}; calls "
    "in training must go through the wrapped model"
)
_HUNG = "see what the rank waits for there; if it is only slow, raise --timeout-s"


def detect(case: Case) -> Proposal | None:
    """Proposes the slug of the faults that may have caused all others."""
    begun = _begun_by(case.run.faults)
    if not begun:
        return None
    if begun[0].kind == "hung":
        begun = _waited_for(case, begun)
    first, ranks = begun[0], tuple(fault.rank for fault in begun)
    frame = frames.users(first.stack) or frames.innermost(first.stack)
    where = f", at {frame.short}" if frame else ""
    who, one, fix = {"died": _died, "raised": _raised, "hung": _hung}[first.kind](
        case, first, ranks
    )
    every = len(ranks) == len(case.outcome.ranks)
    apart = (
        f"all {len(ranks)} ranks do the same"
        if every
        else f"{named(ranks)} differs from the others{where}"
    )
    told = first.stderr.strip().splitlines()
    last = [f"rank {first.rank} wrote last: {told[-1][:160]}"] if told else []
    return Proposal(
        slug=f"sync/rank-{first.kind}",
        link=LINK,
        summary=f"{who}{where}; the single-process run {one}",
        facts=(apart, *rank_table.facts(case, ranks), *last),
        fix=fix,
        evidence={
            "ranks": rank_table.rows(case),
            "differs": list(ranks),
            "where": rank_table.where(frame),
        },
    )


def _died(_: Case, first: Fault, ranks: tuple[int, ...]) -> tuple[str, str, str]:
    """Returns (what ranks do, what the single-process run does, the fix)."""
    fix = _KILLED if "SIGKILL" in first.summary else _DIED
    return f"{named(ranks)} {first.summary}", "does not", fix


def _raised(case: Case, first: Fault, ranks: tuple[int, ...]) -> tuple[str, str, str]:
    verb = "raise" if len(ranks) > 1 else "raises"
    name, kind = case.ranks[0].get("lacks", ("", ""))
    fix = _RAISED if kind in ("", "call") else _OF_INNER.format(name=name)
    return f"{named(ranks)} {verb} {rank_table.message(first)}", "does not", fix


def _hung(case: Case, _: Fault, ranks: tuple[int, ...]) -> tuple[str, str, str]:
    if len(ranks) < len(case.outcome.ranks):
        return f"{named(ranks)} hangs", "does not wait", _HUNG
    if set(ranks) <= set(faults.busy_ranks(case.run)):
        return "every rank is computing", "is done", _HUNG
    return "every rank waits for the others", "does not wait", _HUNG


def _waited_for(case: Case, hung: list[Fault]) -> list[Fault]:
    """Returns the ranks that others wait for: computing or silent, else the last."""
    busy = faults.busy_ranks(case.run)
    known = [f for f in hung if f.rank in busy or not f.stack]
    if known:
        return known
    calls, backwards = faults.calls_of_ranks(case), faults.backwards_of_ranks(case)
    far = {f.rank: (backwards[f.rank], len(calls[f.rank])) for f in hung}
    return [f for f in hung if far[f.rank] == min(far.values())]


def _begun_by(found: Sequence[Fault]) -> list[Fault]:
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
