"""The pictures of a report: which of its numbers are drawn, and how each is titled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddpcheck.report.data import Finding, Report, Run
from ddpcheck.report.render import charts, numbers, status, wording

_MAX_GROWTHS = 4
_CLOSE = 0.02  # of a fit's residual: no rounding, bfloat16's included, is larger


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An SVG and the sentence beneath it."""

    svg: str
    caption: str


def before_and_after(finding: Finding, key: str) -> str:
    """Returns the picture of a fix, "" where it was not run."""
    fix = finding.fix
    if fix is None or fix.excess_before is None or fix.excess_after is None:
        return ""
    return charts.before_after(key, fix.excess_before, fix.excess_after)


def pictures(report: Report) -> list[Picture]:
    """Returns where the difference starts, each rank's ratio, growth over steps.

    Of runs that differ: that rounding stays rounding needs no picture.
    """
    found: list[Picture] = []
    for index, finding in enumerate(report.findings):
        found += _modules(finding, f"modules-{index}")
        found += _ratios(finding, f"ratios-{index}")
    return found + _growths(report)


def _modules(finding: Finding, key: str) -> list[Picture]:
    listed = finding.evidence.get("modules")
    modules = (
        [_module(item) for item in listed] if isinstance(listed, list | tuple) else []
    )
    known = [module for module in modules if module]
    if not any(module.diverges for module in known):
        return []  # it starts in none of them
    caption = f"Where the difference starts, module by module ({finding.slug})."
    return [Picture(svg=charts.modules(key, known), caption=caption)]


def _module(item: object) -> charts.Module | None:
    """Returns None for evidence that is no module: a picture never breaks a report."""
    if not isinstance(item, dict) or (size := _float(item.get("rel_diff"))) is None:
        return None
    diverges = bool(item.get("diverges"))
    return charts.Module(name=str(item.get("name")), rel_diff=size, diverges=diverges)


def _ratios(finding: Finding, key: str) -> list[Picture]:
    evidence = finding.evidence.get("ratios")
    if not isinstance(evidence, dict):
        return []
    listed, expected = evidence.get("ranks"), _float(evidence.get("expected"))
    if not isinstance(listed, list | tuple) or not listed or expected is None:
        return []
    if any((_float(r) or 0.0) > _CLOSE for r in _list(evidence.get("residuals"))):
        return []  # no factor is the rank's: reports of earlier versions have these
    found = [math.nan if (r := _float(value)) is None else r for value in listed]
    places = _places(evidence, len(found))
    labels = places or [f"rank {rank}" for rank in range(len(found))]
    what = "micro-batch" if places else "rank"
    svg = charts.ratios(key, list(zip(labels, found, strict=True)), expected, what)
    where = "rank and micro-batch (#)" if places else what
    caption = (
        f"Loss gradient of each {where} over the reference's ({finding.slug}); "
        f"{numbers.number(expected)} on every {what} is right."
    )
    return [Picture(svg=svg, caption=caption)]


def _places(evidence: dict[str, object], count: int) -> list[str]:
    """Returns the names of micro-batches, none where the ratios are those of ranks."""
    places = [_list(place) for place in _list(evidence.get("places"))]
    named = [
        f"rank {place[0]} #{place[1] + 1}"
        for place in places
        if [type(part) for part in place] == [int, int]
    ]
    return named if len(named) == count else []


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _float(value: object) -> float | None:
    """Returns a number of the evidence, where JSON made NaN and infinities strings."""
    if not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _growths(report: Report) -> list[Picture]:
    state = [status.run_status(report, i) for i in range(len(report.runs))]
    indices = [i for i, one in enumerate(state) if one == "divergent"]
    indices += [i for i, one in enumerate(state) if one == "accepted"]
    drawn = [(i, found) for i in indices if (found := _series(report.runs[i]))]
    labels = wording.run_labels(report)
    return [
        Picture(
            svg=charts.growth(f"growth-{index}", found),
            caption=f"Worst excess at each step, {labels[index]}."
            + (_more(drawn) if place == _MAX_GROWTHS - 1 else ""),
        )
        for place, (index, found) in enumerate(drawn[:_MAX_GROWTHS])
    ]


def _more(drawn: Sequence[Any]) -> str:
    """Returns the note on runs without a picture."""
    left = len(drawn) - _MAX_GROWTHS
    return f" {numbers.counted(left, 'more run')}: report.json." if left > 0 else ""


def _series(run: Run) -> list[charts.Series]:
    return [
        charts.Series(label=status.KIND_WORDS[kind], style=style, values=values)
        for style, kind in enumerate(status.KINDS)
        if (values := status.quantity(run, kind).excess_by_step)
    ]
