"""Detects sync/collective-mismatch."""

from __future__ import annotations

import re

from ddpcheck.diagnose.facts import rank_table
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.experiments import with_fixes
from ddpcheck.diagnose.facts.faults import (
    busy_ranks,
    calls_of_ranks,
    first_difference,
    first_overtaken,
    forwards_in_step,
    own_faults,
    skipped_in,
)
from ddpcheck.diagnose.facts.text import listed
from ddpcheck.diagnose.facts.unused import unused_parameters
from ddpcheck.diagnose.proposal import tried
from ddpcheck.run.intervention import Interventions, Switch

SLUG = "sync/collective-mismatch"
LINK = "reduce"
# gloo's message when it ends a process, and a function of DDP in the stack.
_TOO_LONG = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
_BUFFERS = "in _sync_buffers"


def detect(case: Case) -> Proposal | None:
    """Proposes it if ranks call different collectives, or more than others."""
    calls = calls_of_ranks(case)
    counts = [len(rank) for rank in calls]
    index = first_difference(case)
    if index is None and _waits_for_parameters(case):
        return None  # graph/rank-dependent-branch: DDP's collectives meet those of a later step
    if index is None:
        index = first_overtaken(case)
    if index is None and (found := _detect_unequal_forwards(case)) is not None:
        return found
    if index is None:
        if len(set(counts)) < 2 or busy_ranks(case.run):  # noqa: PLR2004
            return _detect_unequal_buffers(case)
        if own_faults(case.run.faults):
            return None  # the rank has not reached its next collective
        index = min(counts)
    if skipped_in(case) is not None:
        return None  # graph/skipped-backward: matched with those of its next step
    found = Proposal(
        summary="the ranks do not call the same collectives: a collective of one "
        "rank is matched with a different one of the others",
        facts=(
            f"collectives called by the target until then, per rank: {listed(counts)}",
            f"collective {index + 1}: {_at(case, index)}",
            *rank_table.facts(case),
        ),
        fix="call the same collectives in the same order on all ranks, with zeros "
        "if a rank has nothing to contribute",
        evidence={"ranks": rank_table.rows(case), "collective": index + 1},
        needs_no_proof=True,
    )
    return tried(found, _attempts(counts))


def _attempts(counts: list[int]) -> list[Interventions]:
    """Returns what would make the ranks call the same collectives.

    A rank decides by a number of its own samples, or by its own number.
    """
    by_rank = counts[0] not in counts[1:] and len(set(counts[1:])) == 1
    return [(Switch.SUM_OF_NUMBERS,), *[(Switch.FIRST_RANK,)][: int(by_rank)]]


def _waits_for_parameters(case: Case) -> bool:
    """Returns whether ranks continue if DDP waits for no skipped parameter."""
    if not (case.run.faults and unused_parameters(case).somewhere):
        return False
    found = with_fixes("unused parameters found", Switch.FIND_UNUSED)
    return not case.result(found).faults


def _detect_unequal_forwards(case: Case) -> Proposal | None:
    """Proposes it if ranks called DDP's forward unequally often: it broadcasts buffers."""
    found = forwards_in_step(case) if case.run.faults else None
    sent = [f.get("broadcast_buffers") for f in case.ranks]  # None of a rank that died
    if found is None or skipped_in(case) is not None or [] in sent:
        return None
    step, counts = found
    return Proposal(
        summary="some ranks call the wrapped model more often than others, and DDP "
        "broadcasts the model's buffers in each of its forwards",
        facts=(
            f"forwards through DDP in step {step + 1}, per rank: {listed(counts)}",
            *rank_table.facts(case),
        ),
        fix="call model.module, which exchanges nothing, in code that not all "
        "ranks run, such as `if rank == 0`",
        code="model.module(x)",
        fixes=(Switch.BUFFER_BROADCAST_OFF,),
        needs_no_proof=True,
        evidence={"ranks": rank_table.rows(case)},
    )


def _detect_unequal_buffers(case: Case) -> Proposal | None:
    """Proposes it if gloo ended a rank that received more buffers than it has."""
    for fault in case.run.faults:
        found = _TOO_LONG.search(fault.stderr) if fault.kind == "died" else None
        if found is None or _BUFFERS not in fault.stack or skipped_in(case) is not None:
            continue
        received, asked = found.groups()
        return Proposal(
            summary="some ranks have buffers that others lack, and DDP broadcasts "
            "all buffers before a forward",
            facts=(
                f"rank {fault.rank} receives {received} bytes and expects {asked}",
                *rank_table.facts(case),
            ),
            fix="register every buffer before the model is wrapped, on all ranks",
            evidence={"ranks": rank_table.rows(case)},
        )
    return None


def _at(case: Case, index: int) -> str:
    """Returns which ranks call what at this place of the order."""
    ranks: dict[str, list[int]] = {}
    for rank, calls in enumerate(calls_of_ranks(case)):
        what = (
            f"call {rank_table.called(calls[index])}"
            if len(calls) > index
            else "no collective of the target"
        )
        ranks.setdefault(what, []).append(rank)
    told = sorted(ranks.items(), key=lambda item: len(item[1]))
    return "; ".join(f"{rank_table.named(who)}: {what}" for what, who in told[:4])
