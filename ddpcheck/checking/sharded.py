"""The causes of a sharded script that diverges, found where its parameters are whole.

Probes and interventions work on whole parameters, and a rank of `fully_shard` has
parts. So the script is checked once more with DistributedDataParallel in place of
`fully_shard`, which averages gradients alike. If it differs by the same numbers, its
causes are those of the sharded run; if not, the cause is in what the shards are used
for, and unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpcheck.diagnose.facts import text
from ddpcheck.report.data import (
    JUDGED,
    Difference,
    Finding,
    Fix,
    Quantity,
    Report,
    Run,
)
from ddpcheck.run.script.events import Built, Updated

# Of the worst excess of two checks of the same difference: rounding, amplified.
_ALIKE = 1e-2
_SAME = 1e-5  # relative: factors of this difference are one
_FOUND = (
    "found with whole parameters and DistributedDataParallel in place of "
    "fully_shard: the ranks differ by the same numbers"
)
_DISAGREE = (
    "the ranks disagree, so what differs is not sharded: a parameter or buffer in no "
    "module that fully_shard was called with"
)
# Slugs that only scripts have which shard their model.
CLIP, FACTOR = SLUGS = ("sync/clip-norm-local", "fsdp/divide-factor")
_UNKNOWN = "the cause is unknown; it is in what is done with sharded parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the recordings of a sharded script show of its shards.

    `divided`: the modules that are sharded, and the factors by which the script has
    their gradients divided, or None. `scales`: for each update that is recorded, what
    each rank multiplies its parts of gradients by, or None.
    """

    divided: dict[str, float | None] = field(default_factory=dict)
    scales: tuple[tuple[float | None, ...], ...] = ()


def shown(ranks: Sequence[Sequence[Any]]) -> Shown:
    """Returns what the events of the ranks show of their shards."""
    built = [event for event in ranks[0] if isinstance(event, Built)]
    each = [[e.scale for e in own if isinstance(e, Updated)] for own in ranks]
    return Shown(
        divided=dict(built[0].divided) if built else {},
        scales=tuple(zip(*each, strict=False)),
    )


def explained(
    report: Report, whole: Callable[[], Report | None], seen: Shown
) -> Report:
    """Returns the report on a sharded script, with the causes of its divergence.

    Args:
        report: on the script, without findings.
        whole: checks and diagnoses it with whole parameters; None where it fails so.
        seen: of the shards, in the script's own training.
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
    found = tuple(
        _of_factors(report.runs[index], index, seen)
        or _of_clip(report.runs[index], index, other, seen)
        or _unknown(report.runs[index], index, other)
        for index in divergent
    )
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


def _of_clip(run: Run, index: int, other: Report | None, seen: Shown) -> Finding | None:
    """Returns the finding where each rank scales its parts by a factor of its own.

    With whole parameters, all ranks have the same norm, and the runs are equal.
    """
    if other is None or other.verdict != "equivalent":
        return None
    for step, scales in enumerate(seen.scales):
        known = [scale for scale in scales if scale is not None]
        if len(known) < len(scales) or _is_one(known):
            continue
        return Finding(
            slug=CLIP,
            link="update",
            runs=(index,),
            summary="each rank clips its parts of the gradients by the norm of these "
            "parts alone",
            facts=(
                f"before update {step + 1} the ranks multiply their parts of all "
                f"gradients by {text.listed(known)}",
            ),
            proven_runs=(index,),
            fix=Fix(
                verified=True,
                proof="located",
                intervention="with whole parameters, of which all ranks have the same "
                "norm, the runs are equal",
                excess_before=_excess((run,)),
                excess_after=_excess(other.runs),
                text="take the norm over the parts of all ranks",
                code="square = sum(p.grad.to_local().square().sum() for p in "
                "parameters)\ndist.all_reduce(square)\nnorm = square.sqrt()",
            ),
        )
    return None


def _excess(runs: Iterable[Run]) -> float | None:
    """Returns the largest excess, None where nothing was compared."""
    judged = (getattr(run, name) for run in runs for name in JUDGED)
    return max((q.worst.excess for q in judged if q.worst), default=None)


def _of_factors(run: Run, index: int, seen: Shown) -> Finding | None:
    """Returns the finding where some sharded modules have a divide factor set.

    And the gradients of the others, or of these alone, are wrong by one factor.
    """
    names = {name for name, factor in seen.divided.items() if factor is not None}
    others = seen.divided.keys() - names
    factor, first = _factor(run.gradients), _first_rows(run.gradients)
    owners = {_owner(row.name, seen.divided) for row in first}
    is_of_some = owners <= names or owners <= others
    if factor is None or not (names and others and is_of_some):
        return None
    given = {f"{name or 'the root'}: {seen.divided[name]:g}" for name in names}
    return Finding(
        slug=FACTOR,
        link="reduce",
        runs=(index,),
        summary="the divide factor of gradients is set on some modules that are "
        "sharded on their own, and not on all",
        facts=(
            f"set on {text.names(sorted(given))}; not on "
            f"{text.names(sorted(name or 'the root' for name in others))}",
            f"gradients that are {text.number(factor)} times the single-process ones: "
            f"all those of {text.names(sorted(o or 'the root' for o in owners))} that "
            "differ",
        ),
        fix=Fix(
            text="set the factor on every module that fully_shard was called with",
            code="for module in model.modules():\n"
            "    if isinstance(module, FSDPModule):\n"
            "        module.set_gradient_divide_factor(factor)",
        ),
    )


def _owner(parameter: str, modules: Iterable[str]) -> str:
    """Returns the innermost of these modules that has the parameter."""
    inside = [m for m in modules if not m or parameter.startswith(f"{m}.")]
    return max(inside, key=len, default="")


def _is_one(factors: Sequence[float]) -> bool:
    return max(factors) - min(factors) <= _SAME * max(factors)


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
    ratios = [row.ratio for row in _first_rows(gradients)]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known or len(known) < len(ratios):
        return None
    return known[0] if max(known) - min(known) <= _ALIKE * abs(known[0]) else None


def _first_rows(gradients: Quantity) -> list[Difference]:
    """Returns the wrong gradients of the first step that has some."""
    wrong = [row for row in gradients.tensors if row.excess > 1]
    first = min((row.step for row in wrong), default=0)
    return [row for row in wrong if row.step == first]
