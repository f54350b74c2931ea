"""What ranks did before they raised, died or hung, and which of them was first."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.errors import frames
from ddpcheck.report.data import Fault, Run
from ddpcheck.run.spec import (
    BackwardCount,
    CollectiveCount,
    CollectiveEnd,
    ForwardCount,
    RunOutcome,
    StepResult,
)

# Messages of a rank that another rank caused, by leaving or by another call.
_OF_OTHERS = re.compile(
    r"gloo|nccl|connection (?:closed|reset)|timed out|socket", re.IGNORECASE
)
_OF_DDP = re.compile(
    r"mark a variable ready|finished reduction|DistributedDataParallel|training graph"
)
# From torch.distributed, but caused by the rank itself.
_NO_GROUP = re.compile(r"process group (?:has not been|is not) initialized")
# Every rank passes the same size here, and none leaves before all have entered.
_SAME_SIZE = {
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
}
_WAITS_FOR_ALL = {
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "reduce_scatter",
    "reduce_scatter_tensor",
}


def busy_ranks(run: Run) -> dict[int, str]:
    """Returns the ranks that hang in user code, and where: "file.py:12".

    A rank that waits for others does so inside torch; the others wait for one that
    sleeps, loops or waits for something else.
    """
    found = {}
    for fault in run.faults:
        if fault.kind != "hung":
            continue
        frame = frames.innermost(fault.stack)
        if frame and not frame.is_torch:
            found[fault.rank] = frame.place
    return found


def own_faults(faults: Sequence[Fault]) -> list[Fault]:
    """Returns the faults that a rank caused itself, by raising or dying.

    Faults that other ranks caused are left out: a lost connection, an abort inside
    gloo, an exception of DDP about what it received.
    """
    return [f for f in faults if _is_own(f)]


def _is_own(fault: Fault) -> bool:
    if fault.kind == "died":
        # gloo ends a process that receives more than it asked for.
        aborted = "SIGABRT" in fault.summary
        return not (aborted and _OF_OTHERS.search(fault.stderr))
    if fault.kind != "raised":
        return False
    if _NO_GROUP.search(fault.summary):
        return True
    frame = frames.innermost(fault.stack)
    if frame is None or not frame.is_torch:
        return True
    if frame.is_distributed:
        return False
    return not (_OF_OTHERS.search(fault.summary) or _OF_DDP.search(fault.summary))


def _waited(fault: Fault) -> bool:
    return bool(_OF_OTHERS.search(fault.summary)) and not _is_own(fault)


def calls_of_ranks(case: Case) -> list[list[CollectiveCount]]:
    """Returns the collectives that the target entered on each rank, in order.

    Empty without a fault: ranks may differ in harmless ways, e.g. through subgroups.
    """
    if not case.run.faults:
        return []
    return [
        [p for p in rank.progress if isinstance(p, CollectiveCount)]
        for rank in case.outcome.ranks
    ]


def first_difference(case: Case) -> int | None:
    """Returns the index, from 0, of the first collective that differs between ranks.

    Known if two ranks entered different ones, or passed tensors of different sizes.
    None if subgroups are used: their ranks need not do the same.
    """
    calls = calls_of_ranks(case)
    if not all(call.of_all for rank in calls for call in rank):
        return None
    uneven = case.outcome.spec.device != "cpu"  # NCCL gathers tensors of any size
    for index in range(max(map(len, calls), default=0)):
        entered = [rank[index] for rank in calls if len(rank) > index]
        if len({_signature(call, uneven=uneven) for call in entered}) > 1:
            return index
    return None


def _signature(call: CollectiveCount, *, uneven: bool) -> tuple[object, ...]:
    if call.name not in _SAME_SIZE or (uneven and call.name == "all_gather"):
        return (call.name,)
    return call.name, call.shape, call.dtype


def first_overtaken(case: Case) -> int | None:
    """Returns the first collective that one rank left and another never entered.

    It waits for all ranks, so it was matched with another collective.
    """
    calls = calls_of_ranks(case)
    least = min(map(len, calls), default=0)
    for rank, entered in enumerate(calls):
        progress = case.outcome.ranks[rank].progress
        done = {p.count for p in progress if isinstance(p, CollectiveEnd)}
        for call in entered[least:]:
            waits = call.of_all and call.name in _WAITS_FOR_ALL
            if waits and call.count in done:
                return call.count - 1
    return None


def skipped_in(case: Case) -> int | None:
    """Returns the step that a rank left with fewer backwards than another started.

    Later mismatches of collectives follow from that.
    """
    left = _steps_done(case)
    waits = {f.rank for f in case.run.faults if _is_in_ddps_forward(f)}
    for step in range(case.outcome.spec.steps):
        forwards = _forwards_in(case, step)
        begun = [
            # It would have run another, but reaches none.
            n + (rank in waits and left[rank] == step and _trains(forwards[rank]))
            for rank, n in enumerate(backwards_in(case.outcome, step))
        ]
        if any(n < max(begun) and left[rank] > step for rank, n in enumerate(begun)):
            return step
    return None


def forwards_in_step(case: Case) -> tuple[int, list[int]] | None:
    """Returns (step, DDP forwards by rank) of a step that a rank left with fewer.

    The others may still be in it: they started more than that rank.
    """
    left = _steps_done(case)
    for step in range(case.outcome.spec.steps):
        begun = [
            max((p.count for p in told), default=1) for told in _forwards_in(case, step)
        ]
        if any(n < max(begun) and left[rank] > step for rank, n in enumerate(begun)):
            return step, begun
    return None


def _forwards_in(case: Case, step: int) -> list[list[ForwardCount]]:
    """Returns each rank's record of its DDP forwards in a step."""
    return [
        [p for p in rank.progress if isinstance(p, ForwardCount) and p.step == step]
        for rank in case.outcome.ranks
    ]


def _trains(told: list[ForwardCount]) -> bool:
    """Returns whether a backward may follow the last of a rank's forwards."""
    return not told or told[-1].trains


def _steps_done(case: Case) -> list[int]:
    """Returns how many steps each rank has done."""
    raised = {f.rank for f in case.run.faults if f.kind == "raised"}
    counts = []
    for rank, outcome in enumerate(case.outcome.ranks):
        done = [p.step for p in outcome.progress if isinstance(p, StepResult)]
        # A rank that raises reports the step that it does not finish.
        counts.append(done[-1] + (rank not in raised) if done else 0)
    return counts


def _is_in_ddps_forward(fault: Fault) -> bool:
    """Returns whether a rank waits in DDP's exchange before the model's forward.

    In the second step that is the order of gradients: by then every rank has called
    forward.
    """
    frame = frames.innermost(fault.stack)
    is_ddps = frame is not None and frame.file.endswith("nn/parallel/distributed.py")
    return is_ddps and any(f.name == "forward" for f in frames.frames(fault.stack))


def backwards_in(outcome: RunOutcome, step: int) -> list[int]:
    """Returns how many backwards each rank started in a step."""
    return [
        sum(isinstance(p, BackwardCount) and p.step == step for p in rank.progress)
        for rank in outcome.ranks
    ]


def backwards_of_ranks(case: Case) -> list[int]:
    """Returns how many backwards each rank had started, empty if none waited in vain.

    A rank waits if it hung, or raised because of others: its timeout ended, a
    connection was lost. The others wait for a rank that died.
    """
    if not any(f.kind != "raised" or _waited(f) for f in case.run.faults):
        return []
    counts = []
    for rank in case.outcome.ranks:
        told = [p.count for p in rank.progress if isinstance(p, BackwardCount)]
        counts.append(max(told, default=0))
    return counts
