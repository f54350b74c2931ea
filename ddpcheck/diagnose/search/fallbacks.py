"""Fallbacks of a rule: the same cause, less precisely, and its run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.diagnose.search.choosing import changes_nothing
from ddpcheck.diagnose.search.trials import Trials

_NEAR = 1e-6  # of an excess: below that no separate cause remains


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallbacks:
    """The runs of one round's fallbacks.

    `tested`: the remaining excess by slug, kept up to date; `taken`: proposals whose
    fixes are in force; `before`: the run's excess. `are_for_all`: fallbacks of
    proposals with evidence are tried too, though they repair more than their own cause.
    """

    trials: Trials
    tested: dict[str, float]
    taken: list[Proposal]
    before: float
    are_for_all: bool

    def or_narrow(self, proposal: Proposal) -> Proposal:
        """Returns the first narrow fallback with an equal run, else the proposal.

        There is evidence for it; without evidence it would be a last resort.
        """
        if proposal.last_resort or proposal.speculative or proposal.needs_no_proof:
            return proposal
        other = proposal.fallback
        while other is not None and not other.is_wide and not other.last_resort:
            if self._left(other) <= 1:
                return other
            other = other.fallback
        return proposal

    def or_any(self, proposal: Proposal) -> Proposal:
        """Returns the first of the proposal and its fallbacks that makes the run equal.

        With several causes none does: then the first that changes the excess, if any.
        """
        # A proposal that needs no proof, or is nothing without one, has no other
        # attempt.
        is_last = proposal.needs_no_proof or proposal.speculative
        left, before = self.tested.get(proposal.slug, math.inf), self.before
        # Rounding remains, for example of a loss in float32: another attempt may have
        # none.
        is_near = 1 < left < _NEAR * before
        if left <= 1 or not (self.are_for_all or is_last or is_near):
            return proposal
        other, changing = proposal.fallback, None
        is_mended = any(excess <= 1 for excess in self.tested.values())
        while other is not None and not (other.last_resort > 1 and is_mended):
            excess = self._left(other)
            if excess <= 1:
                return other
            if changing is None and excess < before and changes_nothing(left, before):
                changing = other, excess
            other = other.fallback
        if changing is None:
            return proposal
        proposal, self.tested[proposal.slug] = changing
        return proposal

    def _left(self, other: Proposal) -> float:
        """Returns the excess left by a fallback; notes it if that is nothing."""
        excess = self.trials.of([other], self.taken)[other.slug]
        if excess <= 1:
            self.tested[other.slug] = excess
        return excess
