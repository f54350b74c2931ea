"""The last actions of every rank of a faulty run: as rows, and as facts."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from ddpcheck.diagnose.facts import faults
from ddpcheck.diagnose.facts.case import Case
from ddpcheck.errors import frames, raised
from ddpcheck.report.data import Fault, RankRow
from ddpcheck.run.spec import BackwardCount, CollectiveCount, StepResult

_MAX_FACTS = 6
_MAX_MESSAGE = 160
_STDERR_LINES = 5


def rows(case: Case) -> list[RankRow]:
    """Returns a row per rank, as plain data."""
    by_rank = {fault.rank: fault for fault in case.run.faults}
    found: list[RankRow] = []
    for rank, outcome in enumerate(case.outcome.ranks):
        fault = by_rank.get(rank)
        begun = [p.count for p in outcome.progress if isinstance(p, BackwardCount)]
        lines = fault.stderr.splitlines() if fault else []
        found.append(
            {
                "rank": rank,
                "step": _step(outcome.progress, fault),
                "outcome": _outcome(fault),
                "frame": _frame(fault),
                "collective": _last_collective(outcome.progress),
                "backwards": max(begun, default=0),
                "stderr": "\n".join(lines[-_STDERR_LINES:]),
            }
        )
    return found


def facts(case: Case, first: Collection[int] = ()) -> list[str]:
    """Returns the rows as sentences; ranks with the same row share one.

    The ranks in `first` come first, then those with rare rows.
    """
    ranks: dict[str, list[int]] = {}
    for row in rows(case):
        ranks.setdefault(_sentence(row), []).append(row["rank"])
    told = sorted(
        ranks.items(), key=lambda item: (item[1][0] not in first, len(item[1]))
    )
    found = [f"{named(which)} {text}" for text, which in told[:_MAX_FACTS]]
    rest = len(told) - len(found)
    return found + ([f"and {rest} more ranks"] if rest else [])


def named(ranks: Iterable[int]) -> str:
    """Returns ranks as a sentence names them.

    >>> named([2]), named([0, 2, 3])
    ('rank 2', 'ranks 0, 2, 3')
    """
    every = list(ranks)
    shown = ", ".join(map(str, every[:8])) + (", ..." if len(every) > 8 else "")  # noqa: PLR2004
    return f"rank{'s' if len(every) > 1 else ''} {shown}"


def called(call: CollectiveCount) -> str:
    """Returns a call as "all_reduce of float32 (2, 3) at mymodel.py:12"."""
    shape = "" if call.shape is None else f" of {call.dtype} {call.shape}"
    where = f" at {os.path.basename(call.where)}" if call.where else ""  # noqa: PTH119
    return f"{call.name}{shape}{where}"


def where(frame: frames.Frame | None) -> str | None:
    """Returns a frame as findings name places: a path from here, if it is below."""
    if frame is None:
        return None
    path = os.path.relpath(frame.file)
    return f"{frame.file if path.startswith('..') else path}:{frame.line}"


def message(fault: Fault) -> str:
    """Returns what the rank raised or how it ended, in few words."""
    of_others = fault.kind == "raised" and not faults.own_faults([fault])
    if of_others and "onnection" in fault.summary:
        return "lost its connection to another rank"
    text = raised.without_source(fault.summary)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."


def _outcome(fault: Fault | None) -> str:
    if fault is None:
        return "ended"
    if fault.kind == "raised" and faults.own_faults([fault]):
        return f"raised {message(fault)}"
    return message(fault)


def _frame(fault: Fault | None) -> str | None:
    if fault is None or not fault.stack:
        return None
    found = frames.users(fault.stack) or frames.innermost(fault.stack)
    if found is not None and found.name == "_engine_run_backward":
        return "the backward"
    return None if found is None else found.short


def _step(progress: list[Any], fault: Fault | None) -> int:
    """Returns the step that a rank was in, the last where it has ended."""
    done = [p.step for p in progress if isinstance(p, StepResult)]
    last = max(done, default=-1)
    if fault is None or (fault.kind == "raised" and done):
        return max(last, 0) + 1
    return last + 2


def _last_collective(progress: list[Any]) -> str | None:
    calls = [p for p in progress if isinstance(p, CollectiveCount)]
    if not calls:
        return None
    return f"number {calls[-1].count}, {called(calls[-1])}"


def _sentence(row: RankRow) -> str:
    at = f", in {row['frame']}" if row["frame"] == "the backward" else ""
    if row["frame"] and not at:
        at = f", at {row['frame']}"
    last = f"; last collective: {row['collective']}" if row["collective"] else ""
    return (
        f"in step {row['step']}: {row['outcome']}{at}; "
        f"backwards begun: {row['backwards']}{last}"
    )
