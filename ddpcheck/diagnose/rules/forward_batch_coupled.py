"""A module mixes samples."""

from __future__ import annotations

from ddpcheck.diagnose.case import Case, Proposal
from ddpcheck.diagnose.text import module, names, number

SLUG = "forward/batch-coupled"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it for modules whose rows depend on the other rows."""
    calls = [
        m
        for m in case.diverging()
        if not m.is_batch_norm
        and not m.normalises
        and not m.writes_parameters
        and not (m.collectives and m.writes_buffers)
    ]
    if not calls:
        return None
    first = calls[0]
    modules = list(dict.fromkeys(m.name for m in calls))
    return Proposal(
        slug=SLUG,
        link=LINK,
        summary=f"{module(first.name)} ({first.kind}) mixes samples: its output for a "
        "sample depends on which others are in the shard",
        facts=(
            f"{module(first.name)}, fed with the reference's own input, returns other "
            f"rows than in one process: relative difference {number(first.rel_diff or 0)}",
            f"modules that do: {names(module(n) for n in modules)}",
        ),
        fix="compute the statistic over the global batch with a collective that carries "
        "gradients, or per sample (or per group of fixed size)",
        code="x = torch.cat(torch.distributed.nn.functional.all_gather(x))",
        fixes=tuple(f"module.global:{n}" for n in modules),
        module=first.name,
    )
