"""A loss that is wrong in several ways: each component is judged separately.

A component is a group of the model's outputs, or of the loss's addends, whose gradients
are wrong in the same way: a contrastive term on the embeddings and a token mean on the
logits are two. Rules of the loss get the case of one component at a time, and the run
that proves its cause has the right gradients of this component alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ddpcheck.diagnose.facts.case import Case, Proposal, are_shares
from ddpcheck.diagnose.probes.evidence import (
    Couplings,
    Cut,
    RankEvidence,
    StepEvidence,
    combined,
)
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.run.intervention import GlobalLossOfOutputs, Intervention, Substitute
from ddpcheck.run.intervention import addends as given_addends

_SAME = 1e-6  # of a factor that is 1
_NOTHING = 1e-9  # of the largest gradient: rounding of what is zero, in the first step
_MIXED = "loss/batch-coupled"  # a sound part next to a wrong one looks like this, too

Detect = Callable[[Case], list[Proposal]]
Part = str | int  # the key of an output, or the number of an addend
# Factors of the ranks, None for a rank without such samples. (): the part is right.
# None: some rank has no one factor.
_Kind = tuple[float | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """The parts of a loss: the model's outputs, or the addends.

    `cuts`: of every part, those of each rank. `taken`: the parts that a fix in force
    repairs. `computed_by`: parts with the same one are wrong in the same way.
    """

    cuts: dict[Part, list[tuple[Cut, ...]]]
    taken: set[Part]
    computed_by: dict[Part, str]
    are_addends: bool


def separated(case: Case, found: list[Proposal], detect: Detect) -> list[Proposal]:
    """Returns the proposals; those of the loss by component, if their causes differ.

    Args:
        case: the case as a whole.
        found: what the rules propose for it.
        detect: the rules of the loss link.
    """
    for division in _divisions(case):
        mine = _by_component(case, division, found, detect)
        if mine is not None:
            place = next((i for i, p in enumerate(found) if p.link == "loss"), None)
            place = len(found) if place is None else place
            rest = [p for p in found if p.link != "loss"]
            return [*rest[:place], *mine, *rest[place:]]
    return found


def as_mended(case: Case) -> Case:
    """Returns the case, with a sound loss if fixes in force repair all wrong parts.

    Probes use the loss as it is written.
    """
    for division in _divisions(case):
        wrong = {
            part for parts in _components(case, division).values() for part in parts
        }
        if division.taken and wrong <= division.taken:
            return _sound(case)
    return case


def _sound(case: Case) -> Case:
    world = float(case.world_size)

    def right(rank: RankEvidence) -> RankEvidence:
        cuts = (dataclasses.replace(c, ratio=world, residual=0.0) for c in rank.cuts)
        return dataclasses.replace(rank, cuts=tuple(cuts))

    assert case.probed is not None
    probed = dataclasses.replace(
        case.probed, ranks=tuple(map(right, case.probed.ranks))
    )
    return dataclasses.replace(case, probed=probed)


def _divisions(case: Case) -> list[_Division]:
    """Returns how the loss can be divided, if it is wrong and uses only outputs."""
    step = case.probed
    if step is None or case.loss_is_sound or case.is_part:
        return []
    if step.reference.direct and not step.reference.direct_is_output:
        return []
    is_one_backward = not (case.facts["has_train_step"] or step.reference.micros)
    divisions = []
    if is_one_backward and step.reference.frontier == ("",):
        divisions.append(_outputs(case, step))
    if all(rank.addends for rank in step.ranks):
        divisions.append(_addends(case, step))
    return divisions


def _outputs(case: Case, step: StepEvidence) -> _Division:
    keys = dict.fromkeys(c.key for rank in step.ranks for c in rank.cuts)
    fixes = case.outcome.spec.fixes
    given = (fix for fix in fixes if isinstance(fix, GlobalLossOfOutputs))
    paths = {path for fix in given for path in fix.paths}
    return _Division(
        cuts={
            key: [tuple(c for c in rank.cuts if c.key == key) for rank in step.ranks]
            for key in keys
        },
        taken={key for key in keys if _path(key) in paths},
        computed_by={key: key for key in keys},
        are_addends=False,
    )


def _addends(case: Case, step: StepEvidence) -> _Division:
    computed_by = step.reference.addends
    return _Division(
        cuts={
            number: [rank.addends[number] for rank in step.ranks]
            for number in range(len(computed_by))
        },
        taken=set(given_addends(case.outcome.spec.fixes)),
        computed_by=dict(enumerate(computed_by)),
        are_addends=True,
    )


def _kinds(case: Case, division: _Division) -> dict[Part, _Kind]:
    """Returns how every part is wrong that has samples."""
    every = [c for ranks in division.cuts.values() for cuts in ranks for c in cuts]
    top = max((c.norm for c in every), default=0.0)
    found: dict[Part, _Kind] = {}
    for part, ranks in division.cuts.items():
        told = [[c for c in cuts if not _is_nothing(c, top)] for cuts in ranks]
        if any(told):
            fits = [combined(cuts) for cuts in told]
            is_silent = [bool(a) and not b for a, b in zip(ranks, told, strict=True)]
            found[part] = _kind(case, fits, is_silent)
    return found


def _kind(case: Case, fits: list[tuple[float, float]], is_silent: list[bool]) -> _Kind:
    world, close = case.world_size, case.close
    if any(residual > close for _, residual in fits):
        return None
    # A rank that has no such output has the factor 0.
    told = zip(fits, is_silent, strict=True)
    factors = tuple(None if silent else ratio for (ratio, _), silent in told)
    if all(f is None or abs(f - world) <= close * world for f in factors):
        return ()
    return tuple(f if f is None else float(f"{f:.6g}") for f in factors)


def _is_nothing(cut: Cut, top: float) -> bool:
    """Returns whether there is only rounding of zero on both sides."""
    return cut.norm * (1 + abs(cut.ratio) + cut.residual) <= _NOTHING * top


def _components(case: Case, division: _Division) -> dict[_Kind, list[Part]]:
    """Returns the wrong parts, by how they are wrong.

    Addends of the same operations, as in a loop over classes, are one component: if one
    of them relates samples, the others do.
    """
    wrong = {part: k for part, k in _kinds(case, division).items() if k != ()}
    mixing = {division.computed_by[part] for part, k in wrong.items() if k is None}
    groups: dict[_Kind, list[Part]] = {}
    for part, kind in wrong.items():
        is_mixed = division.computed_by[part] in mixing
        groups.setdefault(None if is_mixed else kind, []).append(part)
    # A level of a pyramid without an object in a shard has no factor on that rank.
    for kind in [k for k in groups if k and None in k]:
        other = next((k for k in groups if k and k != kind and _fits(kind, k)), None)
        if other is not None:
            groups[other] += groups.pop(kind)
    return groups


def _fits(kind: _Kind, other: _Kind) -> bool:
    if not kind or not other or None in other:
        return False
    return all(a in (None, b) for a, b in zip(kind, other, strict=True))


def _by_component(
    case: Case, division: _Division, found: list[Proposal], detect: Detect
) -> list[Proposal] | None:
    """Returns the proposals of the loss by component, None if rules see the causes."""
    assert case.probed is not None
    groups = _components(case, division)
    mixed = _keys(division, groups.get(None, []))
    made: dict[str, tuple[Proposal, list[Part]]] = {}
    for kind, parts in groups.items():
        # Tensors of several components are related by that which has no one factor.
        relates = kind is None or mixed.isdisjoint(_keys(division, parts))
        only = _only(case, division, parts, relates=relates)
        best = next((p for p in detect(only) if not p.speculative), None)
        if best is None:
            return None
        best, known = made.get(best.slug, (best, []))
        made[best.slug] = best, [*known, *parts]
    whole = [p for p in found if p.link == "loss"]
    sure = {p.slug: p for p in whole if not p.speculative}
    are_right = bool(division.taken) or () in _kinds(case, division).values()
    if not made or len(made) + are_right < 2:  # noqa: PLR2004
        return None
    is_seen = sure and (next(iter(sure)) != _MIXED or _MIXED in made)
    if len(made) == 1 and is_seen and not division.taken:
        return None  # one cause, which rules find in the whole loss
    if not division.taken and made.keys() <= sure.keys():
        # A fix of the whole is enough, if it is the right one for a mixture.
        mine = sorted(whole, key=lambda p: p.slug not in made)
    else:
        mine = [
            _of_part(case, division, proposal, parts)
            for proposal, parts in made.values()
            if division.taken.isdisjoint(parts)
        ]
    # One fix for all of them, on trial, comes before one for each.
    narrow = [p for p in whole if p.fixes and not (p.is_wide or p.last_resort)]
    first = [p for p in narrow if p.slug not in made and p not in mine]
    if case.probed.reference.frontier != ("",):
        # What begins within the model may differ for a cause of its own as well.
        by_slug = {p.slug: p for p in narrow}
        mine = [
            replaced(by_slug[p.slug], fallback=p) if p.slug in by_slug else p
            for p in mine
        ]
    return first + mine


def _only(case: Case, division: _Division, parts: list[Part], *, relates: bool) -> Case:
    """Returns the case as if the loss had only these parts.

    `relates`: these may be the ones that relate samples, if any does.
    """
    assert case.probed is not None
    # Of all terms together; if their mean is right, so is that of each.
    is_right = case.losses_average and not division.are_addends
    ranks = []
    for number, rank in enumerate(case.probed.ranks):
        cuts = sum((division.cuts[part][number] for part in parts), ())
        alone = _asks_as(rank, parts) if division.are_addends else rank
        loss = rank.loss if is_right else None
        ranks.append(dataclasses.replace(alone, loss=loss, cuts=cuts, direct=()))
    keys = _keys(division, parts)
    reference = dataclasses.replace(
        case.probed.reference,
        loss=case.probed.reference.loss if is_right else None,
        direct=(),
        couplings=case.probed.reference.couplings.only(keys)
        if relates
        else Couplings(nudged=dict.fromkeys(keys, 0.0)),
        doubled=_doubled(cut for rank in ranks for cut in rank.cuts),
    )
    probed = dataclasses.replace(case.probed, reference=reference, ranks=tuple(ranks))
    only = dataclasses.replace(case, probed=probed, is_part=True)
    return _counting(only) if relates and only.couplings.slope else only


def _counting(only: Case) -> Case:
    """Returns the case of some parts; without couplings if it is a count of samples.

    Outputs, such as masks among them, may decide what counts. That multiplies these
    parts, which are only some of the gradient.
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


def _asks_as(rank: RankEvidence, numbers: list[Part]) -> RankEvidence:
    """Returns a rank's evidence, for these addends where it is known for each."""
    known = dict(enumerate(rank.addend_factors))
    factors = {known[n] for n in numbers if n in known}
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
    case: Case, division: _Division, proposal: Proposal, parts: list[Part]
) -> Proposal:
    """Returns the proposal with the run in which these parts alone are right."""
    assert case.probed is not None
    reference = case.probed.reference
    fix: Intervention
    if division.are_addends:
        numbers = tuple(part for part in parts if isinstance(part, int))
        shown = ", ".join(str(number + 1) for number in numbers)
        fact = f"addend {shown} of the {len(reference.addends)} addends of the loss"
        names = tuple(sorted(_within(division, parts)))
        fix = Substitute(boundary="addends", numbers=numbers, names=names)
        fact = f"this holds for {fact}"
    else:
        paths = tuple(sorted(_path(str(part)) for part in parts))
        fact = f"this holds at the model's output {', '.join(paths)}"
        # Outputs without samples are in no component: they are fixed with the first.
        fix = GlobalLossOfOutputs(paths=paths, whole=reference.whole_outputs)
    return replaced(
        proposal,
        facts=(*proposal.facts, fact),
        fixes=(fix,),
        control=(),
        fallback=None,
    )


def _within(division: _Division, parts: list[Part]) -> set[str]:
    """Returns where these parts begin, if some of that is within the model.

    Nothing if all of them begin at the model's outputs.
    """
    keys = _keys(division, parts)
    return keys if any(not key.startswith("#") for key in keys) else set()


def _keys(division: _Division, parts: Iterable[Part]) -> set[str]:
    """Returns the tensors at which these parts have a gradient."""
    cuts = (c for part in parts for some in division.cuts[part] for c in some)
    return {c.key for c in cuts if c.norm or c.residual}


def _path(key: str) -> str:
    return key.rpartition("/")[2]
