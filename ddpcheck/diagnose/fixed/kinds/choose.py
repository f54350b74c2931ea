"""Chooses the drafts of a file: every fix goes to the family that can make it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.fixed.kinds import (
    averages,
    counts,
    decisions,
    gathers,
    graphs,
    hooks,
    means,
    noise,
    norms,
    scales,
    state,
    statistics,
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
)

# `add(fix, wanted, draft)` adds a fix to the draft; it returns False for one that is
# not of the family, or that no file can make.
_FAMILIES = (
    scales.add,
    norms.add,
    means.add,
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
)
_ATTEMPTS = 2


def drafts(
    proposals: Sequence[Proposal], facts: Facts, world_size: int
) -> Iterator[Draft]:
    """Yields the drafts of a file that fixes all these causes, the best first.

    None if a cause has an intervention that no kind of fix makes.
    """
    fixes = list(dict.fromkeys(fix for p in proposals for fix in p.fixes))
    if any(p.noise == "sample" for p in proposals):
        fixes.append(DrawGlobalBatch())
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
    is_gathered = any(isinstance(fix, GlobalLoss) for fix in fixes)
    if not is_gathered and any(p.link == "loss" for p in proposals):
        averaged = [Switch.AVERAGED_AT_UPDATE] if by_hand else []
        others = [fix for p in proposals if p.link != "loss" for fix in p.fixes]
        yield from _drafts([*averaged, GlobalLoss(), *others], facts, world_size)


def _drafts(
    fixes: Iterable[Intervention], facts: Facts, world_size: int, first: int = 0
) -> Iterator[Draft]:
    """Yields the draft of the first attempt, and of the second if that is another."""
    known: list[Draft] = []
    for attempt in range(first, _ATTEMPTS):
        wanted = Wanted(
            fixes=tuple(fixes), facts=facts, world_size=world_size, attempt=attempt
        )
        draft = _all_of(wanted)
        if draft is not None and draft not in known:
            known.append(draft)
            yield draft


def _all_of(wanted: Wanted) -> Draft | None:
    draft = Draft()
    for fix in wanted.fixes:
        if not any(add(fix, wanted, draft) for add in _FAMILIES):
            return None
    return None if draft.is_empty else draft
