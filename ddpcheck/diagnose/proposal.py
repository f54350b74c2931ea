"""What a rule says: a candidate cause, and the run that would prove it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A rule's candidate cause, and the intervention that would prove it.

    `fixes` are names of run/fixes/apply.py; `by_hand` verifies with the gradients
    averaged by hand instead of by DDP. `facts` are sentences with numbers, cause-
    free. A speculative one counts for nothing unless its run verifies it. With
    `or_by_hand` averaging by hand verifies it too: what is found is a fact about
    the wrapper, which user code may bring about again after `fixes` mended it.
    Where `control` is given and does not mend it as well, the cause is another one.
    `fallback` is the same cause less precisely, for where `fixes` do not mend it.
    What a `last_resort` does would mend many causes: it comes after all others.
    What is `benign` leaves nothing to mend in the training itself.
    """

    slug: str
    link: str
    summary: str
    facts: tuple[str, ...]
    fix: str
    code: str = ""
    safe: bool = True
    fixes: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    by_hand: bool = False
    noise: str | None = None
    module: str | None = None
    speculative: bool = False
    or_by_hand: bool = False
    evidence: dict[str, Any] = field(default_factory=dict)
    fallback: Proposal | None = None
    last_resort: bool = False
    stands: bool = False
    is_attempt: bool = False
    benign: bool = False


def replaced(proposal: Proposal, **changes: Any) -> Proposal:
    """Returns the proposal with some fields changed."""
    return replace(proposal, **changes)
