"""Detects loss/regularizer-scale."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.text import WORLD, listed, number
from ddpcheck.run.intervention import CountLoss, ScaleDirect, ScaleTerms, found

SLUG = "loss/regularizer-scale"
LINK = "loss"

_WHOLE = 1e-6


def detect(case: Case) -> Proposal | None:
    """Proposes it if the data term is right and the terms without data are not."""
    if case.probed is None or case.world_size == 1:
        return None
    if not case.loss_is_sound:
        return (
            _detect_next_to_hook(case) if case.has_cuts else _detect_among_terms(case)
        )
    direct = case.direct()
    ratios = [ratio for ratio, _ in direct]
    is_one = all(residual <= case.close for _, residual in direct) and (
        _same(ratios, case.close) or _are_whole(ratios) or _weighs_ranks(case)
    )
    if case.direct_is_sound or not is_one:
        return _detect_among_terms(case)
    mean = sum(ratios) / len(ratios)
    if abs(mean - 1) <= case.close:
        return None
    has_factor = abs(mean) > case.close  # else no factor fixes it
    first = dataclasses.replace(
        _proposal(mean if has_factor else 1.0),
        facts=(
            "the gradient at the outputs is right on every rank",
            "the gradient that parameters get directly from the loss is "
            f"{listed(ratios)} times the single-process one, expected 1",
        ),
        evidence={"direct_ratios": ratios},
    )
    if case.loss_asks_others:
        first = _summed(first)
    elif not has_factor or not (_same(ratios, case.close) or _weighs_ranks(case)):
        first = _on_some(first)
    if not has_factor:
        return dataclasses.replace(first, fixes=())
    # A penalty with a separate backward is added to nothing.
    other = dataclasses.replace(first, fixes=(ScaleDirect(factor=1 / mean),))
    return dataclasses.replace(first, fallback=other)


def _detect_next_to_hook(case: Case) -> Proposal | None:
    """Proposes it on trial if a hook may cancel the factor of the data term."""
    if case.uniform_ratio is None or not any(f.get("comm_hooks") for f in case.ranks):
        return None
    world = case.world_size
    return dataclasses.replace(
        _proposal(world),
        facts=(
            "a communication hook cancels the factor of the data term",
            f"when the term without data is multiplied by 1/{world} where it is "
            "added to the loss, the gradients equal the single-process gradients",
        ),
        fix="divide the term that every rank has in full by the world size, or "
        "return the mean from the hook and multiply only the data term by the "
        "world size",
        code=f"{WORLD}loss = data_term + penalty / world",
        speculative=True,
    )


def _summed(found: Proposal) -> Proposal:
    """Returns the proposal in the words for a term that a collective sums."""
    return dataclasses.replace(
        found,
        summary="a term of the loss that every rank has in full (a penalty on the "
        "weights) goes through a collective together with the data term: it counts "
        "once per rank",
        fix=(
            "reduce only the terms that depend on samples, and add this term afterwards"
        ),
        code="loss = data_term + penalty  # the penalty in no collective",
    )


def _on_some(found: Proposal) -> Proposal:
    """Returns the proposal in the words for a term that ranks have unevenly."""
    return dataclasses.replace(
        found,
        summary="a term of the loss without data (a penalty on the weights) "
        "differs between ranks, and training uses its mean",
        fix="add the same term in full on every rank; a term on the first rank "
        "alone counts 1 / world_size times",
        code="loss = data_term + penalty  # on every rank",
    )


def _are_whole(ratios: list[float]) -> bool:
    """Returns whether ranks have the term a whole number of times, or not at all.

    A parameter of one element is proportional to any other, so a part in the data term
    would show as any number.
    """
    return all(abs(ratio - round(ratio)) <= _WHOLE for ratio in ratios)


def _same(ratios: list[float], close: float) -> bool:
    return all(abs(r - ratios[0]) <= close * abs(ratios[0]) for r in ratios)


def _weighs_ranks(case: Case) -> bool:
    """Returns whether a fix in force multiplies each rank's whole loss by a factor.

    The penalty is part of it: what counts is the mean of the factors.
    """
    return found(case.outcome.spec.fixes, CountLoss) is not None


def _detect_among_terms(case: Case) -> Proposal | None:
    """Proposes it on trial.

    The gradient of such a term is not known separately if the parameter is also used in
    the data term, or if the model computes both. It may be 0 in the first step.
    """
    if not (case.forward_is_sound and case.rest_is_broken):
        return None
    if case.first_broken("gradients") is None:
        return None
    sizes = case.run.shard_sizes
    by_rows = sum(sizes) * sum(1 / n for n in sizes) / len(sizes) if all(sizes) else 0.0
    first = _times(case, case.world_size)
    if not by_rows or abs(by_rows - case.world_size) <= case.close:
        return first
    # Shards of several sizes: each rank may divide it by its own rows.
    return dataclasses.replace(first, fallback=_times(case, by_rows))


def _times(case: Case, factor: float) -> Proposal:
    """Returns the proposal, on trial, for a term that counts `factor` times."""
    return dataclasses.replace(
        _proposal(factor),
        facts=(
            "the gradient at the outputs is right on every rank"
            if case.has_cuts
            else ("the model's outputs carry no gradient: the model computes the loss"),
            f"when the term without data is multiplied by 1/{number(factor)} where "
            "it is added to the loss, the gradients equal the single-process "
            "gradients",
        ),
        speculative=True,
    )


def _proposal(factor: float) -> Proposal:
    return Proposal(
        summary="a term of the loss that every rank has in full (a penalty on the "
        "weights) is scaled like the data term",
        facts=(),
        fix="multiply the data term alone by the world size",
        code=f"{WORLD}loss = world * data_term + penalty",
        fixes=(ScaleTerms(factor=1 / factor),),
    )
