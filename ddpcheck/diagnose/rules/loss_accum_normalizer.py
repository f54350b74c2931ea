"""Detects loss/accum-normalizer."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.loss import (
    counted_by,
    global_loss_fix,
    micro_evidence,
    ratio_evidence,
)
from ddpcheck.diagnose.facts.text import listed, number
from ddpcheck.diagnose.probes.evidence import Micro
from ddpcheck.run.intervention import CountMicroBatches, ScaleLoss
from ddpcheck.run.spec import SAMPLES

SLUG = "loss/accum-normalizer"
LINK = "loss"
_CODE = (
    "world, n = 1, count_of_the_whole_step.clone()\n"
    "if dist.is_initialized():  # one process has no group\n"
    "    world = dist.get_world_size()\n"
    "    dist.all_reduce(n)\n"
    "(world * micro_sum / n).backward()"
)


def detect(case: Case) -> Proposal | None:
    """Proposes it for one ratio per micro-batch, or one that depends on their number."""
    if case.probed is None or not case.probed.reference.micros or not case.has_cuts:
        return None
    if case.loss_is_sound or case.losses_replicate:
        return None
    if case.couples:
        return _detect_by_size(case)  # other samples in the same position look like it
    if case.uniform_ratio is not None:
        return _detect_by_number(case, case.uniform_ratio)
    return _detect_by_count(case) or _detect_by_size(case)


def _detect_by_number(case: Case, ratio: float) -> Proposal | None:
    """Detects the sum over micro-batches of means: it grows with their number."""
    assert case.probed is not None
    world = case.world_size
    ours = len(case.probed.reference.micros)
    theirs = max(1, len(case.probed.ranks[0].micros))
    if theirs == ours or not ratio or case.loss_collectives:
        return None
    every = [*case.probed.reference.micros]
    for rank in case.probed.ranks:
        every += rank.micros
    if len({m.size for m in every}) > 1:
        return None  # means over these numbers of samples would differ: it is a sum
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="the loss of a micro-batch is not divided by the number of "
        f"micro-batches: the single-process run has {ours}, a rank {theirs}",
        facts=(
            "given the single-process outputs, the loss's gradient on every rank "
            f"is {number(ratio)} times the single-process one, expected {world}",
            f"micro-batches per step: {ours} in the single-process run, {theirs} on "
            "a rank",
        ),
        fix=(
            "divide the loss of every micro-batch by the number of micro-batches, once"
        ),
        code="(loss / num_micro_batches).backward()",
        safe=False,
        fixes=(ScaleLoss(factor=world / ratio),),
        evidence=ratio_evidence(case),
    )


def _detect_by_count(case: Case) -> Proposal | None:
    """Detects the mean over micro-batches of means: it depends on their samples."""
    ratios, divisor = case.micro_ratios(), _divisor(case)
    if divisor is None and any(left > case.close for _, left in ratios.values()):
        return None
    if case.rank_ratios is not None and (divisor is None or counted_by(case)):
        return None  # one factor per rank: the count is taken over all micro-batches
    # The count may be that of all ranks' micro-batches.
    wide = global_loss_fix(case) if case.loss_asks_others else ()
    shown = [ratio for ratio, _ in ratios.values()]
    facts = [
        "given the single-process outputs, the loss's gradient divided by the "
        f"single-process one, per rank and micro-batch: {listed(shown)}, expected "
        f"{case.world_size}",
    ]
    if divisor is not None:
        counts = [_micro(case, place).counts[divisor.name] for place in ratios]
        facts.append(
            f"each micro-batch is divided by its own `{divisor.name}`: {listed(counts)}"
        )
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="each micro-batch's loss is divided by "
        + (f"its own number of `{divisor.name}`" if divisor else "a count of its own")
        + "; on ranks the micro-batches hold other samples, so the mean of these "
        "means differs",
        facts=tuple(facts),
        fix="divide by one count over all micro-batches of the step and all ranks",
        code=_CODE,
        safe=False,
        fixes=(divisor.fix,) if divisor else wide,
        evidence=micro_evidence(case),
    )


def _detect_by_size(case: Case) -> Proposal | None:
    """Proposes it on trial for micro-batches of unequal size: the last is smaller.

    The samples of a micro-batch may be drawn, so that no factors are comparable.
    """
    assert case.probed is not None
    ours, rank = case.probed.reference.micros, case.probed.ranks[0]
    theirs = [m.size for m in rank.micros] or [int(rank.counts[SAMPLES])]
    sizes = [m.size for m in ours]
    left = [residual for _, residual in case.micro_ratios().values()]
    are_clear = bool(left) and max(left) <= case.close
    if len({*sizes, *theirs}) == 1 or are_clear:
        return None
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary="each micro-batch's loss is a mean over its own samples, and the "
        "micro-batches differ in size; on ranks the batch is cut elsewhere, so the "
        "mean of these means differs",
        facts=(
            f"samples per micro-batch: {listed(sizes)} in the single-process run, "
            f"{listed(theirs)} on rank {rank.rank}",
        ),
        fix=(
            "divide by one count of samples over all micro-batches of the step and "
            "all ranks"
        ),
        code=_CODE,
        safe=False,
        fixes=(CountMicroBatches(countable=SAMPLES),),
        speculative=True,
    )


@dataclass(frozen=True, slots=True)
class _Divisor:
    """What a micro-batch's loss is divided by: a count, and the micro-batches' number."""

    name: str
    by_number: bool

    @property
    def fix(self) -> CountMicroBatches:
        """The intervention that takes one count over all."""
        return CountMicroBatches(countable=self.name, by_number=self.by_number)


def _divisor(case: Case) -> _Divisor | None:
    """Returns what every micro-batch's factor follows."""
    assert case.probed is not None
    fits = [
        divisor
        for name in case.probed.reference.counts
        for by_number in (True, False)
        if _is_followed(case, divisor := _Divisor(name, by_number))
    ]
    return min(fits, key=lambda d: "!= -" not in d.name) if fits else None


def _is_followed(case: Case, divisor: _Divisor) -> bool:
    """Returns whether micro-batches have this factor, or none where there are several.

    One factor for all would follow any count.
    """
    factors = set()
    for place, (ratio, left) in case.micro_ratios().items():
        expected = _expected(case, place, divisor)
        is_clear = left <= case.close
        if not expected and not ratio:
            continue  # it holds nothing that counts
        if is_clear != (len(expected) == 1):
            return False
        if is_clear and any(abs(ratio - e) > case.close * abs(e) for e in expected):
            return False
        factors |= expected
    return len(factors) > 1


def _expected(case: Case, place: tuple[int, int], divisor: _Divisor) -> set[float]:
    """Returns the factors of the samples of a micro-batch, by (rank, number).

    Several if it overlaps several of the reference's with other counts; none if it
    counts nothing.
    """
    assert case.probed is not None
    whole, mine = case.probed.reference.micros, _micro(case, place)
    ours = next(r.micros for r in case.probed.ranks if r.rank == place[0])
    count = mine.counts[divisor.name]
    numbers = len(whole) / max(1, len(ours)) if divisor.by_number else 1.0
    return {
        window.counts[divisor.name] * numbers / count
        for window in whole
        if count and _overlap(window, mine)
    }


def _micro(case: Case, place: tuple[int, int]) -> Micro:
    """Returns a micro-batch by (rank, number); a shard may be one."""
    assert case.probed is not None
    number, rank = place[1], next(r for r in case.probed.ranks if r.rank == place[0])
    if rank.micros:
        return rank.micros[number]
    sizes = [int(r.counts[SAMPLES]) for r in case.probed.ranks]
    start = sum(sizes[: rank.rank])
    return Micro(start=start, size=sizes[rank.rank], counts=rank.counts)


def _overlap(one: Micro, other: Micro) -> bool:
    return one.start < other.start + other.size and other.start < one.start + one.size
