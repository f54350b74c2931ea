"""What the search goes by: which batch shows it, which fix says more, what failed."""

from __future__ import annotations

import math

from ddpcheck.diagnose.case import Proposal
from ddpcheck.ranks.messages import Outcome
from ddpcheck.report import Run

_SAME = 1e-6  # of what two fixes leave


def first_wrong_batch(run: Run, steps: int) -> int:
    """Returns the step whose batch shows what is wrong, on the weights of the start.

    That of the first wrong gradients, where all weights and buffers before it are
    right: such a shard held the counts of the others until then. 0 where a step has
    none of them.
    """
    series = (run.gradients, run.weights, run.buffers)
    gradients, *state = (q.excess_by_step for q in series)
    if any(len(excesses) not in (0, steps) for excesses in (gradients, *state)):
        return 0
    found = next((i for i, e in enumerate(gradients) if e > 1), 0)
    is_right = all(e <= 1 for excesses in state for e in excesses[:found])
    return found if is_right else 0


def as_good(
    proposals: list[Proposal], first: Proposal, tested: dict[str, float], before: float
) -> Proposal:
    """Returns the first firm proposal, or one on trial before it that does as much.

    Of several causes none mends the run alone; of two fixes of one link that leave the
    same the narrower one comes first.
    """
    left = tested.get(first.slug, math.inf)
    for p in proposals[: proposals.index(first)]:
        same = p.link == first.link and math.isclose(
            tested.get(p.slug, math.inf), left, rel_tol=_SAME
        )
        if same and left < before:
            return p
    return first


def why(outcomes: list[Outcome]) -> str:
    """Returns what ended a probe: the last line of the first that failed."""
    stacks = [
        o.raised.stack if o.raised else getattr(o.value, "failed", "") for o in outcomes
    ]
    lines = [stack.rstrip().rpartition("\n")[2] for stack in stacks if stack]
    others = [o.kind for o in outcomes if o.kind != "done"]
    return (lines or others or [""])[0]
