"""Why ranks of a script wait for each other for ever, by where each of them is.

A rank that has left a loop in which another one still is has stopped training. Ranks
that wait in different places, one of them in a call of a collective, do not call the
same collectives.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.checking import script_draws
from ddpcheck.checking.script_endings import steps
from ddpcheck.errors import code_origin, frames
from ddpcheck.errors.frames import Frame
from ddpcheck.ranks.messages import Outcome
from ddpcheck.report.data import Fault, Fix

_LOOPS = ast.For, ast.While, ast.AsyncFor
_COLLECTIVES = "distributed/distributed_c10d.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why they wait: the slug and the link of a finding, its cause and its fix."""

    slug: str
    link: str
    summary: str
    fix: Fix


def cause(ranks: Sequence[Outcome], faults: Sequence[Fault]) -> Cause | None:
    """Returns why ranks wait, None where it does not show.

    Args:
        ranks: how each of them ended.
        faults: of those that did not end.
    """
    if not faults or any(fault.kind != "hung" for fault in faults):
        return None
    stacks = {fault.rank: fault.stack for fault in faults}
    for other, stack in stacks.items():
        for rank, outcome in enumerate(ranks):
            is_over = rank not in stacks and outcome.kind == "done"
            if is_over or (rank in stacks and _has_left(stacks[rank], stack)):
                return _of_one_that_left(rank, other, ranks)
    places = {frames.users(stack) for stack in stacks.values()}
    calls = any(_is_in_a_collective(stack) for stack in stacks.values())
    wait = all(map(frames.exchanges, stacks.values()))  # and none is at work, or sleeps
    if len(places) < 2 or None in places or not (calls and wait):  # noqa: PLR2004
        return None
    return Cause(
        slug="sync/collective-mismatch",
        link="reduce",
        summary="the ranks do not call the same collectives: each waits in a "
        "different place for the others",
        fix=Fix(
            text="call the same collectives in the same order on all ranks: none in "
            "code that only some of them run, such as `if rank == 0`",
        ),
    )


def _of_one_that_left(rank: int, other: int, ranks: Sequence[Outcome]) -> Cause | None:
    """Returns the cause where one rank has left a loop, and another has not."""
    mine, theirs = (len(script_draws.drawn(ranks[one])) for one in (rank, other))
    if mine < theirs:
        return Cause(
            slug="sync/control-desync",
            link="update",
            summary=f"rank {rank} stops training before rank {other}: each rank "
            "decides by itself when to stop",
            fix=Fix(
                text="decide for all ranks at once: all-reduce the number that decides",
                code="dist.all_reduce(metric)\nmetric /= dist.get_world_size()",
            ),
        )
    if mine > theirs or steps(ranks[rank]) != steps(ranks[other]):
        return None
    return Cause(
        slug="graph/skipped-backward",
        link="reduce",
        summary=f"rank {rank} has left out a backward that rank {other} made: the "
        "last one waits for gradients that nobody sends",
        fix=Fix(
            text="make the backward on all ranks, with a loss that is multiplied by 0 "
            "where nothing is to be learned",
            code="loss = loss * 0",
        ),
    )


def _has_left(stack: str, other: str) -> bool:
    """Returns whether a rank is behind a loop in which another one still is."""
    pair = _where_they_part(stack, other)
    if pair is None:
        return False
    mine, theirs = pair
    return any(
        one.lineno <= theirs.line <= (one.end_lineno or one.lineno)
        and mine.line > (one.end_lineno or one.lineno)
        for one in _loops(theirs.file)
    )


def _where_they_part(stack: str, other: str) -> tuple[Frame, Frame] | None:
    """Returns the frames of the outermost function in which the ranks part."""
    mine, theirs = (
        [frame for frame in reversed(frames.frames(one)) if frame.is_users]
        for one in (stack, other)
    )
    for one, two in zip(mine, theirs, strict=False):
        if (one.file, one.name) != (two.file, two.name):
            return None
        if one.line != two.line:
            return one, two
    return None


def _loops(file: str) -> Iterator[ast.For | ast.While | ast.AsyncFor]:
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, _LOOPS):
            yield node


def _is_in_a_collective(stack: str) -> bool:
    """Returns whether a rank waits in a collective, and not in a backward."""
    found = frames.innermost(stack)
    return found is not None and code_origin.inside_torch(found.file) == _COLLECTIVES
