"""The order of events in a step, and what its ranks agree on.

Events: F a DDP forward, B a backward, [ and ] no_sync entered and left, S an optimizer
step, G autograd.grad.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.probes.evidence import ModuleCall
from ddpcheck.report.data import Difference
from ddpcheck.run.session.agreement import Rewritten, first_parting, ranks_differ
from ddpcheck.run.spec import IDLE


def is_torn(events: str) -> bool:
    """Returns whether no_sync lies between a forward and its backward.

    >>> is_torn("[F]B"), is_torn("[FB]FB"), is_torn("F[B]")
    (True, False, True)
    """
    inside, forwards = False, []
    for event in events:
        if event in "[]":
            inside = event == "["
        elif event == "F":
            forwards.append(inside)
        elif event == "B" and forwards and forwards.pop() != inside:
            return True
    return False


def asks_before_backward(events: str) -> bool:
    """Returns whether autograd.grad uses the graph of the next backward.

    Weights of a term use such gradients; a step towards higher loss (SAM) runs forward
    again.

    >>> asks_before_backward("FGGBS"), asks_before_backward("FGFBS")
    (True, False)
    """
    return "GB" in events.replace("S", "")


def ends_unsynchronised(events: str) -> bool:
    """Returns whether a step's last backward before the update is inside no_sync.

    >>> ends_unsynchronised("FB[FB]S"), ends_unsynchronised("[FB]FBS")
    (True, False)
    """
    inside = last = False
    for event in events:
        if event in "[]":
            inside = event == "["
        elif event == "B":
            last = inside
        elif event == "S" and last:
            return True
    return False


def has_no_reduction(events: str) -> bool:
    """Returns whether one no_sync covers all backwards of every step.

    If each micro-batch has its own no_sync, the last one's is wrong; so is that of a
    last step with fewer micro-batches than the others.

    >>> has_no_reduction("[FB]S"), has_no_reduction("[FBFB]S")
    (True, True)
    >>> has_no_reduction("[FB][FB]S"), has_no_reduction("FB[FB]S")
    (False, False)
    >>> has_no_reduction("[FBSFBS]"), has_no_reduction("[FB]FBS[FB]S")
    (True, False)
    >>> has_no_reduction("[FBSFBS][FBSFBS]")  # averages weights between them
    True
    """
    inside = False
    held = entered = 0  # backwards inside since the last update, and number of entries
    for event in events:
        if event in "[]":
            inside = event == "["
            entered = (entered if held else 0) + inside
        elif event == "B":
            if not inside or entered > 1:
                return False
            held += 1
        elif event == "S" and held:
            held, entered = 0, int(inside)
    return "S" in events


def accumulates(events: str) -> bool:
    """Returns whether an update uses the sum of several backwards.

    >>> accumulates("[FB]FBS"), accumulates("[FB]SFBS")
    (True, False)
    """
    return any(update.count("B") > 1 for update in events.split("S"))


def has_later_backward(case: Case) -> bool:
    """Returns whether more backwards follow one another than DDP objects wait for.

    Two networks in separate DDP objects may run theirs one after the other. If an
    object was called twice, it is not known which call a backward belongs to.
    """
    events = [f.get("events", "") for f in case.ranks]
    callers = [f.get("callers", []) for f in case.ranks]
    return bool(events) and is_late(events[0], callers[0])


def is_late(events: str, callers: list[int]) -> bool:
    """Returns the same for events and the DDP object of each F.

    >>> is_late("FBB", [0]), is_late("FFBB", [0, 1]), is_late("FFBB", [0, 0])
    (True, False, True)
    >>> is_late("FFFBBS", [0, 1, 1]), is_late("FFFBS", [0, 1, 1])
    (True, False)
    >>> is_late("FFBBS", [IDLE, 0]), is_late("FFBS", [IDLE, 0])  # under no_grad
    (True, False)
    >>> is_late("BSBS", []), is_late("FBSBS", [0])
    (False, False)
    """
    waiting: set[int] = set()
    twice = False  # whether one of them was called again before its backward
    objects = iter(callers)
    ended = False  # whether a backward was the last event
    for event in events.replace("G", ""):
        if event == "B":
            if ended and (twice or not waiting):
                return "F" in events
            if waiting:
                waiting.pop()
        elif event == "F":
            caller = next(objects, -1)
            if caller == IDLE:
                continue
            if ended:
                waiting.clear()
                twice = False
            twice |= caller in waiting
            waiting.add(caller)
        ended = event == "B"
    return False


def goes_past_the_wrapper(case: Case) -> bool:
    """Returns whether a step runs backward through calls that bypass DDP's forward."""
    return any(is_backward_past(rank.events) for rank in case.probed_ranks)


def is_backward_past(events: str) -> bool:
    """Returns whether a backward follows only calls that bypass the wrapper.

    Args:
        events: in order, F a wrapper's forward, P a call past it, B a backward.

    >>> is_backward_past("FBSPBS"), is_backward_past("FBPBS")
    (True, True)
    >>> is_backward_past("FPBBS"), is_backward_past("PFB"), is_backward_past("FBB")
    (False, False, False)
    """
    since: set[str] = set()
    for event in events:
        if event == "B":
            if since == {"P"}:
                return True
            since.clear()
        elif event in "FP":
            since.add(event)
    return False


def optimizer_runs_backwards(case: Case) -> bool:
    """Returns whether the optimizer calls a closure for a step's backwards."""
    closes: bool = case.facts["closes"]
    return closes


def ranks_disagree(case: Case, quantity: str, step: int) -> bool:
    """Returns whether the ranks' tensors of a quantity differ after a step."""
    return ranks_differ(case.outcome, quantity, step, case.rtol)


def common_factor(case: Case) -> float | None:
    """Returns the single factor of all gradients of step 0, None without one."""
    rows = [t for q in case.step_quantity("gradients", 0) for t in q.tensors]
    wrong = [t for t in rows if t.excess * case.outcome.spec.rtol > case.rtol]
    if not wrong or any(t.ratio is None for t in wrong):
        return None
    factor = wrong[0].ratio
    assert factor is not None
    return factor if all(_has(t, factor, case.close) for t in wrong) else None


def with_factor(case: Case, factor: float) -> list[str]:
    """Returns the parameters whose gradients of step 0 are `factor` times as large."""
    rows = [t for q in case.step_quantity("gradients", 0) for t in q.tensors]
    return list(dict.fromkeys(t.name for t in rows if _has(t, factor, case.close)))


def _has(tensor: Difference, factor: float, close: float) -> bool:
    """Returns whether a tensor is a pure multiple: wrong by |f - 1| of its largest."""
    return (
        tensor.ratio is not None
        and abs(tensor.ratio - factor) <= close
        and abs(tensor.rel_diff - abs(factor - 1)) <= close
    )


def factor_between_ranks(case: Case, quantity: str, step: int) -> float | None:
    """Returns the largest factor between two ranks that all their tensors have.

    From digests, a linear and a square sum. None where no single factor fits, or where
    the ranks agree.
    """
    told = [
        s.digests.get(quantity)
        for r in range(len(case.outcome.ranks))
        for s in case.outcome.steps(r)
        if s.step == step
    ]
    factors = []
    for a, b in itertools.pairwise(told):
        if not a or not b or not a[0] or not a[1]:
            return None
        factor = b[0] / a[0]
        if factor <= 0 or abs(b[1] / a[1] / factor**2 - 1) > case.close:
            return None
        factors.append(max(factor, 1 / factor))
    largest = max(factors, default=1.0)
    return largest if largest > 1 + case.close else None


def is_power_of_two(case: Case, factor: float) -> bool:
    """Returns whether it is a power of two, as changes of a loss scale are."""
    return (
        factor > 0 and abs(math.log2(factor) - round(math.log2(factor))) <= case.close
    )


def sums_in_its_step(case: Case) -> int:
    """Returns how many collectives a program calls that may sum in an update.

    0 if gradients are wrong before an update, or if the ranks' updates differ.
    """
    step, first = case.first_broken("weights"), case.first_broken("gradients")
    if step is None or (first is not None and first <= step):
        return 0
    if not case.run.ranks_agree or case.run.faults:
        return 0
    return max((f.get("collectives", 0) for f in case.ranks), default=0)


def input_diff(case: Case) -> float:
    """Returns the relative difference of the model's inputs from the reference's.

    In the first step, on the worst rank; 0 if they cannot be compared.
    """
    return max((m.input_diff for m in _given(case)), default=0.0)


def makes_some_input(case: Case) -> bool:
    """Returns whether some of the model's own inputs differ, and others do not.

    The step makes these in addition to the right samples: a mask, for example.
    """
    found = [m for m in _given(case) if m.input_diff > case.close]
    return bool(found) and all(m.keeps_some_input for m in found)


def repeats_first_inputs(case: Case) -> bool:
    """Returns whether ranks' inputs are the reference's inputs for the first rows."""
    return any(m.repeats_first for m in _given(case))


def first_rank_is_right(case: Case) -> bool:
    """Returns whether only rank 0 gives the model the single-process rows."""
    ranks = case.probed_ranks
    told = [max((m.input_diff for m in _itself(r.modules)), default=0.0) for r in ranks]
    others = told[1:]
    return bool(others) and told[0] <= case.close < min(others)


def _given(case: Case) -> list[ModuleCall]:
    """Returns the calls of the model itself whose inputs are not made by a hook."""
    return _itself(case.modules())


def _itself(calls: Iterable[ModuleCall]) -> list[ModuleCall]:
    return [m for m in calls if not (m.name or m.caller or m.remakes_input)]


def rewritten(case: Case, when: str) -> int | None:
    """Returns the step in which user code makes the ranks' weights differ, or None.

    `when`: "before" the step's first forward, or "after" the optimizer's step.
    """
    fact: Rewritten = "rewritten_before" if when == "before" else "rewritten_after"
    return first_parting(case.by_hand_outcome, fact, case.rtol)


def written_by_the_model(case: Case) -> set[str]:
    """Returns the modules whose parameters forward writes differently on ranks."""
    written = {name for rank in case.probed_ranks for name in rank.written_parameters}
    return written - written_alike(case)


def written_alike(case: Case) -> set[str]:
    """Returns the modules whose parameters all ranks write in the same way.

    That is an average of other weights, which do not differ yet.
    """
    told = [rank.written_parameters for rank in case.probed_ranks]
    return {
        name
        for name in set().union(*told)
        if all(_is_close(told[0].get(name, ()), t.get(name, ()), case) for t in told)
    }


def _is_close(ours: tuple[float, ...], others: tuple[float, ...], case: Case) -> bool:
    limit = min(case.close, 10 * case.rtol)  # a norm of weights: no ratio of gradients
    return len(ours) == len(others) and all(
        math.isclose(a, b, rel_tol=limit) for a, b in zip(ours, others, strict=True)
    )
