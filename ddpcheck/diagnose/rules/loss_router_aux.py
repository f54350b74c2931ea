"""Detects loss/router-aux."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.loss import global_loss_fix, ratio_evidence
from ddpcheck.diagnose.facts.text import module, names, number, output
from ddpcheck.diagnose.probes.evidence import Cut
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import GlobalModule

SLUG = "loss/router-aux"
LINK = "loss"

_SMOOTH = 1e-4

_SUMMARY = (
    "a load-balancing term multiplies two means over the local shard: the share of "
    "tokens and the mean probability of each expert"
)
_FIX = "all-reduce the number of tokens per expert; the mean probability may stay local"
_CODE = (
    "if dist.is_initialized():\n"
    "    dist.all_reduce(tokens_per_expert)  # counts, no gradient\n"
    "share = tokens_per_expert / tokens_per_expert.sum()\n"
    "aux = (share * mean_prob).sum()"
)


def detect(case: Case) -> Proposal | None:
    """Proposes it where only softmax scores inside the network get a wrong gradient.

    In the loss, or in a gradient that the model adds in backward.
    """
    if case.probed is None or not case.has_cuts:
        return None
    if case.loss_is_sound:
        return _detect_in_backward(case)
    return _detect_in_loss(case)


def _detect_in_loss(case: Case) -> Proposal | None:
    assert case.probed is not None
    if case.losses_replicate or case.uniform_ratio is not None:
        return None
    world, close = case.world_size, case.close
    cuts = [c for rank in case.probed.ranks for c in rank.cuts if c.norm or c.residual]
    broken = [
        c for c in cuts if abs(c.ratio - world) > close * world or c.residual > close
    ]
    if not broken or (len(broken) == len(cuts) and not case.is_part):
        return None
    if _is_smooth(case, broken) or not _counts(case, broken):
        return None
    if not all(c.on_the_way and c.row_sum <= close for c in broken):
        return _detect_at_probabilities(case, broken)
    modules = list(dict.fromkeys(c.module for c in broken))
    return Proposal(
        summary=_SUMMARY,
        facts=(
            f"the loss's gradient is wrong only at {names(map(module, modules))}, "
            f"by up to {number(max(c.residual for c in broken))} of its size, and "
            "right at every other output",
            "the error there sums to 0 over the last dimension: it comes through a "
            "softmax whose result the network uses",
        ),
        fix=_FIX,
        code=_CODE,
        code_rests_on=_rests_on(case),
        fixes=global_loss_fix(case),
        evidence=ratio_evidence(case),
    )


def _rests_on(case: Case) -> str:
    """Returns the evidence that the loss counts the rank's own tokens."""
    if case.loss_asks_others:
        return ""
    return (
        "only the scores of a softmax have a wrong gradient, and the loss calls "
        "no collective"
    )


def _detect_in_backward(case: Case) -> Proposal | None:
    """Proposes it on trial for a term that a custom backward of the model adds.

    No loss function has it. For a mean over tokens the mean over shards would be right.
    """
    assert case.probed is not None
    added = case.probed.reference.injected
    # Shares of tokens may be right at first.
    found = case.mismatched("gradients", case.first_broken("gradients") or 0)
    if not added.of_scores or not found or not set(found) <= set(added.names):
        return None
    if case.reduce_is_broken:
        return None
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in found))
    proposal = Proposal(
        summary=_SUMMARY + "; the model adds its gradient in a custom backward",
        facts=(
            f"outputs and the loss's gradient at them are right; {len(found)} "
            f"gradients are wrong: {names(found)}",
            "with gradients of 0 at the model's outputs these parameters still get "
            "a gradient, from an autograd function whose input is computed from "
            "probabilities",
        ),
        fix=_FIX,
        code=_CODE,
        fixes=tuple(GlobalModule(name=name) for name in modules),
        module=modules[0],
        speculative=True,
        last_resort=2,  # a narrower fix finds a wrong factor of the term
    )
    # The term may be computed outside the modules that get its gradient.
    return replaced(proposal, fallback=replaced(proposal, fixes=(GlobalModule(),)))


def _is_smooth(case: Case, broken: list[Cut]) -> bool:
    """Returns whether small changes of other samples change the gradient, too.

    They do not for a share of tokens, which is a count. A penalty on all samples'
    scores, even after a softmax, is no load balancing.
    """
    assert case.probed is not None
    keys = {c.key for c in broken}
    found = case.probed.reference.couplings.only(keys)
    return any(
        found.slope.get(key, 0.0) > _SMOOTH * found.copied.get(key, 0.0) for key in keys
    )


def _counts(case: Case, broken: list[Cut]) -> bool:
    """Returns whether the gradient changes when other tokens become copies of one.

    If it does not, the shares are not those of tokens: sizes of graphs, masks. Neither
    is it this if others choose the tokens: each has a part in the mean probability.
    """
    assert case.probed is not None
    if any(c.selects for c in broken):
        return False
    copied = case.probed.reference.couplings.only({c.key for c in broken}).copied
    return not copied or max(copied.values()) > case.close


def _detect_at_probabilities(case: Case, broken: list[Cut]) -> Proposal | None:
    """Proposes it where the loss begins at the probabilities, or at their scores.

    The mean probability gives every token the same gradient, the share of tokens. It is
    a count, so it changes with the tokens, but not with small changes.
    """
    assert case.probed is not None
    keys = {c.key for c in broken}
    found = case.probed.reference.couplings.only(keys)
    counts = set(found.copied) >= keys and min(found.copied.values()) > case.close
    is_known = set(found.slope) >= keys
    of_shares = all(c.share_spread <= case.close for c in broken)
    if not (counts and is_known) or not (
        of_shares
        or all(c.are_probabilities and c.row_spread <= case.close for c in broken)
    ):
        return None
    at = "at their softmax the gradient" if of_shares else "it"
    return Proposal(
        summary=_SUMMARY,
        facts=(
            "the loss's gradient is wrong only at "
            f"{names(map(output, sorted(keys)))}, by up to "
            f"{number(max(c.residual for c in broken))} of its size, and right at "
            "every other output",
            f"{at} is the same for all tokens, and changes when other tokens become "
            "copies of one token, but not when they change a little: it is a "
            "counted share",
        ),
        fix=_FIX,
        code=_CODE,
        code_rests_on=_rests_on(case),
        fixes=global_loss_fix(case),
        evidence=ratio_evidence(case),
    )
