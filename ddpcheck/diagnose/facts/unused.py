"""Which trainable parameters get no gradient on which ranks, and what averages them."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.diagnose.facts.case import Case


@dataclass(frozen=True, slots=True)
class Unused:
    """`everywhere`: left out by backward on all ranks; `somewhere`: on some ranks only.

    In some step: a name may be in both. `in_output`: an output of the wrapped model
    depends on some of the former. `fault`: what DDP raised, as a fact.
    """

    everywhere: list[str]
    somewhere: list[str]
    in_output: bool
    fault: tuple[str, ...]


def unused_parameters(case: Case) -> Unused:
    """Returns what the run with gradients averaged by hand says of local gradients."""
    of_ranks = case.by_hand_outcome.facts_of_ranks()
    told = [f.get("local_none", {}) for f in of_ranks]
    none = [{(s, name) for s, names in t.items() for name in names} for t in told]
    on_all = set.intersection(*none) if none else set()
    everywhere = sorted({name for _, name in on_all})
    somewhere = sorted({name for _, name in set().union(*none) - on_all})
    behind = {(s, n) for t in told for s, names in t.items() for n in names if names[n]}
    fault = tuple(
        f"rank {f.rank} {'raises' if f.kind == 'raised' else 'ends'} in step "
        f"{(f.step or 0) + 1}: {f.summary[:100]}"
        for f in case.run.faults[:1]
    )
    return Unused(everywhere, somewhere, bool(behind & on_all), fault)


def reduces_by_hand(case: Case) -> bool:
    """Returns whether steps with parameters in no DDP object call collectives."""
    outside = case.outcome.facts().get("outside", [])
    return bool(outside) and any(rank.collectives for rank in case.probed_ranks)
