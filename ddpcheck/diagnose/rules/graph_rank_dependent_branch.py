"""Detects graph/rank-dependent-branch."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import names
from ddpcheck.diagnose.facts.unused import reduces_by_hand, unused_parameters
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import GlobalModule, Substitute, Switch

SLUG = "graph/rank-dependent-branch"
LINK = "reduce"


def detect(case: Case) -> Proposal | None:
    """Proposes it for parameters with a gradient on some ranks only."""
    unused = unused_parameters(case)
    if not unused.somewhere:
        return None
    if not case.reduce_is_broken:
        return _detect_branch_on_rank(case, unused.somewhere)
    outside = set(case.outcome.facts().get("outside", []))
    if outside.issuperset(unused.somewhere) and reduces_by_hand(case):
        return _detect_average_by_hand(unused.somewhere)
    if unused.everywhere:
        return None
    found = Proposal(
        summary="the ranks use different parameters, and on every rank DDP waits "
        "for all parameters",
        facts=(
            f"{len(unused.somewhere)} parameters get a gradient on some ranks only: "
            f"{names(unused.somewhere)}",
            *unused.fault,
        ),
        fix=(
            "set find_unused_parameters=True, or use every parameter, with a "
            "factor of 0 if need be"
        ),
        code="DistributedDataParallel(model, find_unused_parameters=True)",
        fixes=(Switch.FIND_UNUSED,),
    )
    # The ranks choose by their shard: even if DDP waits for no parameter, they still
    # train differently from the single-process run.
    alike = replaced(
        found,
        fix="make the same choice on all ranks, from the samples of all ranks",
        fixes=(GlobalModule(),),
    )
    last = replaced(alike, fixes=(Substitute(boundary="batches"),))
    return replaced(found, fallback=replaced(alike, fallback=last))


def _detect_branch_on_rank(case: Case, somewhere: list[str]) -> Proposal | None:
    """Proposes it as speculative if DDP looks for unused parameters and its mean is wrong."""
    asked = max((f.get("asks_rank", 0) for f in case.ranks), default=0)
    if not asked:
        return None
    return Proposal(
        link="forward",
        summary="the parameters that a rank uses depend on its rank number: the "
        "others count as zero in DDP's mean, and the single-process run uses those "
        "of rank 0",
        facts=(
            f"{len(somewhere)} parameters get a gradient on some ranks only: "
            f"{names(somewhere)}",
            f"calls of get_rank: {asked}; when get_rank returns 0 everywhere, the "
            "runs are equal",
        ),
        fix="make the same choice on all ranks",
        fixes=(Switch.FIRST_RANK,),
        speculative=True,
        last_resort=2,
    )


def _detect_average_by_hand(somewhere: list[str]) -> Proposal:
    """Proposes it as speculative for gradients that a step averages by hand."""
    return Proposal(
        summary="the ranks use different parameters, and the average by hand skips "
        "parameters without a gradient: gradients of different parameters are "
        "added up",
        facts=(
            f"{len(somewhere)} parameters outside every DDP object get a gradient on "
            f"some ranks only: {names(somewhere)}",
        ),
        fix="average zeros where a rank has no gradient, or let DDP average",
        code="if p.grad is None:\n    p.grad = torch.zeros_like(p)\n"
        "dist.all_reduce(p.grad)",
        fixes=(Switch.FILLED_GRADIENTS,),
        speculative=True,
    )
