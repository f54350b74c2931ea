"""Where gradients have a wrong factor, and which: measured for rules/loss_factors.py.

A factor is that of the averaged gradient: 1 is right. The loss of one rank has W times
as much, because DDP divides by W: `Case.ratios` are W times the factors here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.events import common_factor
from ddpcheck.diagnose.facts.external_state import own_samples
from ddpcheck.diagnose.facts.loss import (
    constant_count,
    counted_by,
    differs_with_equal_counts,
    is_divided_by_counts,
    is_made_by_the_model,
    is_sum,
    losses_are_one,
    shrinks,
    whole_model_fix,
)
from ddpcheck.diagnose.probes.evidence import Micro
from ddpcheck.run.intervention import CountMicroBatches
from ddpcheck.run.spec import SAMPLES

Place = Literal[
    "whole loss",
    "one term",
    "custom backward",  # which adds the gradient of a term that no loss has
    "all parameters",  # where outputs show no single factor
    "some parameters",
    "after backward",  # where the step changes gradients
    "micro-batch",
]
Factor = Literal[
    "1/W",
    "W",
    "N/n",  # N samples in all, n of the shard or of the micro-batch
    "N/n_r",  # counts of something else
    "k",  # the number of micro-batches
    "0/0",
    "other",  # a number that is no power of W, or several
]
_POWER = 1e-3  # relative: what is this close to a power of W is one

Reading = tuple[Place, Factor, str]  # and what tells it from others of this kind


def measured(case: Case) -> frozenset[Reading]:
    """Returns what the case may have: one place and factor, or several."""
    told = [_of_loss, _of_term, _of_parameters, _of_counts, _of_micros]
    return frozenset(reading for measure in told for reading in measure(case))


def _of_loss(case: Case) -> Iterator[Reading]:
    """Yields one factor of all ranks, whatever else differs between them."""
    if empty_ranks(case):
        yield "whole loss", "0/0", ""
    power, is_one = world_power(case), case.uniform_ratio is not None
    if power == 1 and not (is_one and (losses_are_one(case) or shrinks(case))):
        yield _place(case, case.world_size), "W", ""
    if power != -1 or case.losses_replicate:
        return
    if (place := _place(case, 1 / case.world_size)) == "after backward":
        yield place, "1/W", ""
    elif _is_mean(case):
        # A script that makes fewer micro-batches on a rank repeats no sum over them.
        if not _of_their_number(case):
            yield place, "1/W", "mean" if is_one else "own mean"
    elif is_one and not constant_count(case):
        yield place, "1/W", "sum"


def world_power(case: Case) -> int:
    """Returns the power of W that the loss is multiplied by: -1, 0 or 1.

    Ratios are this times N / n_r. Shares of all samples add up to 1, whatever is
    counted.
    """
    world, ratios = case.world_size, case.rank_ratios
    if world == 1 or ratios is None or not min(ratios) > 0:
        return 0
    shares = sum(1 / ratio for ratio in ratios)
    fits = (k for k in (-1, 1) if abs(shares * float(world) ** k - 1) <= case.close)
    return next(fits, 0)


def _place(case: Case, factor: float) -> Place:
    """Returns where all ranks' gradients get this factor."""
    is_late = all(abs(f / factor - 1) <= case.close for f in after_backward(case))
    return "after backward" if is_late else "whole loss"


def after_backward(case: Case) -> list[float]:
    """Returns what each rank's step multiplies gradients by, and the reference not."""
    if case.probed is None:
        return []
    one = case.probed.reference.after_backward or 1.0
    return [rank.after_backward / one for rank in case.probed.ranks]


def _is_late_divisor(case: Case, name: str) -> bool:
    """Returns whether the step divides gradients by this count of the rank's own."""
    counts = [rank.counts[name] for rank in case.probed.ranks] if case.probed else []
    told = [f * n for f, n in zip(after_backward(case), counts, strict=True)]
    return max(told) - min(told) <= case.close * max(told)


def _is_mean(case: Case) -> bool:
    return not is_sum(case) or constant_count(case) is not None


def empty_ranks(case: Case) -> list[int]:
    """Returns the ranks without a valid item: their loss is NaN or has no gradient."""
    if (
        case.probed is None
        or not case.has_cuts
        or case.losses_replicate
        or case.couples
    ):
        return []
    return undefined_ranks(case) or [
        r.rank
        for r in case.probed.ranks
        if r.cuts
        and all(c.ratio == 0 for c in r.cuts)
        and any(c.norm == 0 for c in r.cuts)
    ]


def undefined_ranks(case: Case) -> list[int]:
    """Returns the ranks whose mean is 0 / 0."""
    return [
        r.rank
        for r, (ratio, _) in zip(case.probed_ranks, case.ratios(), strict=True)
        if not math.isfinite(ratio) or (r.loss is not None and math.isnan(r.loss))
    ]


def _of_term(case: Case) -> Iterator[Reading]:
    """Yields that one term of several has the factor, or may have it."""
    if case.world_size == 1 or case.probed is None:
        return
    if not case.has_cuts:
        is_open = common_factor(case) is None and not case.loss_collectives
        is_whole = case.run.ranks_agree and not case.run.faults
        if is_open and is_whole and is_made_by_the_model(case):
            yield "one term", "1/W", "in the model"
        return
    if case.mixes_a_sum:
        yield "one term", "1/W", "sum"
    is_open = case.uniform_ratio is None and not case.loss_is_sound
    if (
        is_open
        and case.loss_asks_others
        and not (case.losses_replicate or case.couples)
    ):
        yield "one term", "1/W", "count of all"


def _of_parameters(case: Case) -> Iterator[Reading]:
    """Yields the factor of the gradients that are wrong."""
    world, factor = case.world_size, common_factor(case)
    wrong = case.mismatched("gradients", 0)
    if world == 1 or not wrong or case.reduce_is_broken:
        return
    is_added = case.loss_is_sound and not case.loss_is_global and not case.diverging()
    if is_added:
        yield "custom backward", "W", ""
        if not case.losses_replicate:
            yield "custom backward", "1/W", ""
    if factor is None or case.probed is None:
        return
    are_some = len(wrong) < case.facts["num_tensors"]
    if are_divided_by_world(case):
        is_one = case.uniform_ratio is not None and world_power(case) == -1
        if case.losses_replicate or is_one:
            if are_some and (case.losses_replicate or _is_mean(case)):
                yield "some parameters", "1/W", ""
        elif case.uniform_ratio is None and case.loss_collectives:
            yield "all parameters", "1/W", ""
    elif abs(factor / world - 1) <= case.close and are_some and world_power(case) != 1:
        who = "loss" if case.loss_asks_others else "backward"
        yield "some parameters", "W", who


def are_divided_by_world(case: Case) -> bool:
    """Returns whether every wrong gradient is 1/W of the single-process one."""
    factor = common_factor(case)
    return factor is not None and abs(factor * case.world_size - 1) <= case.close


def _of_counts(case: Case) -> Iterator[Reading]:
    """Yields factors of the ranks' own, or one that is no power of W."""
    name = counted_by(case)
    if name is not None and _is_late_divisor(case, name):
        yield "after backward", "N/n" if name == SAMPLES else "N/n_r", ""
        return
    if parts(case):
        is_shard = name == SAMPLES and len(set(case.run.shard_sizes)) > 1
        yield "whole loss", "N/n", "shard" if is_shard else "step"
    is_count = name not in {None, SAMPLES}
    if not case.has_cuts:
        # No module's output shows the loss, or all output rows are no samples.
        if common_factor(case) is None and is_divided_by_counts(case):
            is_clear = is_count and case.forward_is_sound and not whole_model_fix(case)
            yield (
                ("whole loss", "N/n_r", "")
                if is_clear
                else ("all parameters", "other", "")
            )
        return
    if case.loss_is_sound or case.losses_replicate or case.mixes_a_sum:
        return
    if case.couples is not False or not _may_be_counts(case):
        return
    if is_count:
        yield "whole loss", "N/n_r", ""
    if _is_exchanged(case):
        yield "whole loss", "other", "exchanged"
        return
    yield "whole loss", "other", "own"
    # Given the global loss, the step may still multiply it by the world size.
    is_by_step = case.facts["has_train_step"] and case.facts["asks_distributed"]
    if is_by_step and not whole_model_fix(case):
        yield "whole loss", "other", "step"


def _may_be_counts(case: Case) -> bool:
    """Returns whether the ranks' factors may be those of divisors."""
    ratio, world = case.uniform_ratio, case.world_size
    if ratio is None:
        # Without a factor per rank, other samples decide.
        own = case.rank_ratios is None and own_samples(case)
        return counted_by(case) != SAMPLES and not own
    # One for all as of (S_r + a) / (n_r + b).
    is_power = any(abs(ratio - world**k) <= _POWER * world**k for k in (0, 1, 2))
    is_own = case.loss_collectives or not case.facts["asks_distributed"]
    return ratio > 0 and not is_power and bool(is_own)


def _is_exchanged(case: Case) -> bool:
    """Returns whether the divisor is exchanged, but wrong or not all that is."""
    if case.uniform_ratio is not None:
        return bool(case.loss_collectives)
    if counted_by(case) is not None or not case.loss_asks_others:
        return False
    return differs_with_equal_counts(case)


def parts(case: Case) -> list[int]:
    """Returns the number of samples of each rank, if these are the ranks' counts.

    They are its shard, or what the step gives it when it distributes samples again.
    """
    shards = list(case.run.shard_sizes)
    if len(set(shards)) > 1 and counted_by(case) == SAMPLES:
        return shards
    moment = next(iter(rows.moments(case)), None)
    if moment is None or not moment.is_parted or case.run.faults:
        return []
    held = [len(rank) for rank in moment.ranks]
    # If there are fewer, samples that do not count were left out.
    is_whole = len(moment.one) >= case.facts["batch_size"]
    return held if len(set(held)) > 1 and is_whole else []


def _of_their_number(case: Case) -> bool:
    """Returns whether the factor is the number of micro-batches."""
    return ("micro-batch", "k", "") in _of_micros(case)


def _of_micros(case: Case) -> Iterator[Reading]:
    """Yields the factors of single micro-batches."""
    if case.probed is None or not case.probed.reference.micros or not case.has_cuts:
        return
    if case.loss_is_sound or case.losses_replicate:
        return
    left = {place: residual for place, (_, residual) in case.micro_ratios().items()}
    cut = {*sizes(case), *(m.size for m in case.probed.reference.micros)}
    # Other samples in the same position look like coupling.
    if not case.couples:
        if case.uniform_ratio is not None:
            if _follows_their_number(case):
                yield "micro-batch", "k", ""
            return
        known = divisor(case)
        # Samples of several of the single-process micro-batches have several factors.
        inside = [r for place, r in left.items() if len(_windows(case, place)) == 1]
        # With one factor per rank, the count is taken over all micro-batches.
        of_ranks = known is None or counted_by(case) is not None
        is_clear = known is not None or max(inside or left.values()) <= case.close
        if is_clear and not (case.rank_ratios is not None and of_ranks):
            yield "micro-batch", "N/n_r", ""
    # Their samples may be drawn: no factors are comparable.
    if len(cut) > 1 and max(left.values()) > case.close:
        yield "micro-batch", "N/n", ""


def numbers(case: Case) -> tuple[int, int]:
    """Returns the number of micro-batches of the single process, and of a rank."""
    assert case.probed is not None
    ours, theirs = case.probed.reference.micros, case.probed.ranks[0].micros
    return len(ours), max(1, len(theirs))


def sizes(case: Case) -> list[int]:
    """Returns the samples of each micro-batch of the first rank."""
    assert case.probed is not None
    rank = case.probed.ranks[0]
    return [m.size for m in rank.micros] or [int(rank.counts[SAMPLES])]


def _follows_their_number(case: Case) -> bool:
    """Returns whether the loss is a sum over micro-batches of means."""
    assert case.probed is not None
    ours, theirs = numbers(case)
    if theirs == ours or not case.uniform_ratio or case.loss_collectives:
        return False
    # A sum has the gradients of its parts, whatever their number.
    if abs(case.uniform_ratio * ours / (case.world_size * theirs) - 1) > case.close:
        return False
    every = [case.probed.reference.micros, *(r.micros for r in case.probed.ranks)]
    # Means over other numbers of samples would differ: it is a sum.
    return len({m.size for micros in every for m in micros}) == 1


def divisor(case: Case) -> CountMicroBatches | None:
    """Returns the count that every micro-batch's factor follows, as its fix.

    With or without the number of micro-batches.
    """
    assert case.probed is not None
    every = [
        CountMicroBatches(countable=name, by_number=by_number)
        for name in case.probed.reference.counts
        for by_number in (True, False)
    ]
    fits = [count for count in every if _is_followed(case, count)]
    return min(fits, key=lambda d: "!= -" not in d.countable) if fits else None


def _is_followed(case: Case, count: CountMicroBatches) -> bool:
    """Returns whether micro-batches have this factor, or none where there are several.

    One factor for all would follow any count.
    """
    factors = set()
    for place, (ratio, left) in case.micro_ratios().items():
        expected = _expected(case, place, count)
        is_clear = left <= case.close
        if not expected and not ratio:
            continue  # it holds nothing that counts
        if is_clear != (len(expected) == 1):
            return False
        if is_clear and any(abs(ratio - e) > case.close * abs(e) for e in expected):
            return False
        factors |= expected
    return len(factors) > 1


def _expected(
    case: Case, place: tuple[int, int], divided: CountMicroBatches
) -> set[float]:
    """Returns the factors of the samples of a micro-batch, by (rank, number).

    Several if it overlaps several of the reference's with other counts; none if it
    counts nothing.
    """
    assert case.probed is not None
    whole, mine = case.probed.reference.micros, micro(case, place)
    ours = next(r.micros for r in case.probed.ranks if r.rank == place[0])
    count = mine.counts[divided.countable]
    share = len(whole) / max(1, len(ours)) if divided.by_number else 1.0
    return {
        window.counts[divided.countable] * share / count
        for window in _windows(case, place)
        if count
    }


def _windows(case: Case, place: tuple[int, int]) -> list[Micro]:
    """Returns the single-process micro-batches that have samples of a rank's."""
    mine, ours = micro(case, place), case.probed.reference.micros if case.probed else ()
    end = mine.start + mine.size
    return [w for w in ours if w.start < end and mine.start < w.start + w.size]


def micro(case: Case, place: tuple[int, int]) -> Micro:
    """Returns a micro-batch by (rank, number); a shard may be one."""
    assert case.probed is not None
    number, rank = place[1], next(r for r in case.probed.ranks if r.rank == place[0])
    if rank.micros:
        return rank.micros[number]
    held = [int(r.counts[SAMPLES]) for r in case.probed.ranks]
    start = sum(held[: rank.rank])
    return Micro(start=start, size=held[rank.rank], counts=rank.counts)
