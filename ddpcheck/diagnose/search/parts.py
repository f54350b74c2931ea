"""A loss that is wrong in several ways: each group of outputs is judged separately.

A contrastive term on the embeddings and a token mean on the logits are two causes.
Outputs are grouped by how the loss's gradient at them is wrong; rules get one group at
a time, and its intervention fixes only the gradient at that group.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.probes.evidence import Cut
from ddpcheck.run.intervention import GlobalLossOfOutputs

Detect = Callable[[Case], list[Proposal]]
_Kind = tuple[float | None, ...]  # the factor of every rank, None where it has none


def separated(case: Case, found: list[Proposal], detect: Detect) -> list[Proposal]:
    """Returns the proposals; those of the loss by parts, if their causes differ.

    Args:
        case: the case as a whole.
        found: what the rules propose for it.
        detect: the rules of the loss link.
    """
    if not _is_separable(case):
        return found
    taken = _taken(case)
    groups = _groups(case, taken)
    # Only one group is wrong: rules of the whole find it, except for right outputs.
    others = bool(taken) or _some_are_sound(case)
    if not groups or len(groups) + others < 2:  # noqa: PLR2004
        return found
    parts: dict[str, tuple[Proposal, set[str]]] = {}
    lost = _lost(case)
    for keys in groups:
        part = _only(case, keys)
        if lost and not keys <= lost:
            part = _without_collectives(part)
        firm = [p for p in detect(part) if not p.speculative]
        if not firm:
            return found
        first, known = parts.get(firm[0].slug, (firm[0], set()))
        parts[first.slug] = first, known | keys
    if len(parts) + others < 2:  # noqa: PLR2004
        return found
    if not taken and parts.keys() <= {p.slug for p in found if not p.speculative}:
        # A fix of the whole is enough, if it is the right one for a mixture.
        mine = sorted(_of_loss(found), key=lambda p: p.slug not in parts)
    else:
        assert case.probed is not None
        # Outputs without samples are in no group: they are fixed with the first.
        whole = case.probed.reference.whole_outputs
        mine = [_of_part(proposal, keys, whole) for proposal, keys in parts.values()]
    # One fix for all of them, on trial, comes before one for each.
    mine = [p for p in _of_loss(found) if p.speculative and not _shows_all(p)] + mine
    place = next((i for i, p in enumerate(found) if p.link == "loss"), len(found))
    rest = [p for p in found if p.link != "loss"]
    return [*rest[:place], *mine, *rest[place:]]


def _shows_all(proposal: Proposal) -> bool:
    """Returns whether its fix gives the samples of all ranks: that fixes anything."""
    return proposal.is_wide


def _of_loss(found: list[Proposal]) -> list[Proposal]:
    return [p for p in found if p.link == "loss"]


def _is_separable(case: Case) -> bool:
    """Returns whether the loss uses only tensors of the model's output."""
    step = case.probed
    if step is None or case.loss_is_sound or case.facts["has_train_step"]:
        return False
    return (
        not step.reference.micros
        and (step.reference.direct_is_output or not step.reference.direct)
        and step.reference.frontier == ("",)
    )


def _taken(case: Case) -> set[str]:
    """Returns the paths whose gradient a fix in force repairs."""
    fixes = case.outcome.spec.fixes
    given = (fix for fix in fixes if isinstance(fix, GlobalLossOfOutputs))
    return {path for fix in given for path in fix.paths}


def _groups(case: Case, taken: set[str]) -> list[set[str]]:
    """Returns the keys of wrong outputs, by how they are wrong."""
    groups: dict[_Kind | None, set[str]] = {}
    sound: _Kind = (_rounded(case.world_size),) * case.world_size
    for key, cuts in _by_key(case).items():
        if _path(key) in taken or all(map(_is_silent, cuts)):
            continue
        kind = None
        if all(c.residual <= case.close for c in cuts):
            kind = tuple(None if _is_silent(c) else _rounded(c.ratio) for c in cuts)
            if _is_like(kind, sound):
                continue
        groups.setdefault(kind, set()).add(key)
    return _with_silent_ones(groups)


def _with_silent_ones(groups: dict[_Kind | None, set[str]]) -> list[set[str]]:
    """Returns the groups; one with a silent rank joins the group that it else fits.

    A level of a pyramid without an object in a shard has no factor on that rank.
    """
    for kind in [k for k in groups if k is not None and None in k]:
        like = (k for k in groups if k != kind and k is not None and _is_like(kind, k))
        other = next(like, None)
        if other is not None:
            groups[other] = groups[other] | groups.pop(kind)
    return list(groups.values())


def _is_like(some: _Kind, other: _Kind) -> bool:
    if None in other or len(some) != len(other):  # of an output that a rank has not
        return False
    return all(a in (None, b) for a, b in zip(some, other, strict=True))


def _is_silent(cut: Cut) -> bool:
    return cut.norm == 0 and cut.residual == 0


def _some_are_sound(case: Case) -> bool:
    """Returns whether the gradient at some output is right on all ranks."""
    world = case.world_size
    return any(
        all(c.norm and c.residual <= case.close for c in cuts)
        and all(abs(c.ratio - world) <= case.close * world for c in cuts)
        for cuts in _by_key(case).values()
    )


def _by_key(case: Case) -> dict[str, list[Cut]]:
    found: dict[str, list[Cut]] = {}
    for rank in case.probed.ranks if case.probed else ():
        for cut in rank.cuts:
            found.setdefault(cut.key, []).append(cut)
    return found


def _only(case: Case, keys: set[str]) -> Case:
    """Returns the case as if the model had only these outputs."""
    assert case.probed is not None
    cuts = [c for k, found in _by_key(case).items() if k in keys for c in found]
    factors = {c.doubled and _rounded(c.doubled) for c in cuts}
    # Of all terms together; if their mean is right, so is that of each.
    is_right = case.losses_average
    reference = dataclasses.replace(
        case.probed.reference,
        loss=case.probed.reference.loss if is_right else None,
        direct=(),
        couplings=case.probed.reference.couplings.only(keys),
        doubled=next(iter(factors)) if len(factors) == 1 else None,
    )
    ranks = []
    for rank in case.probed.ranks:
        kept = tuple(c for c in rank.cuts if c.key in keys)
        value = rank.loss if is_right else None
        ranks.append(dataclasses.replace(rank, loss=value, cuts=kept, direct=()))
    probed = dataclasses.replace(case.probed, reference=reference, ranks=tuple(ranks))
    return dataclasses.replace(case, probed=probed, is_part=True)


def _lost(case: Case) -> set[str]:
    """Returns the keys of outputs that no gradient reaches on any rank.

    The reason is collectives without autograd: those of the loss belong to these
    outputs.
    """
    return {
        key
        for key, cuts in _by_key(case).items()
        if all(c.ratio == 0 and c.norm > 0 for c in cuts)
    }


def _without_collectives(case: Case) -> Case:
    assert case.probed is not None
    ranks = tuple(dataclasses.replace(r, collectives=0) for r in case.probed.ranks)
    probed = dataclasses.replace(case.probed, ranks=ranks)
    return dataclasses.replace(case, probed=probed)


def _of_part(proposal: Proposal, keys: set[str], whole: tuple[str, ...]) -> Proposal:
    paths = tuple(sorted(map(_path, keys)))
    return dataclasses.replace(
        proposal,
        facts=(*proposal.facts, f"this holds at the model's output {', '.join(paths)}"),
        fixes=(GlobalLossOfOutputs(paths=paths, whole=whole),),
        control=(),
        fallback=None,
    )


def _path(key: str) -> str:
    return key.rpartition("/")[2]


def _rounded(ratio: float) -> float:
    return float(f"{ratio:.6g}") if math.isfinite(ratio) else ratio
