"""The pictures of a report: which numbers are drawn, and each as inline SVG.

What draws is a function of numbers; the page's CSS sets the colours.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Finding, Ratios, Report, Run
from ddpcheck.report.render import numbers, status, wording

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
    return draw_before_after(key, fix.excess_before, fix.excess_after)


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
    return [Picture(svg=draw_modules(key, known), caption=caption)]


def _module(item: object) -> Module | None:
    """Returns None for evidence that is no module: a picture never breaks a report."""
    if not isinstance(item, dict) or (size := _float(item.get("rel_diff"))) is None:
        return None
    diverges = bool(item.get("diverges"))
    return Module(name=str(item.get("name")), rel_diff=size, diverges=diverges)


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
    svg = draw_ratios(key, list(zip(labels, found, strict=True)), expected, what)
    where = "rank and micro-batch (#)" if places else what
    caption = (
        f"Loss gradient of each {where} over the reference's ({finding.slug}); "
        f"{numbers.number(expected)} on every {what} is right."
    )
    return [Picture(svg=svg, caption=caption)]


def _places(evidence: Ratios, count: int) -> list[str]:
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
            svg=draw_growth(f"growth-{index}", found),
            caption=f"Worst excess at each step, {labels[index]}."
            + (_more(drawn) if place == _MAX_GROWTHS - 1 else ""),
        )
        for place, (index, found) in enumerate(drawn[:_MAX_GROWTHS])
    ]


def _more(drawn: Sequence[Any]) -> str:
    """Returns the note on runs without a picture."""
    left = len(drawn) - _MAX_GROWTHS
    return f" {numbers.counted(left, 'more run')}: report.json." if left > 0 else ""


def _series(run: Run) -> list[Series]:
    return [
        Series(label=status.KIND_WORDS[kind], style=style, values=values)
        for style, kind in enumerate(status.KINDS)
        if (values := status.quantity(run, kind).excess_by_step)
    ]


WIDTH = 360
_CHARACTER = 6.7  # width of an 11 px monospace character
_ROW = 22
_MAX_ROWS = 24
_BEYOND = 26  # room for zero, or for infinity, at the end of a log axis
_MAX_DECADES = 24  # a log axis longer than this is cut at its lower end


_Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One module's output against the reference's, in call order."""

    name: str
    rel_diff: float
    diverges: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a growth picture: a value per step."""

    label: str
    style: int  # which colour and marker, the same in every picture
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogAxis:
    """Maps values to `left`..`right` (or bottom..top) by their logarithm.

    Zero, and infinity with NaN, lie beyond the decades, at ticks of their own.
    """

    low: int  # exponents of ten
    high: int
    left: float
    right: float
    start: float  # where 10**low is
    end: float

    def at(self, value: float) -> float:
        """Returns the position of a value."""
        if value <= 0:
            return self.left
        if not math.isfinite(value):
            return self.right
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Returns positions and labels: at most `most` decades, zero, infinity."""
        step = max(1, math.ceil((self.high - self.low + 1) / most))
        exponents = range(self.low, self.high + 1, step)
        found = [(self.at(10.0**exponent), f"1e{exponent}") for exponent in exponents]
        zero = [(self.left, "0")] if self.start != self.left else []
        above = [(self.right, "inf")] if self.end != self.right else []
        return [*zero, *found, *above]


def _log_axis(values: Sequence[float], *, left: float, right: float) -> _LogAxis:
    known = [value for value in values if value > 0 and math.isfinite(value)]
    low = math.floor(math.log10(min(known, default=1)))
    high = max(math.ceil(math.log10(max(known, default=1))), low + 1)
    pad = math.copysign(_BEYOND, right - left)
    zero = any(value <= 0 for value in values)
    above = not all(map(math.isfinite, values))
    return _LogAxis(
        low=max(low, high - _MAX_DECADES),
        high=high,
        left=left,
        right=right,
        start=left + pad * zero,
        end=right - pad * above,
    )


def draw_before_after(key: str, before: float, after: float) -> str:
    """Returns both excesses as bars that leave the tolerance line at 1.

    A bar to the right is above tolerance, one to the left below it.
    """
    svg = _svg(
        key,
        74,
        "Excess before and after the fix",
        f"Before {numbers.excess(before)}, after {numbers.excess(after)}; "
        "1 is the tolerance. Logarithmic scale.",
    )
    axis = _log_axis([before, after, 1e-3, 1e3], left=62, right=WIDTH - 74)
    _line(svg, "threshold", (axis.at(1), 8), (axis.at(1), 52))
    _text(svg, "tick mid", (axis.at(1), 66), "tolerance 1")
    for top, label, value in ((8, "before", before), (32, "after", after)):
        _text(svg, "label end", (54, top + 13), label)
        start, end = sorted((axis.at(1), axis.at(value)))
        tone = "ok" if value <= 1 else "bad"
        _rect(svg, tone, (start, top), (max(2.0, end - start), 18))
        _text(svg, f"value {tone}", (end + 6, top + 13), numbers.excess(value))
    return _string(svg)


def draw_modules(key: str, found: Sequence[Module]) -> str:
    """Returns each module's rel diff in call order; the first that diverges is marked.

    A long network is cut to the part around that module.
    """
    first = next((i for i, module in enumerate(found) if module.diverges), None)
    start = max(0, min((first or 0) - 8, len(found) - _MAX_ROWS))
    shown = found[start : start + _MAX_ROWS]
    svg = _svg(
        key,
        _ROW * len(shown) + 40,
        "Where along the network the difference starts",
        _modules_desc(found, first),
    )
    values = [module.rel_diff for module in shown]
    axis = _log_axis([*values, 1e-3], left=152, right=WIDTH - 66)
    bottom = _ROW * len(shown) + 6
    _log_ticks(svg, axis, 4, bottom)
    for row, module in enumerate(shown):
        _module_row(svg, axis, row, module, is_first=start + row == first)
    _text(svg, "tick", (4, bottom + 28), _shown_note(len(shown), len(found)))
    return _string(svg)


def _modules_desc(found: Sequence[Module], first: int | None) -> str:
    called = numbers.counted(len(found), "module")
    if first is None:
        return f"None of {called} diverges. Relative difference, logarithmic scale."
    size = numbers.number(found[first].rel_diff)
    return (
        f"Of {called} in call order, number {first + 1}, {found[first].name}, is the "
        f"first that diverges: relative difference {size}. Logarithmic scale."
    )


def _shown_note(shown: int, total: int) -> str:
    note = "relative difference, call order"
    return note if shown == total else f"{note}; {shown} of {total} modules"


def _module_row(
    svg: ET.Element, axis: _LogAxis, row: int, module: Module, *, is_first: bool
) -> None:
    middle = row * _ROW + 15
    tone = "bad" if module.diverges else "ok"
    if is_first:
        _rect(svg, "mark", (0, middle - 11), (WIDTH, _ROW))
    _text(svg, "name end", (142, middle + 4), _tail(module.name, 140), full=module.name)
    position = axis.at(module.rel_diff)
    _line(svg, f"stem {tone}", (axis.left, middle), (position, middle))
    _marker(svg, tone, (position, middle), "square" if module.diverges else "circle")
    text = numbers.number(module.rel_diff)
    _text(svg, f"value {tone}", (WIDTH - 56, middle + 4), text)


def draw_ratios(
    key: str, found: Sequence[tuple[str, float]], expected: float, what: str = "rank"
) -> str:
    """Returns one labelled bar from zero to its ratio each, and a line at the expected.

    `what` each of them is: a rank, a micro-batch.
    """
    shown = found[:_MAX_ROWS]
    listed = ", ".join(f"{label}: {numbers.number(value)}" for label, value in shown)
    svg = _svg(
        key,
        _ROW * len(shown) + 38,
        f"Loss gradient of each {what} over the reference's",
        f"{listed}. Expected: {numbers.number(expected)}.",
    )
    left = 10 + _CHARACTER * max(len(label) for label, _ in shown)
    values = [value for _, value in shown]
    at = _linear_axis([*values, expected, 0.0], left=left + 10, right=WIDTH - 70)
    for row, (label, value) in enumerate(shown):
        _text(svg, "label end", (left, row * _ROW + 18), label)
        _ratio(svg, at, row, value)
    bottom = _ROW * len(shown) + 6
    if math.isfinite(expected):
        _line(svg, "threshold", (at(expected), 0), (at(expected), bottom))
        text = f"expected {numbers.number(expected)}"
        _text(svg, "tick mid", (at(expected), bottom + 16), text)
    if len(shown) < len(found):
        note = f"{len(shown)} of {numbers.counted(len(found), what)}"
        _text(svg, "tick", (0, bottom + 28), note)
    return _string(svg)


def _linear_axis(
    values: Sequence[float], *, left: float, right: float
) -> Callable[[float], float]:
    known = [value for value in values if math.isfinite(value)]
    low = min(known)
    scale = (right - left) / ((max(known) - low) or 1.0)
    return lambda value: left + (value - low) * scale if math.isfinite(value) else left


def _ratio(
    svg: ET.Element, at: Callable[[float], float], row: int, value: float
) -> None:
    top = row * _ROW + 6
    start, end = sorted((at(0.0), at(value)))
    if math.isfinite(value):
        _rect(svg, "plain", (start, top), (max(1.0, end - start), 16))
    _text(svg, "value", (end + 6, top + 12), numbers.number(value))


def draw_growth(key: str, found: Sequence[Series]) -> str:
    """Returns the excess of each step, one line per quantity, log axis, tolerance 1."""
    values = [value for series in found for value in series.values]
    svg = _svg(key, 200, "Excess at each step", _growth_desc(found))
    axis = _log_axis([*values, 1e-1, 1e1], left=164, right=14)
    left, right = 50.0, WIDTH - 100.0
    for at, label in axis.ticks(5):
        _line(svg, "grid", (left, at), (right, at))
        _text(svg, "tick end", (left - 6, at + 4), label)
    _line(svg, "threshold", (left, axis.at(1)), (right, axis.at(1)))
    _text(svg, "tick", (left + 4, axis.at(1) - 4), "tolerance 1")
    steps = max(len(series.values) for series in found)
    across = [left + (right - left) * (i + 0.5) / steps for i in range(steps)]
    for step in range(0, steps, max(1, math.ceil(steps / 8))):
        label = str(step + 1) if step else "step 1"
        _text(svg, "tick mid", (across[step], 182), label)
    _growth_lines(svg, axis, across, found)
    _growth_legend(svg, axis, found)
    return _string(svg)


def _growth_desc(found: Sequence[Series]) -> str:
    lines = [
        f"{one.label} {', '.join(numbers.excess(value) for value in one.values)}"
        for one in found
    ]
    return f"{'; '.join(lines)}. 1 is the tolerance. Logarithmic scale."


_SHAPES = ("circle", "square", "triangle", "diamond", "ring")


def _growth_lines(
    svg: ET.Element, axis: _LogAxis, across: list[float], found: Sequence[Series]
) -> None:
    for one in found:
        # A run may have stopped before the others' last step.
        known = zip(across, one.values, strict=False)
        points = [(x, axis.at(value)) for x, value in known]
        _polyline(svg, f"series s{one.style}", points)
        for x, y in points:
            _marker(svg, f"s{one.style}", (x, y), _SHAPES[one.style])


def _growth_legend(svg: ET.Element, axis: _LogAxis, found: Sequence[Series]) -> None:
    """Writes a label at the end of each line, moved apart if lines end together."""
    lowest = 0.0
    for one in sorted(found, key=lambda series: axis.at(series.values[-1])):
        y = max(axis.at(one.values[-1]), lowest)
        lowest = y + 15
        _marker(svg, f"s{one.style}", (WIDTH - 88, y), _SHAPES[one.style])
        _text(svg, "label", (WIDTH - 79, y + 4), one.label)


def _svg(key: str, height: float, title: str, desc: str) -> ET.Element:
    svg = ET.Element("svg")
    svg.set("class", "chart")
    svg.set("viewBox", f"0 0 {WIDTH} {_short(height)}")
    svg.set("role", "img")
    svg.set("aria-labelledby", f"{key}-title {key}-desc")
    for tag, text in (("title", title), ("desc", desc)):
        child = ET.SubElement(svg, tag, id=f"{key}-{tag}")
        child.text = visible(text)
    return svg


def _log_ticks(svg: ET.Element, axis: _LogAxis, top: float, bottom: float) -> None:
    for at, label in axis.ticks(4):
        _line(svg, "grid", (at, top), (at, bottom))
        _text(svg, "tick mid", (at, bottom + 12), label)


def _line(svg: ET.Element, style: str, start: _Point, end: _Point) -> None:
    ends = {"x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]}
    _shape(svg, "line", style, **{key: _short(value) for key, value in ends.items()})


def _rect(svg: ET.Element, style: str, corner: _Point, size: _Point) -> None:
    box = {"x": corner[0], "y": corner[1], "width": size[0], "height": size[1]}
    _shape(svg, "rect", style, **{key: _short(value) for key, value in box.items()})


def _polyline(svg: ET.Element, style: str, points: list[_Point]) -> None:
    joined = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
    _shape(svg, "polyline", style, points=joined)


_OUTLINES = {
    "square": ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    "triangle": ((0, -5), (5, 4), (-5, 4)),
    "diamond": ((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
}


def _marker(svg: ET.Element, style: str, at: _Point, shape: str) -> None:
    x, y = at
    if shape in _OUTLINES:
        outline = [f"{_short(x + dx)},{_short(y + dy)}" for dx, dy in _OUTLINES[shape]]
        _shape(svg, "polygon", f"dot {style}", points=" ".join(outline))
        return
    style = f"dot {style} hollow" if shape == "ring" else f"dot {style}"
    _shape(svg, "circle", style, cx=_short(x), cy=_short(y), r="4")


def _shape(svg: ET.Element, tag: str, style: str, **attributes: str) -> None:
    ET.SubElement(svg, tag, {"class": style, **attributes})


def _text(
    svg: ET.Element, style: str, at: _Point, text: str, *, full: str = ""
) -> None:
    place = {"class": style, "x": _short(at[0]), "y": _short(at[1])}
    element = ET.SubElement(svg, "text", place)
    element.text = visible(text)
    if full and full != text:
        ET.SubElement(element, "title").text = visible(full)


def _tail(name: str, width: float) -> str:
    """Returns the end of a name that fits `width`: its most specific part."""
    flat = " ".join(visible(name).split())
    room = int(width / _CHARACTER)
    return flat if len(flat) <= room else ".." + flat[len(flat) - room + 2 :]


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _string(svg: ET.Element) -> str:
    # Not "xml": an HTML parser reads <title /> as an open tag.
    return ET.tostring(
        svg, encoding="unicode", method="xml", short_empty_elements=False
    )
