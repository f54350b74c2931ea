"""Chooses the drafts of a file: every fix goes to the family that can make it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds import (
    averages,
    collectives,
    counts,
    decisions,
    gathers,
    graphs,
    hooks,
    means,
    noise,
    norms,
    offsets,
    scales,
    shards,
    state,
    statistics,
    terms,
    whole_steps,
    wrappers,
)
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.run.intervention import (
    DrawGlobalBatch,
    GlobalLoss,
    Intervention,
    Switch,
    found,
)

# `add(fix, wanted, draft)` adds a fix to the draft; it returns False for one that is
# not of the family, or that no file can make.
_FAMILIES = (
    scales.add,
    terms.add,
    norms.add,
    means.add,
    collectives.add,
    offsets.add,
    gathers.add,
    whole_steps.add,
    wrappers.add,
    graphs.add,
    averages.add,
    decisions.add,
    hooks.add,
    noise.add,
    state.add,
    statistics.add,
    counts.add,
    shards.add,
)
_ATTEMPTS = 3


def drafts(
    proposals: Sequence[Proposal], facts: Facts, world_size: int
) -> Iterator[Draft]:
    """Yields the drafts of a file that fixes all these causes, the best first.

    None if a cause has an intervention that no kind of fix makes.
    """
    known: list[Draft] = []
    for draft in _candidates(proposals, facts, world_size):
        if draft not in known:
            known.append(draft)
            yield draft


def _candidates(
    proposals: Sequence[Proposal], facts: Facts, world_size: int
) -> Iterator[Draft]:
    fixes = list(dict.fromkeys(fix for p in proposals for fix in p.fixes))
    is_noisy = any(p.noise == "sample" for p in proposals)
    drawn = [DrawGlobalBatch()] if is_noisy else []
    fixes += drawn
    local = [name for p in proposals for name in p.local]
    by_hand = any(p.by_hand for p in proposals)
    rewrapped = [Switch.REWRAP, *fixes]
    if by_hand and facts.has_wrap and not facts.has_train_step:
        yield from _drafts(rewrapped, facts, world_size)
    if by_hand:
        first = any("[" in name for name in local)  # in no module: of an optimizer
        every = [Switch.AVERAGED_AT_UPDATE, *fixes]
        yield from _drafts(every, facts, world_size, first=int(first))
    if fixes and not by_hand:
        yield from _drafts(fixes, facts, world_size)
    if any(p.link == "loss" for p in proposals):
        # A loss of all rows needs no factor of its own.
        averaged = [Switch.AVERAGED_AT_UPDATE] if by_hand else []
        gathered = found(fixes, GlobalLoss) or GlobalLoss()
        others = [fix for p in proposals if p.link != "loss" for fix in p.fixes]
        every = [*averaged, gathered, *others, *drawn]
        yield from _drafts(every, facts, world_size)


def _drafts(
    fixes: Iterable[Intervention], facts: Facts, world_size: int, first: int = 0
) -> Iterator[Draft]:
    """Yields the draft of each attempt."""
    for attempt in range(first, _ATTEMPTS):
        wanted = Wanted(
            fixes=tuple(fixes), facts=facts, world_size=world_size, attempt=attempt
        )
        draft = _all_of(wanted)
        if draft is not None:
            yield draft


def _all_of(wanted: Wanted) -> Draft | None:
    draft = Draft()
    for fix in wanted.fixes:
        if not any(add(fix, wanted, draft) for add in _FAMILIES):
            return None
    return None if draft.is_empty else draft
