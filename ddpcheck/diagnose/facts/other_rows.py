"""Models whose output rows are not samples: tokens, nodes, edges.

No output of a shard is known to be a part of the global output, so none can be cut, and
the loss cannot be judged by its gradient there. The gradients of parameters show the
same if the single-process gradient is a weighted sum of the ranks' gradients.
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
    """Returns (ratio, residual) of every rank's gradient, None if they do not show it.

    A rank with the weight 1 / W in the single-process gradient, as in DDP, has the
    ratio W.

    Args:
        probed: what probes found.
        close: the largest residual of a sum that is the single-process gradient.
    """
    span = probed.ranks[0].span if probed else None
    if span is None or not are_returned(probed):
        return None
    if span.residual > close or min(span.weights) <= 0:
        return None
    return [(1 / weight, span.residual) for weight in span.weights]
