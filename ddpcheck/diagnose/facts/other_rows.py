"""Models that return rows of another kind than samples: tokens, nodes, edges.

No output of a shard is known to be a part of the whole one, so none can be cut, and the
loss cannot be judged by its gradient there. Parameters tell as much where one process's
gradient is a sum of the ranks' own, each weighed.
"""

from __future__ import annotations

from ddpcheck.diagnose.probes.evidence import StepEvidence


def are_returned(probed: StepEvidence | None) -> bool:
    """Returns whether the model, as a whole, returns such rows alone."""
    calls = probed.ranks[0].modules if probed else ()
    roots = [m for m in calls if not m.name]
    return bool(roots) and all(m.rel_diff is None and not m.numbers for m in roots)


def ratios(
    probed: StepEvidence | None, close: float
) -> list[tuple[float, float]] | None:
    """Returns (ratio, residual) of every rank's gradient, None where they do not tell.

    A rank that weighs 1 / W in one process's gradient, as DDP has it, has the ratio W.

    Args:
        probed: what probes found.
        close: the largest residual of a sum that is one process's gradient.
    """
    span = probed.ranks[0].span if probed else None
    if span is None or not are_returned(probed):
        return None
    if span.residual > close or min(span.weights) <= 0:
        return None
    return [(1 / weight, span.residual) for weight in span.weights]
