"""The causes of a sharded script that diverges, found where its parameters are whole.

Probes and interventions work on whole parameters, and a rank of `fully_shard` has
parts. So the script is checked once more with DistributedDataParallel in place of
`fully_shard`, which averages gradients alike. If it differs by the same numbers, its
causes are those of the sharded run; if not, the cause is in what the shards are used
for, and unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ddpcheck.diagnose.facts import text
from ddpcheck.report.data import JUDGED, Finding, Quantity, Report, Run

# Of the worst excess of two checks of the same difference: rounding, amplified.
_ALIKE = 1e-2
_FOUND = (
    "found with whole parameters and DistributedDataParallel in place of "
    "fully_shard: the ranks differ by the same numbers"
)
_DISAGREE = (
    "the ranks disagree, so what differs is not sharded: a parameter or buffer in no "
    "module that fully_shard was called with"
)
_UNKNOWN = "the cause is unknown; it is in what is done with sharded parameters"


def explained(report: Report, whole: Callable[[], Report | None]) -> Report:
    """Returns the report on a sharded script, with the causes of its divergence.

    Args:
        report: on the script, without findings.
        whole: checks and diagnoses it with whole parameters; None where it fails so.
    """
    divergent = [i for i, run in enumerate(report.runs) if run.verdict == "divergent"]
    if not divergent:
        return report
    other = whole()
    if other is not None and _are_alike(report.runs, other.runs):
        found = tuple(
            dataclasses.replace(f, facts=(*f.facts, _FOUND)) for f in other.findings
        )
        return dataclasses.replace(
            report,
            verdict=other.verdict,
            exit_code=other.exit_code,
            findings=found,
            warnings=tuple(dict.fromkeys((*report.warnings, *other.warnings))),
        )
    found = tuple(_unknown(report.runs[index], index, other) for index in divergent)
    return dataclasses.replace(report, findings=found)


def _are_alike(runs: tuple[Run, ...], others: tuple[Run, ...]) -> bool:
    return len(runs) == len(others) and all(
        _is_alike(getattr(run, name), getattr(other, name))
        for run, other in zip(runs, others, strict=True)
        for name in JUDGED
    )


def _is_alike(one: Quantity, other: Quantity) -> bool:
    """Returns whether a quantity differs as much in two checks, or in neither."""
    if not (one.mismatched and other.mismatched):
        return one.mismatched == other.mismatched
    if one.worst is None or other.worst is None:
        return False
    excess = one.worst.excess, other.worst.excess
    return abs(excess[0] - excess[1]) <= _ALIKE * max(excess)


def _unknown(run: Run, index: int, other: Report | None) -> Finding:
    facts = [f"rank {fault.rank}: {fault.summary}" for fault in run.faults[:1]]
    facts += text.worst_of(run)
    factor = _factor(run.gradients)
    if factor is not None:
        facts.append(f"every gradient is {text.number(factor)} times the single one")
    if not run.ranks_agree:
        facts.append(_DISAGREE)
    if other is None:
        facts.append("with whole parameters the script fails, so no link was probed")
    else:
        equal = other.verdict == "equivalent"
        how = "equal" if equal else "differ by other numbers from"
        facts.append(
            f"with whole parameters and DistributedDataParallel in place of "
            f"fully_shard the ranks {how} the single process"
        )
    return Finding(
        slug="unknown",
        link="reduce" if run.gradients.mismatched else "update",
        runs=(index,),
        summary=_UNKNOWN,
        facts=tuple(facts),
    )


def _factor(gradients: Quantity) -> float | None:
    """Returns the one factor of the first wrong gradients, None if there is none."""
    first = min((row.step for row in gradients.tensors), default=0)
    ratios = [row.ratio for row in gradients.tensors if row.step == first]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known or len(known) < len(ratios):
        return None
    return known[0] if max(known) - min(known) <= _ALIKE * abs(known[0]) else None
