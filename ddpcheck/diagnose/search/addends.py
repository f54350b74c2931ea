"""A loss whose terms are wrong in several ways: each group is judged separately.

A coupled term and a mean over a count may use the same output of the model. The
gradient of each addend is known separately (run/observe/addends.py), so rules get the
addends that are wrong in the same way, and an intervention fixes only these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from ddpcheck.diagnose.facts.case import Case, Proposal, are_shares
from ddpcheck.diagnose.probes.evidence import Couplings, Cut, RankEvidence, combined
from ddpcheck.diagnose.search.parts import Detect
from ddpcheck.run.intervention import Substitute
from ddpcheck.run.intervention import addends as given_addends

_SAME = 1e-6  # of a factor that is 1
_NOTHING = 1e-9  # of the largest addend: rounding of what is zero, in the first step
_MIXED = "loss/batch-coupled"  # a sound addend next to a wrong one looks like this, too

_Kind = tuple[float, ...] | None  # factors of the ranks; None: some rank has none


def separated(case: Case, found: list[Proposal], detect: Detect) -> list[Proposal]:
    """Returns the proposals; those of the loss by addends, if these differ in cause.

    Args:
        case: the case as a whole.
        found: what the rules propose for it.
        detect: the rules of the loss link.
    """
    if not _is_known(case):
        return found
    taken = _taken(case)
    parts: dict[str, tuple[Proposal, list[int]]] = {}
    groups = _groups(case)
    for kind, numbers in groups.items():
        only = _only(case, numbers, relates=kind is None or None not in groups)
        firm = [p for p in detect(only) if not p.speculative]
        if not firm:
            return found
        first, known = parts.get(firm[0].slug, (firm[0], []))
        parts[first.slug] = first, [*known, *numbers]
    whole = next((p for p in found if p.link == "loss" and not p.speculative), None)
    is_seen = whole is not None and (whole.slug != _MIXED or _MIXED in parts)
    if not parts or (len(parts) == 1 and is_seen):
        return found  # one cause, which rules find in the whole loss
    mine = [
        _of_part(case, proposal, numbers, whole)
        for proposal, numbers in parts.values()
        if not taken & set(numbers)
    ]
    # One fix may be right for all: collectives with autograd.
    all_in_one = [
        dataclasses.replace(p, fallback=None)
        for p in found
        if p.link == "loss" and p.slug not in parts
        if p.fixes and not (p.is_wide or p.last_resort)
    ]
    assert case.probed is not None
    if case.probed.reference.frontier != ("",):  # terms begin within the model
        mine = [_after_the_whole(p, found) for p in mine]
    place = next((i for i, p in enumerate(found) if p.link == "loss"), len(found))
    rest = [p for p in found if p.link != "loss"]
    return [*rest[:place], *all_in_one, *mine, *rest[place:]]


def _after_the_whole(part: Proposal, found: list[Proposal]) -> Proposal:
    """Returns what the rules say of the whole loss under this slug, then the part.

    What begins within the model may differ for a cause of its own, with which the
    substitution of a term is not enough.
    """
    for whole in found:
        is_same = whole.link == "loss" and whole.slug == part.slug
        if is_same and whole.fixes and not (whole.is_wide or whole.last_resort):
            return dataclasses.replace(
                whole, fallback=dataclasses.replace(part, fallback=None)
            )
    return part


def as_mended(case: Case) -> Case:
    """Returns the case, with a sound loss if fixes in force repair all wrong addends.

    Probes use the loss as it is written.
    """
    taken = _taken(case)
    if case.probed is None or not taken or not _is_known(case):
        return case
    if not taken.issuperset(n for numbers in _groups(case).values() for n in numbers):
        return case
    world = float(case.world_size)

    def right(rank: RankEvidence) -> RankEvidence:
        cuts = (dataclasses.replace(c, ratio=world, residual=0.0) for c in rank.cuts)
        return dataclasses.replace(rank, cuts=tuple(cuts))

    ranks = tuple(map(right, case.probed.ranks))
    probed = dataclasses.replace(case.probed, ranks=ranks)
    return dataclasses.replace(case, probed=probed)


def _is_known(case: Case) -> bool:
    """Returns whether the addends of the loss are known on all ranks."""
    if case.probed is None or case.loss_is_sound or case.is_part:
        return False
    told = [rank.addends for rank in case.probed.ranks]
    return all(told) and (
        case.probed.reference.direct_is_output or not case.probed.reference.direct
    )


def _taken(case: Case) -> set[int]:
    """Returns the addends whose gradient a fix in force repairs."""
    return set(given_addends(case.outcome.spec.fixes))


def _groups(case: Case) -> dict[_Kind, list[int]]:
    """Returns the numbers of wrong addends, by how they are wrong.

    Addends of the same operations, as in a loop over classes, are one group: if one of
    them relates samples, the others do.
    """
    assert case.probed is not None
    computed_by = case.probed.reference.addends
    kinds = {n: _kind(case, n) for n in range(len(computed_by))}
    told = {n: kind for n, kind in kinds.items() if kind != ()}
    mixing = {computed_by[n] for n, kind in told.items() if kind is None}
    groups: dict[_Kind, list[int]] = {}
    for number, kind in told.items():
        one = None if computed_by[number] in mixing else kind
        groups.setdefault(one, []).append(number)
    return groups


def _kind(case: Case, number: int) -> _Kind:
    """Returns the factors of the ranks, () for what is right or has no samples."""
    assert case.probed is not None
    top = max(c.norm for r in case.probed.ranks for some in r.addends for c in some)
    told = [
        tuple(c for c in rank.addends[number] if not _is_nothing(c, top))
        for rank in case.probed.ranks
    ]
    if not any(cut.norm or cut.residual for cuts in told for cut in cuts):
        return ()
    fits = [combined(cuts) for cuts in told]
    if any(residual > case.close for _, residual in fits):
        return None
    world = case.world_size
    if all(abs(ratio - world) <= case.close * world for ratio, _ in fits):
        return ()
    return tuple(float(f"{ratio:.6g}") for ratio, _ in fits)


def _within(case: Case, numbers: list[int]) -> set[str]:
    """Returns where these addends begin, if some of that is within the model.

    Nothing if all of them begin at the model's outputs.
    """
    assert case.probed is not None
    told = (rank.addends[n] for rank in case.probed.ranks for n in numbers)
    keys = {cut.key for cuts in told for cut in cuts if cut.norm or cut.residual}
    is_within = any(not key.startswith("#") for key in keys)
    return keys if is_within else set()


def _is_nothing(cut: Cut, top: float) -> bool:
    """Returns whether an addend's gradient is rounding on both sides."""
    return cut.norm * (1 + abs(cut.ratio) + cut.residual) <= _NOTHING * top


def _only(case: Case, numbers: list[int], *, relates: bool) -> Case:
    """Returns the case as if the loss had only these addends.

    `relates`: these may be the ones that relate samples, if any does.
    """
    assert case.probed is not None
    ranks, keys = [], set[str]()
    for rank in case.probed.ranks:
        cuts: tuple[Cut, ...] = sum((rank.addends[n] for n in numbers), ())
        keys |= {cut.key for cut in cuts}
        alone = _asks_as(rank, numbers)
        ranks.append(dataclasses.replace(alone, loss=None, cuts=cuts, direct=()))
    couplings = case.probed.reference.couplings.only(keys)
    if not relates:
        couplings = Couplings(nudged=dict.fromkeys(keys, 0.0))
    reference = dataclasses.replace(
        case.probed.reference,
        loss=None,
        direct=(),
        couplings=couplings,
        doubled=_doubled(cut for rank in ranks for cut in rank.cuts),
    )
    probed = dataclasses.replace(case.probed, reference=reference, ranks=tuple(ranks))
    only = dataclasses.replace(case, probed=probed, is_part=True)
    return _counting(only) if relates and couplings.slope else only


def _counting(only: Case) -> Case:
    """Returns the case of some addends; without couplings if it is a count of samples.

    Outputs, such as masks among them, may decide what counts. That multiplies these
    addends, which are only a part of the gradient.
    """
    factors, found = only.rank_ratios, only.couplings
    if factors is None or not are_shares(factors, only.close) or found.is_smooth():
        return only
    assert only.probed is not None
    nothing = dict.fromkeys(found.slope, 0.0)
    couplings = dataclasses.replace(found, nudged=nothing, copied={})
    reference = dataclasses.replace(only.probed.reference, couplings=couplings)
    probed = dataclasses.replace(only.probed, reference=reference)
    return dataclasses.replace(only, probed=probed)


def _asks_as(rank: RankEvidence, numbers: list[int]) -> RankEvidence:
    """Returns a rank's evidence, for these addends where it is known for each."""
    factors = {rank.addend_factors[n] for n in numbers if rank.addend_factors}
    if len(factors) != 1:
        return rank
    (factor,) = factors
    is_asked = factor is None or abs(factor - 1) > _SAME
    asks = rank.asks_others if is_asked else ()
    return dataclasses.replace(rank, group_factor=factor, asks_others=asks)


def _doubled(cuts: Iterable[Cut]) -> float | None:
    """Returns 2 for sums over samples, 1 for means; None for neither, or unknown."""
    told = {c.doubled and float(f"{c.doubled:.6g}") for c in cuts if c.norm}
    return told.pop() if len(told) == 1 else None


def _of_part(
    case: Case, proposal: Proposal, numbers: list[int], whole: Proposal | None
) -> Proposal:
    assert case.probed is not None
    every = len(case.probed.reference.addends)
    shown = ", ".join(str(number + 1) for number in numbers)
    return dataclasses.replace(
        proposal,
        facts=(
            *proposal.facts,
            f"this holds for addend {shown} of the {every} addends of the loss",
        ),
        fixes=(
            Substitute(
                boundary="addends",
                numbers=tuple(numbers),
                names=tuple(sorted(_within(case, numbers))),
            ),
        ),
        control=(),
        fallback=whole,
    )
