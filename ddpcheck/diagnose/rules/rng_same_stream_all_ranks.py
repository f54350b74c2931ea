"""Detects rng/same-stream-all-ranks."""

from __future__ import annotations

import dataclasses

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import first_rank_is_right, repeats_first_inputs
from ddpcheck.diagnose.rules.rng_stochastic_layer import (
    EQUAL,
    draws_alike,
    draws_held,
    same_stream,
)
from ddpcheck.run.intervention import DrawGlobalBatch, Switch, found

SLUG = "rng/same-stream-all-ranks"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it if numbers are drawn and all generators have the same state."""
    if case.probed is not None and case.probed.reference.own_draws:
        if found(case.outcome.spec.fixes, DrawGlobalBatch) is not None:
            return None
        return _by_own_generator(case, case.probed.reference.own_draws)
    if draws_held(case) and draws_alike(case):
        return _by_held_generators()
    if not case.facts["draws"]:  # of torch's own generator
        return _detect_by_inputs(case)
    if case.run.noise == "sample" or not same_stream(case):
        return None
    return Proposal(
        summary="all ranks draw the same random numbers for different samples: the "
        "noise has only 1/W as many independent draws",
        facts=(
            f"{case.num_draws} random draws in the first step of the single-process "
            "run",
            f"the generators of all {case.world_size} ranks are in the same state when "
            "the forward begins, though ddpcheck seeded them differently",
        ),
        fix="seed each rank differently after wrapping; for an exact check let the "
        "noise follow the sample",
        code="torch.manual_seed(seed + dist.get_rank())",
        code_rests_on="torch's generator is in the same state on all ranks",
        noise="sample",
    )


def _by_own_generator(case: Case, draws: tuple[tuple[int, ...], ...]) -> Proposal:
    return Proposal(
        summary="all ranks draw the same random numbers for different samples: the "
        "target's own generator has the same seed on every rank",
        facts=(
            f"{len(draws)} random draws in the first step of the single-process run "
            "use a generator of the target's own",
            f"when each of the {case.world_size} ranks has the numbers that the "
            "single-process run draws for its rows, the ranks train as the "
            "single-process run does",
        ),
        fix="seed the generator by rank; for the same noise as in the "
        "single-process run draw for the global batch and keep the rank's rows",
        fixes=(DrawGlobalBatch(shapes=tuple(dict.fromkeys(draws))),),
        speculative=True,
    )


def _by_held_generators() -> Proposal:
    return _of_numpy(
        "a numpy or Python generator that the target holds has the same seed on "
        "every rank",
        "when the forward begins it is in the same state on all ranks",
    )


def _detect_by_inputs(case: Case) -> Proposal | None:
    """Proposes it as speculative for inputs of the model that a step draws.

    Inputs that depend on the position in the shard would be equal on ranks, too.
    """
    why = (
        "the training step draws them with numpy or random, with the same seed "
        "on every rank"
    )
    if repeats_first_inputs(case):
        fact = (
            "the model's input on the other ranks is the single-process input for "
            "the first samples"
        )
        return dataclasses.replace(_of_numpy(why, fact), last_resort=1)
    # If no rank calls get_rank, all of them use the same seed.
    if first_rank_is_right(case) and not any(f.get("asks_rank") for f in case.ranks):
        return _of_numpy(
            why,
            "on rank 0 the model's input equals the single-process input for these "
            "samples, on the other ranks it does not",
        )
    return None


def _of_numpy(why: str, fact: str) -> Proposal:
    return Proposal(
        summary=f"all ranks draw the same random numbers for different samples: {why}",
        facts=(fact, EQUAL),
        fix="seed the generator by rank; to check the rest, remove the noise",
        fixes=(Switch.CONSTANT_DRAWS,),
        speculative=True,
    )
