"""All ranks draw the same random numbers."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.rules.rng_stochastic_layer import same_stream

SLUG = "rng/same-stream-all-ranks"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it where draws happen and all generators are in the same state."""
    if not case.facts["draws"] or case.run.noise == "sample" or not same_stream(case):
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="all ranks draw the same random numbers for different samples: the "
        "noise has 1/W of the draws",
        facts=(
            f"{case.facts['draws']} random draws in the first step of one process",
            f"the generators of all {case.world_size} ranks are in the same state when "
            "the forward begins, though ddpcheck seeded them differently",
        ),
        fix="seed each rank differently after wrapping; for an exact check let the "
        "noise follow the sample",
        code="torch.manual_seed(seed + dist.get_rank())",
        noise="sample",
    )
