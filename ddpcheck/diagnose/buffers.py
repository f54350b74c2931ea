"""Which modules' buffers differ after a step that was otherwise right."""

from __future__ import annotations

from dataclasses import dataclass

from ddpcheck.diagnose.case import Case
from ddpcheck.diagnose.text import names, number


@dataclass(frozen=True, slots=True)
class Owners:
    """The modules, and the facts about their buffers."""

    modules: tuple[str, ...]
    facts: tuple[str, ...]


def diverging_buffers(case: Case, *, batch_norm: bool) -> Owners | None:
    """Returns modules whose buffers differ before their outputs do.

    `batch_norm` asks for modules that behave as a batch norm, or for all others.
    """
    if case.diverging() or case.first_broken("buffers") != 0:
        return None
    if case.step is None and case.first_broken("gradients") == 0:
        return None  # whether their outputs differ too is not known
    kinds = {m.name: m.is_batch_norm or m.normalises for m in case.modules()}
    rows = [
        t
        for q in case.step_quantity("buffers", 0)
        for t in q.tensors
        if t.excess * case.outcome.spec.rtol > case.rtol
    ]
    rows = [
        t for t in rows if kinds.get(t.name.rpartition(".")[0], False) == batch_norm
    ]
    if not rows:
        return None
    worst = max(rows, key=lambda t: t.rel_diff)
    modules = tuple(dict.fromkeys(t.name.rpartition(".")[0] for t in rows))
    later = case.first_broken("gradients")
    facts = [
        f"after the first step {worst.name} differs from one process by "
        f"{number(worst.rel_diff)} relative, on rank {worst.rank}",
        f"modules whose buffers differ: {names(modules)}; their outputs in the first "
        "step are right",
    ]
    facts.append(
        "gradients are right in all steps"
        if later is None
        else f"gradients differ from step {later + 1} on: the buffer is read in forward"
    )
    return Owners(modules, tuple(facts))
