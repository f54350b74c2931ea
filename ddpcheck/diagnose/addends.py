"""A loss that adds up terms that are wrong in several ways: each group judged alone.

A coupled term and a mean over a count may meet in one output of the model. The gradient
of each addend is known on its own (run/watch/addends.py), so rules see those that are
wrong alike, and an intervention mends these alone.
"""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.parts import Detect
from ddpcheck.diagnose.probes.evidence import Couplings, Cut, combined

FIX = "loss.addends"

_Kind = tuple[float, ...] | None  # factors of the ranks; None: some rank has none


def separated(case: Case, found: list[Proposal], detect: Detect) -> list[Proposal]:
    """Returns the proposals; those of the loss by addends, where these differ in cause.

    Args:
        case: the case as a whole.
        found: what the rules propose for it.
        detect: the rules of the loss link.
    """
    if not _is_known(case):
        return found
    taken = _taken(case)
    parts: dict[str, tuple[Proposal, list[int]]] = {}
    for kind, numbers in _groups(case).items():
        firm = [p for p in detect(_only(case, kind, numbers)) if not p.speculative]
        if not firm:
            return found
        first, known = parts.get(firm[0].slug, (firm[0], []))
        parts[first.slug] = first, [*known, *numbers]
    if len(parts) < 2:  # noqa: PLR2004 (one cause: rules see it in the whole)
        return found
    whole = next((p for p in found if p.link == "loss" and not p.speculative), None)
    mine = [
        _of_part(case, proposal, numbers, whole)
        for proposal, numbers in parts.values()
        if not taken & set(numbers)
    ]
    place = next((i for i, p in enumerate(found) if p.link == "loss"), len(found))
    rest = [p for p in found if p.link != "loss"]
    return [*rest[:place], *mine, *rest[place:]]


def _is_known(case: Case) -> bool:
    """Returns whether all ranks told of the addends of a loss that asks nobody."""
    if case.probed is None or case.loss_is_sound or case.is_part:
        return False
    if case.facts["asks_distributed"] or case.loss_is_global:
        return False
    told = [rank.addends for rank in case.probed.ranks]
    return (
        all(told)
        and case.probed.reference.frontier == ("",)
        and (case.probed.reference.direct_is_output or not case.probed.reference.direct)
    )


def _taken(case: Case) -> set[int]:
    """Returns the addends whose gradient a fix in force mends."""
    fixes = [f.partition(":")[2] for f in case.outcome.spec.fixes if f.startswith(FIX)]
    every = [each for numbers in fixes for each in numbers.split(",")]
    return {int(each) for each in every if not each.startswith("=")}


def _groups(case: Case) -> dict[_Kind, list[int]]:
    """Returns the numbers of wrong addends, by how they are wrong.

    Those that the same operations compute, as in a loop over classes, are one: where
    one of them relates samples the others do.
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
    told = [rank.addends[number] for rank in case.probed.ranks]
    if not any(cut.norm or cut.residual for cuts in told for cut in cuts):
        return ()
    fits = [combined(cuts) for cuts in told]
    if any(residual > case.close for _, residual in fits):
        return None
    world = case.world_size
    if all(abs(ratio - world) <= case.close * world for ratio, _ in fits):
        return ()
    return tuple(float(f"{ratio:.6g}") for ratio, _ in fits)


def _only(case: Case, kind: _Kind, numbers: list[int]) -> Case:
    """Returns the case as if the loss had these addends alone."""
    assert case.probed is not None
    ranks, keys = [], set[str]()
    for rank in case.probed.ranks:
        cuts: tuple[Cut, ...] = sum((rank.addends[n] for n in numbers), ())
        keys |= {cut.key for cut in cuts}
        ranks.append(dataclasses.replace(rank, loss=None, cuts=cuts, direct=()))
    couplings = case.probed.reference.couplings.only(keys)
    if kind is not None:  # one factor per rank: the samples are not related
        couplings = Couplings(nudged=dict.fromkeys(keys, 0.0))
    reference = dataclasses.replace(
        case.probed.reference, loss=None, direct=(), couplings=couplings, doubled=None
    )
    probed = dataclasses.replace(case.probed, reference=reference, ranks=tuple(ranks))
    return dataclasses.replace(case, probed=probed, is_part=True)


def _of_part(
    case: Case, proposal: Proposal, numbers: list[int], whole: Proposal | None
) -> Proposal:
    assert case.probed is not None
    every = len(case.probed.reference.addends)
    shown = ", ".join(str(number + 1) for number in numbers)
    fixed = [
        *map(str, numbers),
        *(f"={p}" for p in case.probed.reference.whole_outputs),
    ]
    return dataclasses.replace(
        proposal,
        facts=(
            *proposal.facts,
            f"so it is with addend {shown} of the {every} that the loss is the sum of",
        ),
        fixes=(f"{FIX}:{','.join(fixed)}",),
        control=(),
        fallback=whole,
    )
