"""Detects sync/comm-hook-semantics."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import common_factor, sums_in_its_step
from ddpcheck.diagnose.facts.hook_weights import unequal
from ddpcheck.diagnose.facts.text import listed, number, times
from ddpcheck.diagnose.facts.unused import reduces_by_hand
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.diagnose.rules.loss_factors import loss_local_normalizer
from ddpcheck.run.intervention import ScaleGradients, SkipAllReduces, Switch

SLUG = "sync/comm-hook-semantics"
LINK = "reduce"

_MEAN = "dist.all_reduce(p.grad)\np.grad /= dist.get_world_size()"
_PLAIN_UPDATE = "optimizer.step()  # without dist.all_reduce(p.grad)"


def detect(case: Case) -> Proposal | None:
    """Proposes it if a hook was registered and DDP without it is right."""
    count = max((f.get("comm_hooks", 0) for f in case.ranks), default=0)
    # A hook's result replaces the division by join.
    is_in_doubt = case.reduce_is_broken or any(f.get("joins") for f in case.ranks)
    if not count:
        return _detect_sum_by_hand(case)
    found = Proposal(
        summary="a communication hook does not return the mean of the ranks' gradients",
        facts=(f"register_comm_hook was called {times(count)}",),
        fix="divide by the world size in the hook; compress only what the tolerance allows",
        code="dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))",
        fixes=(Switch.NO_COMM_HOOKS,),
    )
    if (weighted := _of_weights(case, found)) is not None:
        return weighted
    again = _of_micro_batches(case, found)
    if not is_in_doubt:
        # The loss divides by the world size, for a hook that sums.
        return replaced(again, speculative=True) if again else _detect_sum_by_hand(case)
    return replaced(found, fallback=again)


def _of_weights(case: Case, found: Proposal) -> Proposal | None:
    """Returns the proposal for a hook that weights means by other counts.

    Ranks whose losses are means over their own counts equal the single-process run if
    the hook weights them by these counts. With other weights, the fix of the loss and
    DDP without the hook are needed together, and they are one cause.
    """
    loss, told = loss_local_normalizer.detect(case), unequal(case)
    if loss is None or loss.speculative or told is None:
        return None
    call, weights = told
    return replaced(
        found,
        summary="a communication hook weights the ranks' gradients by other counts "
        "than those that divide their losses",
        facts=(
            *found.facts,
            f"its weights in call {call + 1}: {listed(weights)} on the ranks; a "
            f"mean has {number(1 / case.world_size)} for each",
            *loss.facts,
        ),
        fix="before backward, count what divides the loss of the same step, and "
        "weight by the rank's share of that count",
        code="total = count.clone()  # of this step, all its micro-batches\n"
        "dist.all_reduce(total)\n"
        "dist.all_reduce(bucket.buffer().mul_(count / total))",
        fixes=loss.fixes + found.fixes,
    )


def _of_micro_batches(case: Case, found: Proposal) -> Proposal | None:
    """Returns the proposal for a hook that sums earlier sums again."""
    micros = len(case.probed.reference.micros) if case.probed else 0
    if micros < 2:  # noqa: PLR2004
        return None
    return replaced(
        found,
        summary="a communication hook sums the ranks' gradients after every "
        "micro-batch, including the sums of earlier micro-batches",
        facts=(
            *found.facts,
            f"an update has {micros} backwards; when the ranks' gradients are "
            "summed once, at the update, the ranks train as the single-process run "
            "does",
        ),
        fix="reduce only in the last micro-batch: put forward and backward of all "
        "others in no_sync",
        code="with nullcontext() if is_last else model.no_sync():\n"
        "    loss(model(x), y).backward()",
        fixes=(
            Switch.AVERAGED_AT_UPDATE,
            ScaleGradients(factor=float(case.world_size)),
        ),
    )


def _detect_sum_by_hand(case: Case) -> Proposal | None:
    """Proposes it for a step that sums gradients over ranks, and does not divide."""
    if not is_summed_by_hand(case):
        return _detect_sum_in_update(case) or _detect_sum_after_backward(case)
    if case.loss_collectives and case.loss_is_sound:
        return None
    return Proposal(
        summary="the training step sums the ranks' gradients, but their mean is "
        f"the single-process gradient: they are {case.world_size} times too large",
        facts=(
            f"all gradients are {case.world_size} times the single-process ones, "
            f"and {_why_by_hand(case)}; the parameters are in no DDP object, and the "
            "step calls collectives",
        ),
        fix="divide by the world size",
        code=_MEAN,
        fixes=(ScaleGradients(factor=1 / case.world_size),),
        # The loss may be counted W times as well as the sum: then another cause is.
        speculative=bool(case.loss_collectives),
        last_resort=int(bool(case.loss_collectives)),
    )


def _detect_sum_in_update(case: Case) -> Proposal | None:
    """Proposes it as speculative for gradients that are summed over ranks once more.

    In the optimizer's step, or in a hook before it.
    """
    if not sums_in_its_step(case):
        return None
    world = case.world_size
    return Proposal(
        summary="the optimizer's step, or a hook before it, sums gradients over "
        f"ranks that DDP has already averaged: it uses {world} times the "
        "single-process gradients",
        facts=(
            "gradients are right when the optimizer's step begins, and its update "
            "differs in the same way on all ranks; without its sums over ranks the "
            "runs are equal",
        ),
        fix="remove the sum: after DDP all ranks have the same gradients",
        code=_PLAIN_UPDATE,
        fixes=(SkipAllReduces(of_gradients=True),),
        speculative=True,
        last_resort=1,
    )


def _detect_sum_after_backward(case: Case) -> Proposal | None:
    """Proposes it as speculative for a step that reduces gradients between DDP and its update."""
    factor = common_factor(case)
    calls = max((f.get("collectives", 0) for f in case.ranks), default=0)
    if factor is None or not calls or not case.loss_is_sound or case.reduce_is_broken:
        return None
    is_sum = abs(factor / case.world_size - 1) <= case.close
    scaled = _by_a_factor(case, factor, calls)
    if not is_sum or reduces_by_hand(case):
        return scaled
    return Proposal(
        summary="the training step sums gradients over ranks that DDP has already "
        f"averaged: they are {case.world_size} times the single-process ones",
        facts=(
            f"{_fact(factor)}; {calls} collectives called in three steps: when "
            "those after backward do not change gradients, the runs are equal",
        ),
        fix="remove the sum: after DDP all ranks have the same gradients",
        code=_PLAIN_UPDATE,
        fixes=(SkipAllReduces(of_gradients=True),),
        speculative=True,
        fallback=scaled,
    )


def _by_a_factor(case: Case, factor: float, calls: int) -> Proposal | None:
    """Returns the proposal if only the step's reduction may be wrong.

    All gradients have one factor, and the collectives are not those of a loss.
    """
    if not _is_of_all(case) or case.loss_asks_others or not factor:
        return None
    by_hand = reduces_by_hand(case)
    return Proposal(
        summary="the training step reduces gradients over ranks itself, and the "
        f"result is {number(factor)} times their mean",
        facts=(
            f"{_fact(factor)}; {calls} collectives called in three steps, and the loss "
            "depends on none of them",
        ),
        fix="divide the sum over ranks by the world size, once"
        if by_hand
        else "remove the reduction: after DDP all ranks already have the mean",
        code=_MEAN if by_hand else _PLAIN_UPDATE,
        fixes=(ScaleGradients(factor=1 / factor),),
        speculative=True,
    )


def _fact(factor: float) -> str:
    return (
        f"the gradients that differ are {number(factor)} times the single-process "
        "ones on all ranks, and the loss is right"
    )


def _why_by_hand(case: Case) -> str:
    if case.loss_is_sound:
        return "the loss is right"
    return "the step adds up the gradients of all ranks, and does not divide the sum"


def is_summed_by_hand(case: Case) -> bool:
    """Returns whether all gradients are W times the right ones, and no DDP reduces them.

    The loss would be right with DDP, or the step is seen to add up gradients.
    """
    factor, world = common_factor(case), case.world_size
    if factor is None or world == 1 or abs(factor / world - 1) > case.close:
        return False
    is_known = case.loss_is_sound or _adds_up(case)
    return _is_of_all(case) and is_known and reduces_by_hand(case)


def _adds_up(case: Case) -> bool:
    """Returns whether a step adds up the ranks' gradients, and divides by nothing.

    Apart from what the single process does with its gradients.
    """
    one = case.probed.reference.after_backward if case.probed else 0.0
    factors = [rank.of_sum for rank in case.probed_ranks]
    return bool(one and factors) and all(
        factor is not None and abs(factor / one - 1) <= case.close for factor in factors
    )


def _is_of_all(case: Case) -> bool:
    """Returns whether all gradients are wrong."""
    trained: int = case.facts["num_tensors"] - len(case.facts["unused"])
    return len(case.mismatched("gradients", 0)) >= trained
