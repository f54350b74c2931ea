"""Detects rng/stochastic-layer."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase
from ddpcheck.diagnose.facts.events import (
    input_diff,
    makes_some_input,
    repeats_first_inputs,
    rewritten,
)
from ddpcheck.diagnose.facts.external_state import drawn_weights
from ddpcheck.diagnose.facts.text import number
from ddpcheck.run.intervention import Switch

SLUG = "rng/stochastic-layer"
LINK = "forward"

EQUAL = "with constants in place of random numbers the runs are equal"


def detect(case: Case) -> Proposal | None:
    """Proposes noise that follows the sample if the forward draws random numbers."""
    if not case.repeats:
        return _unrepeatable()
    if not case.facts["draws"]:  # of torch's own generator
        return _detect_other_generators(case)
    if not _draws_noise(case) or case.run.noise == "sample" or same_stream(case):
        return None
    if case.run.faults or rewritten(case, "before") == 0 or drawn_weights(case):
        return None  # noise raises nothing; here the step draws weights
    if not case.rest_is_broken:
        return None  # if ranks average by hand, each still draws its own noise
    found = Proposal(
        summary="the model draws random numbers, so a shard gets other noise than "
        "the same samples in the global batch",
        facts=(
            f"{case.num_draws} random draws in the first step of the single-process "
            "run",
            "the ranks' generators are in different states: every rank has its own "
            "noise, which is correct",
        ),
        fix="nothing is wrong with training; to check the rest, let the noise follow "
        "the sample by ddpcheck --noise sample (dropout p=0 does as well)",
        noise="sample",
        benign=True,
    )
    # In micro-batches, or with samples permuted, noise has no order of samples.
    without = dataclasses.replace(
        found,
        facts=(*found.facts, EQUAL),
        fix="nothing is wrong with training; to check the rest, remove the noise "
        "(dropout p=0), as it cannot follow the sample in this step",
        code="",
        noise=None,
        fixes=(Switch.CONSTANT_DRAWS,),
    )
    return dataclasses.replace(found, fallback=without)


def detect_in_replicas(case: DataParallelCase) -> Proposal | None:
    """Proposes it as speculative for replicas that draw with numpy's or Python's generators.

    Draws of torch's generator follow the sample already.
    """
    if case.draws:
        return None
    return Proposal(
        summary="the forward draws random numbers with numpy or random, and every replica "
        "draws its own",
        facts=(
            "with constants in place of random numbers DataParallel equals the "
            "single-process run",
        ),
        fix="nothing is wrong if every replica should have its own noise; else "
        "draw before calling the model, and pass the numbers as an argument",
        fixes=(Switch.CONSTANT_DRAWS,),
        benign=True,
        speculative=True,
    )


def _detect_other_generators(case: Case) -> Proposal | None:
    wrong = rows.first_wrong(case)
    if wrong is not None and not rows.foreign(case, wrong):
        return None  # the choice of samples is another cause
    if _draws_by_seed_alone(case):
        return _by_seed()
    if _ranks_alone_draw(case):
        return _by_ranks_alone()
    if draws_held(case) and not draws_alike(case):
        return dataclasses.replace(_by_seed(), last_resort=0)
    is_of_samples = wrong is not None and not makes_some_input(case)
    return None if is_of_samples else _detect_drawn_inputs(case)


def _ranks_alone_draw(case: Case) -> bool:
    if case.probed is None:
        return False
    return not case.probed.reference.draws and any(r.draws for r in case.probed.ranks)


def _by_ranks_alone() -> Proposal:
    return Proposal(
        summary="each rank draws its own random numbers and the single-process run "
        "draws none: an order or a choice that all ranks must share differs",
        facts=(EQUAL,),
        fix="draw on one rank and broadcast, or use the same seed on all ranks",
        fixes=(Switch.CONSTANT_DRAWS,),
        speculative=True,
        last_resort=1,
    )


def _draws_by_seed_alone(case: Case) -> bool:
    """Returns whether every draw uses a generator with another seed on some rank.

    A rank that draws nothing does not differ by noise.
    """
    if case.probed is None:
        return False
    made, ranks = case.probed.reference, case.probed.ranks
    differ = any(rank.own_seeds != made.own_seeds for rank in ranks)
    all_draw = all(rank.own_seeds for rank in ranks)
    return differ and all_draw and 0 < len(made.own_draws) == made.draws


def _by_seed() -> Proposal:
    return Proposal(
        summary="random numbers come from the target's own generator, which has "
        "another seed on every rank, so a shard gets other noise than the same "
        "samples in the global batch",
        facts=(EQUAL,),
        fix="nothing is wrong with training if every rank should have its own "
        "noise; for the single-process noise use the same seed, draw for the "
        "global batch and keep the rank's rows",
        fixes=(Switch.CONSTANT_DRAWS,),
        benign=True,
        speculative=True,
        last_resort=1,
    )


def _draws_noise(case: Case) -> bool:
    """Returns whether random numbers are drawn by more than data loaders.

    Generators of the target that are seeded equally on all ranks do not count.
    """
    return bool(case.facts["draws"]) and not chooses_alone(case)


def _detect_drawn_inputs(case: Case) -> Proposal | None:
    """Proposes it as speculative for inputs that are made with numpy's or Python's random.

    The target seeds these generators, but ranks draw for their shards only.
    """
    worst = input_diff(case)
    if not case.facts["has_train_step"] or worst <= case.close:
        return None
    if repeats_first_inputs(case):
        return None  # rng/same-stream-all-ranks
    return Proposal(
        summary="the training step draws random numbers with numpy or random, so "
        "the model's input for a shard differs from that for the same samples in "
        "the global batch",
        facts=(
            "the model's input differs from the single-process input: relative "
            f"difference {number(worst)}",
            EQUAL,
        ),
        fix="nothing is wrong with training if every sample should have its own "
        "noise; to check the rest, remove the noise, or draw for the global batch "
        "on all ranks and keep the rank's rows",
        fixes=(Switch.CONSTANT_DRAWS,),
        benign=True,
        speculative=True,
        last_resort=1,
    )


def _unrepeatable() -> Proposal:
    return Proposal(
        summary="the single-process run is not repeatable: the model draws random "
        "numbers, and not from torch's generator",
        facts=(
            "the single-process run, repeated on the same batch with other seeds "
            "of torch, numpy and random, gives another result",
            "torch's generator has the same state before and after a step",
        ),
        fix="draw from torch's generator, or remove the noise for the check",
    )


def chooses_alone(case: Case) -> bool:
    """Returns whether torch's generator serves torch.utils.data alone, in a step."""
    if case.probed is None:
        return False
    made = case.probed.reference
    is_alike = all(rank.own_seeds == made.own_seeds for rank in case.probed.ranks)
    return made.draws == len(made.own_draws) and is_alike


def same_stream(case: Case) -> bool:
    """Returns whether all ranks drew from generators in the same state."""
    if case.probed is None:
        return False
    states = {r.rng for r in case.probed.ranks}
    return len(states) == 1 and states != {0} and len(case.probed.ranks) > 1


def draws_held(case: Case) -> bool:
    """Returns whether the forward may draw with numpy's or Python's generators.

    With generators that the target holds; the choice of samples is another cause.
    """
    if case.probed is None or not case.probed.reference.held_draws:
        return False
    return bool(case.diverging()) and rows.first_wrong(case) is None


def draws_alike(case: Case) -> bool:
    """Returns whether these are in the same state on all ranks."""
    return len({rank.held_rng for rank in case.probed_ranks}) == 1
