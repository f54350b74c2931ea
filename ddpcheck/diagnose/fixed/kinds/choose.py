"""Chooses the drafts of a file: every fix goes to the family that can make it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds import (
    averages,
    counts,
    gathers,
    norms,
    scales,
    wrappers,
)
from ddpcheck.diagnose.fixed.kinds.family import Wanted
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.run.intervention import GlobalLoss, Intervention, Switch

# `add(fix, wanted, draft)` adds a fix to the draft; it returns False for one that is
# not of the family, or that no file can make.
_FAMILIES = (
    scales.add,
    norms.add,
    gathers.add,
    wrappers.add,
    averages.add,
    counts.add,
)


def drafts(
    proposals: Sequence[Proposal], facts: Facts, world_size: int
) -> Iterator[Draft]:
    """Yields the drafts of a file that fixes all these causes, the best first.

    None if a cause has an intervention that no kind of fix makes.
    """
    fixes = list(dict.fromkeys(fix for p in proposals for fix in p.fixes))
    by_hand = any(p.by_hand for p in proposals)
    if by_hand and facts.has_wrap:
        made = _all_of([Switch.REWRAP, *fixes], facts, world_size)
        if made is not None:
            yield made
    if by_hand:
        made = _all_of([Switch.AVERAGED_AT_UPDATE, *fixes], facts, world_size)
        if made is not None:
            yield made
    if fixes and not by_hand and not any(p.noise for p in proposals):
        made = _all_of(fixes, facts, world_size)
        if made is not None:
            yield made
    are_of_loss = all(p.link == "loss" for p in proposals)
    is_gathered = any(isinstance(fix, GlobalLoss) for fix in fixes)
    if are_of_loss and not (by_hand or is_gathered or facts.has_train_step):
        draft = Draft()
        gathers.gather(draft, facts, is_alone=facts.asks_group)
        yield draft


def _all_of(
    fixes: Iterable[Intervention], facts: Facts, world_size: int
) -> Draft | None:
    wanted = Wanted(fixes=tuple(fixes), facts=facts, world_size=world_size)
    draft = Draft()
    for fix in wanted.fixes:
        if not any(add(fix, wanted, draft) for add in _FAMILIES):
            return None
    return None if draft.is_empty else draft
