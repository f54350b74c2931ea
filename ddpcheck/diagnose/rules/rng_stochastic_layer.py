"""The forward draws random numbers."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal

SLUG = "rng/stochastic-layer"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes noise bound to the sample where the forward draws random numbers."""
    if not case.facts["draws"] or case.run.noise == "sample" or _same_stream(case):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the model draws random numbers, so a shard sees other noise than the "
        "same samples in the global batch",
        facts=(
            f"{case.facts['draws']} random draws in the first step of one process",
            "the ranks' generators are in different states: every rank has noise of "
            "its own, as it should",
        ),
        fix="nothing is wrong with training; to check the rest, let the noise follow "
        "the sample (dropout p=0 does as well)",
        code="ddpcheck --noise sample",
        noise="sample",
    )


def _same_stream(case: Case) -> bool:
    return same_stream(case)


def same_stream(case: Case) -> bool:
    """Returns whether all ranks drew from generators in the same state."""
    if case.step is None:
        return False
    states = {r.rng for r in case.step.ranks}
    return len(states) == 1 and states != {0} and len(case.step.ranks) > 1
