"""Where the optimizers and wrappers of ranks are not what the single process has.

State that differs is why weights differ only if it differs first: state after wrong
gradients is wrong, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.text import names, number
from ddpcheck.run.facts import HeldOtherwise
from ddpcheck.run.spec import StateApart, Unlike


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstState:
    """A key of the optimizer's state that differs before anything else, and where."""

    state: StateApart  # of the first of the ranks
    ranks: tuple[int, ...]
    world_size: int

    @property
    def text(self) -> str:
        """What differs when, of which parameters, and by how much."""
        state = self.state
        when = (
            f"after update {state.update}, in step {state.step + 1}"
            if state.update
            else "before the first update"
        )
        more = [""] * (state.count - len(state.names))
        held = names([*state.names, *more])
        return f"{state.optimizer}'s state {when}: {state.key} {self._how}, for {held}"

    @property
    def _how(self) -> str:
        state, where = self.state, on_ranks(self.ranks, self.world_size)
        mine, one = (
            "" if value is None else f"{number(value)} "
            for value in (state.mine, state.one)
        )
        if state.only_on == "rank":
            return f"is {mine}on {where}, and the single-process run has none"
        if state.only_on:
            return f"is {one}in the single-process run, and {where} have none"
        if mine and one:
            return f"is {mine}on {where}, and {one}in the single-process run"
        return f"differs on {where} by {number(state.rel_diff)} relative"


def on_ranks(ranks: Sequence[int], world_size: int) -> str:
    """Returns how ranks are called in a sentence.

    >>> on_ranks([0, 1], 2), on_ranks([1], 2), on_ranks([0, 2], 4)
    ('all ranks', 'rank 1', 'ranks 0, 2')
    """
    if len(ranks) == world_size:
        return "all ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + names(map(str, ranks), 8)


def of_ranks(case: Case) -> list[Unlike]:
    """Returns what each rank says, nothing for one that said nothing."""
    results = case.outcome.results()
    return [Unlike() if result is None else result.unlike for result in results]


def first_states(case: Case) -> list[FirstState]:
    """Returns the state that differs first, and no later than weights or gradients.

    All keys that differ at that moment; none if gradients of that step differ already.
    """
    found: dict[tuple[int, int], dict[tuple[str, str], dict[int, StateApart]]] = {}
    for rank, told in enumerate(of_ranks(case)):
        for state in told.states:
            if state.rel_diff > case.close:
                moment = found.setdefault((state.step, state.update), {})
                moment.setdefault((state.optimizer, state.key), {})[rank] = state
    if not found:
        return []
    (step, update), keys = min(found.items())
    gradients, weights = case.first_broken("gradients"), case.first_broken("weights")
    reached = step - (update == 0)  # a step whose gradients are not wrong, if any
    if gradients is not None and gradients <= reached:
        return []
    if weights is not None and weights < step:
        return []
    return [
        FirstState(
            state=next(iter(by_rank.values())),
            ranks=tuple(by_rank),
            world_size=case.world_size,
        )
        for by_rank in keys.values()
    ]


def groups(case: Case) -> dict[int, tuple[int, ...]]:
    """Returns the ranks over which a wrapper reduces where these are not all, by rank.

    That of the first such wrapper.
    """
    return {
        rank: told.reduced_over[0].ranks
        for rank, told in enumerate(of_ranks(case))
        if told.reduced_over
    }


def reduced_over(case: Case) -> list[str]:
    """Returns a sentence on wrappers that reduce over a part of the ranks."""
    found = [told for told in of_ranks(case) if told.reduced_over]
    if not found:
        return []
    held = found[0].reduced_over[0].names
    within = dict.fromkeys(
        f"({', '.join(map(str, ranks))})" for ranks in groups(case).values()
    )
    return [
        f"the wrapper of {names(held)} reduces within the groups of ranks "
        f"{names(within, 4)}, not over all {case.world_size}"
    ]


def held_otherwise(case: Case) -> list[str]:
    """Returns sentences on tensors of model, optimizers and loss that are not the same.

    Where ranks share the parameters, each is left out on some ranks and not on all.
    """
    told = [it.held or HeldOtherwise() for it in of_ranks(case)]
    outside, elsewhere, twice = (
        names(dict.fromkeys(name for held in told for name in getattr(held, kind)))
        for kind in ("outside", "elsewhere", "twice")
    )
    left_out, unread = (
        names(
            name
            for name in getattr(told[0], kind)
            if all(name in getattr(held, kind) for held in told)
        )
        for kind in ("left_out", "unread")
    )
    sentences = {
        "updated by an optimizer, and not held by the model": outside,
        "the loss depends on them, and neither the model nor an optimizer holds "
        "them": elsewhere,
        "updated by an optimizer, and no loss of step 1 depends on them": unread,
        "parameters of the model that no optimizer updates on any rank": left_out,
        "updated by more than one optimizer": twice,
    }
    return [f"{what}: {of}" for what, of in sentences.items() if of]
