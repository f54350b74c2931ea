"""One round of the search: tries what is proposed, and takes up one of the causes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.diagnose.search.causes import Cause, can_run, verified
from ddpcheck.diagnose.search.trials import Trials
from ddpcheck.run.session import assemble

_SAME = 1e-6  # of the excess that two fixes leave
_NEAR = 1e-6  # of an excess: below that no separate cause remains


@dataclass(slots=True, kw_only=True)
class Round:
    """The runs of one round.

    `case`: the run with the fixes of `taken` in force. `tested`: the excess that is
    left with each proposal's fix, by slug. `falls_back`: fallbacks of proposals with
    evidence are tried too, though they repair more than their own cause.
    """

    trials: Trials
    case: Case
    taken: list[Proposal]
    falls_back: bool
    tested: dict[str, float] = field(default_factory=dict)

    @property
    def before(self) -> float:
        """The run's excess."""
        return assemble.worst_excess(self.case.run)

    def choose(self, proposals: list[Proposal]) -> Cause | None:
        """Returns the cause to take up: the narrowest that its run verifies.

        If there is none, there may be several causes: then it is the first proposal of
        the first link, and the next round keeps its fix.
        """
        firm = [p for p in proposals if not p.speculative]
        if firm and firm[0] is proposals[0] and self.case.run.faults:
            # Ranks that wait for each other: any fix that ends the wait by making all
            # ranks do the same would look like a proof.
            if not can_run(firm[0]):
                return Cause(firm[0], before=self.before)
            if firm[0].needs_no_proof:
                proposals = firm[:1]
        refuted = self._try(proposals)
        first = [p for p in proposals if self._left(p) <= 1 and p.slug not in refuted]
        if not any(p.is_precise for p in first):
            tried = proposals
            are_wide = bool(first) and all(p.last_resort for p in first)
            proposals = [self._or_fallback(p, or_narrow=are_wide) for p in proposals]
            refuted |= self._refuted([p for p in proposals if p not in tried])
        for proposal in sorted(proposals, key=lambda p: p.width):
            if self._left(proposal) <= 1 and proposal.slug not in refuted:
                return verified(proposal, self.before, self.tested)
        return self._first([p for p in proposals if p.slug not in refuted])

    def _try(self, proposals: list[Proposal]) -> set[str]:
        """Runs the proposals, those of last resort if no others make the run equal.

        Returns:
            The slugs of those whose control makes it equal, too.
        """
        refuted: set[str] = set()
        for resort in sorted({p.last_resort for p in proposals}):
            if any(x <= 1 for slug, x in self.tested.items() if slug not in refuted):
                break
            wanted = [p for p in proposals if p.last_resort == resort and can_run(p)]
            self.tested |= self.trials.of(wanted, self.taken)
            refuted |= self._refuted([p for p in wanted if self._left(p) <= 1])
        return refuted

    def _refuted(self, proposals: list[Proposal]) -> set[str]:
        passes = self.trials.passes_control
        return {p.slug for p in proposals if not passes(p, self.taken)}

    def _left(self, proposal: Proposal) -> float:
        return self.tested.get(proposal.slug, math.inf)

    def _or_fallback(self, proposal: Proposal, *, or_narrow: bool) -> Proposal:
        """Returns the first of the proposal and its fallbacks that makes the run equal.

        With several causes none does: then the first that changes the excess, if any.

        Args:
            proposal: one that was tried.
            or_narrow: narrow fallbacks are tried in any case.
        """
        left, before = self._left(proposal), self.before
        # A proposal that needs no proof, or is nothing without one, has no other
        # attempt. Rounding remains, for example of a loss in float32: another attempt
        # may have none.
        is_near = 1 < left < _NEAR * before
        is_last = proposal.needs_no_proof or proposal.speculative
        tries_all = self.falls_back or is_last or is_near
        is_mended = any(excess <= 1 for excess in self.tested.values())
        other, changing = proposal.fallback, None
        while left > 1 and other is not None:
            is_narrow = not (other.is_wide or other.last_resort)
            if other.last_resort > 1 and is_mended:
                break
            if not tries_all and not (or_narrow and is_narrow):
                break
            excess = self.trials.of([other], self.taken)[other.slug]
            if excess <= 1:
                self.tested[other.slug] = excess
                return other
            if tries_all and changing is None and excess < before:
                changing = (other, excess) if _is_same(left, before) else None
            other = other.fallback
        if changing is None:
            return proposal
        proposal, self.tested[proposal.slug] = changing
        return proposal

    def _first(self, proposals: list[Proposal]) -> Cause | None:
        """Returns the first cause with evidence, though its run still differs."""
        firm = [p for p in proposals if not p.speculative and self._can_train(p)]
        # What acts on all sums or writes of a step mends a part of other causes, too.
        firm.sort(key=lambda p: p.width == 1)
        if not firm:
            return None
        first = self._or_narrower(proposals, firm[0])
        by_hand = self.case.by_hand
        if by_hand.verdict == "equivalent" and _is_of_the_wrapper(first, self.case):
            # User code may repeat the mistake after the fix repaired it.
            first, after = replaced(first, by_hand=True, fixes=()), by_hand
            left = assemble.worst_excess(after)
            return Cause(first, before=self.before, after=left, verified=True)
        # Of what is certain in any case a run that still differs refutes nothing.
        is_certain = first.needs_no_proof and first.link != "data"
        told = False if first.slug in self.tested and not is_certain else None
        return Cause(first, before=self.before, after=self._left(first), verified=told)

    def _can_train(self, proposal: Proposal) -> bool:
        return self.trials.can_train(proposal, self.tested, self.taken)

    def _or_narrower(self, proposals: list[Proposal], first: Proposal) -> Proposal:
        """Returns the first firm proposal, or an earlier one on trial that is as good.

        With several causes no fix is enough; of two fixes of one link that leave the
        same excess, the narrower one comes first.
        """
        left = self._left(first)
        for p in proposals[: proposals.index(first)]:
            same = p.link == first.link and _is_same(self._left(p), left)
            if same and p.width < first.width and not _is_same(left, self.before):
                return p
        return first


def _is_of_the_wrapper(proposal: Proposal, case: Case) -> bool:
    """Returns whether it is a fact about DDP, which an average by hand leaves out."""
    has_hooks = any(facts.get("comm_hooks") for facts in case.ranks)
    is_fixed = bool(proposal.fixes) and proposal.fallback is None
    return proposal.link == "reduce" and is_fixed and not has_hooks


def _is_same(excess: float, other: float) -> bool:
    return math.isclose(excess, other, rel_tol=_SAME)
