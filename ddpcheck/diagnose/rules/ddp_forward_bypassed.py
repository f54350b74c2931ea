"""Detects ddp/forward-bypassed."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import goes_past_the_wrapper, is_backward_past
from ddpcheck.diagnose.facts.text import module, names
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import Switch

SLUG = "ddp/forward-bypassed"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it if DDP.forward is not called in a step that trains."""
    lacks = [f.get("lacks", ("", "")) for f in case.ranks]
    called = [name for name, kind in lacks if kind == "call"]
    if called and len(called) == len(lacks):
        return _lacking(called[0])
    forwards = [f.get("forwards", []) for f in case.ranks]
    events = [f.get("events", "") for f in case.ranks]
    if not case.reduce_is_broken or not forwards:
        return None
    # A DDP object without trained parameters need not be called.
    unused = set(case.facts["unused"])
    used = [(count, held) for count, held in forwards[0] if not set(held) <= unused]
    idle = [held for count, held in used if count == 0]
    if idle:
        found = _proposal(
            "the forward bypasses DistributedDataParallel, so its reducer is not "
            "prepared for backward and every rank trains alone",
            f"DDP.forward was called 0 times on {len(idle)} of {len(used)} DDP objects, "
            f"backward {events[0].count('B')} times",
        )
        return replaced(found, local=tuple(name for held in idle for name in held))
    inside = max((f.get("backwards_in_forward", 0) for f in case.ranks), default=0)
    if inside:
        return _proposal(
            "backward runs inside DistributedDataParallel's forward, but the "
            "reducer is prepared only at the end of that forward: gradients stay "
            "local",
            f"backwards inside DDP.forward: {inside} of {events[0].count('B')}",
        )
    return _in_a_part_of_the_step(case)


def _lacking(name: str) -> Proposal:
    return Proposal(
        summary=f"the step calls {name} on the wrapper, which "
        "DistributedDataParallel does not have; the single-process run calls it on "
        "the bare model",
        facts=(
            f"AttributeError on every rank: the model has {name}, its wrapper does not",
            f"model.module.{name}(...) would not raise, but no gradient would be "
            "reduced",
        ),
        # No code: the step ends at the first such call, so further calls are unknown.
        fix=f"wrap a module whose forward makes all calls of the model in the step, "
        f"{name} included, and call the wrapped module once before backward",
        fixes=(Switch.CALLS_THROUGH_DDP,),
    )


def _in_a_part_of_the_step(case: Case) -> Proposal | None:
    if case.probed is None or not goes_past_the_wrapper(case):
        return None
    rank = next(r for r in case.probed.ranks if is_backward_past(r.events))
    return _proposal(
        "a part of the step bypasses DistributedDataParallel's forward, so its "
        "gradients stay local",
        "order of DDP forwards (F), calls that bypass DDP (P) and backwards (B) in "
        f"step 1: {rank.events[:24]}",
        f"calls that bypass DDP: {names(module(n) for n in rank.past_wrapper)}",
    )


def _proposal(summary: str, *facts: str) -> Proposal:
    return Proposal(
        summary=summary,
        facts=facts,
        fix=(
            "call the wrapped model itself; move its other computations into its "
            "forward"
        ),
        code="output = model(inputs)  # not model.module.encode(inputs)",
        code_rests_on="the step calls the inner model and not DDP's forward",
        by_hand=True,
    )
