"""A report as one HTML file: offline, without scripts, the same bytes every time.

The `View` classes are what the templates read: a report's parts in their order, not yet
marked up. A rule's page becomes plain blocks.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from ddpcheck.errors.problem import visible
from ddpcheck.report.data import Difference, Finding, Report, Run
from ddpcheck.report.pages.pages import HEADINGS
from ddpcheck.report.render import divergence, numbers, pictures, status, wording
from ddpcheck.report.render.divergence import Located

_RANK_COLUMNS = (
    "rank",
    "step",
    "outcome",
    "frame",
    "collective",
    "backwards",
    "stderr",
)
MAX_TENSORS = 200  # about 100 KB of table; report.json has the rest
OPEN_TENSORS = 15
_NO_PAGES: Mapping[str, str] = {}


def to_html(report: Report, *, pages: Mapping[str, str] = _NO_PAGES) -> str:
    """Returns the report as a complete HTML document.

    `pages` maps a rule's slug to its page; findings without one show none.
    """
    template = _environment().get_template("report.html.jinja")
    return template.render(_context(report, pages)).rstrip("\n") + "\n"


def _context(report: Report, pages: Mapping[str, str]) -> dict[str, Any]:
    table = _tensor_table(report)
    return {
        "report": report,
        "status": status.report_status(report),
        "sentence": wording.verdict_sentence(report),
        "formula": wording.EXCESS_FORMULA,
        "setup": _setup(report),
        "parts": report.parts,
        "facts": wording.facts(report),
        "extremes": _extremes(report, table),
        "findings": _findings(report, pages),
        "columns": [status.KIND_WORDS[kind] for kind in status.shown_kinds(report)],
        "runs": _runs(report, table),
        "not_compared": status.not_compared(report),
        "pictures": pictures.pictures(report),
        "unchecked": wording.unchecked(report),
        "tensors": table,
        "open_tensors": OPEN_TENSORS,
        "provenance": _provenance(report),
    }


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ddpcheck.report.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters.update(
        number=numbers.number,
        excess=numbers.excess,
        count=numbers.count,
        counted=numbers.counted,
        spans=spans,
        fault_line=wording.fault_line,
        safety=wording.safety,
        code_title=wording.code_title,
    )
    environment.globals["words"] = status.WORDS
    return environment


def _visible(value: object) -> object:
    """Writes control characters out; markup that is already safe is unchanged."""
    return visible(value) if type(value) is str else value


@dataclass(frozen=True, slots=True, kw_only=True)
class _CellView:
    """One quantity of one run: the worst excess, its counts, and a link to its row.

    `why` is the reason for a missing number, "" if there is a number or no reason.
    """

    text: str
    state: status.QuantityState
    note: str
    href: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunView:
    """One row of the matrix."""

    index: int
    run: Run
    label: str
    settings: str
    status: status.Status
    why: str
    agreement: str
    cells: tuple[_CellView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorView:
    """One row of the tensor table."""

    anchor: str
    run: int
    label: str
    kind: str
    row: Difference
    differs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExtremeView:
    """The first or the worst divergence."""

    title: str
    name: str
    where: str
    size: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _FindingView:
    """One finding with its picture and its rule's page."""

    index: int
    finding: Finding
    runs: tuple[tuple[int, str], ...]
    proof: str
    chart: str
    page: tuple[Block, ...]
    ranks: tuple[dict[str, str], ...]  # what every rank did last, "" for unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableView:
    """The tensor table: what is listed, and how many are not."""

    rows: tuple[_TensorView, ...]
    total: int


def _tensor_table(report: Report) -> _TableView:
    """Returns the worst `MAX_TENSORS` tensors of all runs, worst first."""
    labels = wording.run_labels(report)
    found = divergence.rows(report)
    rows = [
        _TensorView(
            anchor=f"tensor-{position}",
            run=located.run,
            label=labels[located.run],
            kind=status.KIND_WORDS[located.kind],
            row=located.difference,
            differs=divergence.differs(located.difference),
        )
        for position, located in enumerate(found[:MAX_TENSORS], start=1)
        if located.difference is not None
    ]
    return _TableView(rows=tuple(rows), total=len(found))


def _runs(report: Report, table: _TableView) -> tuple[_RunView, ...]:
    """Returns the rows of the matrix in the order of the runs."""
    labels, settings = wording.run_labels(report), wording.run_settings(report)
    return tuple(
        _RunView(
            index=index,
            run=run,
            label=labels[index],
            settings=settings[index],
            status=status.run_status(report, index),
            why=status.run_why(report, index),
            agreement=wording.agreement(run),
            cells=tuple(
                _cell(report, index, kind, table) for kind in status.shown_kinds(report)
            ),
        )
        for index, run in enumerate(report.runs)
    )


def _cell(report: Report, index: int, kind: str, table: _TableView) -> _CellView:
    found = status.quantity(report.runs[index], kind)
    state = status.quantity_state(found)
    note = f"{numbers.count(found.compared)} equal"
    if state == "none":
        note = "not compared"
    elif state == "fail":
        differing, total = (
            numbers.count(found.mismatched),
            numbers.count(found.compared),
        )
        note = f"{differing} of {total} differ"
    return _CellView(
        text=status.quantity_text(found),
        state=state,
        note=note,
        href=_href(table, index, kind, found.worst),
        why=status.why_none(report, index, kind) if state == "none" else "",
    )


def _href(table: _TableView, run: int, kind: str, row: Difference | None) -> str:
    """Returns the link to a tensor's row, "" where it is not listed."""
    if row is None:
        return ""
    for view in table.rows:
        same_place = (view.run, view.kind) == (run, status.KIND_WORDS[kind])
        if same_place and divergence.same_tensor(view.row, row):
            return f"#{view.anchor}"
    return ""


def _extremes(report: Report, table: _TableView) -> tuple[_ExtremeView, ...]:
    """Returns the first and the worst divergence, once where they are the same."""
    first, worst = divergence.first(report), divergence.worst(report)
    if first is not None and first == worst:
        return (_extreme(report, table, "First and worst", first),)
    named = (("First", first), ("Worst", worst))
    return tuple(_extreme(report, table, title, at) for title, at in named if at)


def _extreme(
    report: Report, table: _TableView, title: str, located: Located
) -> _ExtremeView:
    label = wording.run_labels(report)[located.run]
    kind = status.KIND_WORDS[located.kind]
    row = located.difference
    place = wording.place(row) if row else wording.step_name(located.step)
    return _ExtremeView(
        title=title,
        name=row.name if row else "(tensor not listed)",
        where=f"{kind}, {label}, {place}",
        size=wording.size(row) if row else "above tolerance",
        href=_href(table, located.run, located.kind, row) if row else "",
    )


def _findings(report: Report, pages: Mapping[str, str]) -> tuple[_FindingView, ...]:
    """Returns the findings in their order, see `in_order`."""
    labels = wording.run_labels(report)
    return tuple(
        _FindingView(
            index=index,
            finding=finding,
            runs=tuple((i, labels[i]) for i in finding.runs if i < len(labels)),
            proof=wording.proof(finding),
            chart=pictures.before_and_after(finding, f"fix-{index}"),
            page=blocks(pages.get(finding.slug, "")),
            ranks=_ranks(finding),
        )
        for index, finding in enumerate(report.findings)
    )


def _ranks(finding: Finding) -> tuple[dict[str, str], ...]:
    """Returns the rows of a fault's table; evidence of another shape is no table."""
    listed = finding.evidence.get("ranks")
    rows = listed if isinstance(listed, list | tuple) else ()
    return tuple(
        {name: _cell_text(row.get(name)) for name in _RANK_COLUMNS}
        for row in rows
        if isinstance(row, dict)
    )


def _cell_text(value: object) -> str:
    return "" if value is None else visible(str(value))


def _setup(report: Report) -> tuple[tuple[str, str], ...]:
    """Returns what was checked against what, as labels and values."""
    target = report.target
    steps = numbers.counted(target.steps, "step")
    rows = (
        ("model", wording.model(report)),
        (
            "reference",
            f"{wording.reference(report)} on the global batch of {target.batch_size}, "
            f"{steps}",
        ),
        ("loss", "" if target.loss == "asis" else target.loss),
        ("optimizer", target.optimizer),
        ("dtype", wording.dtypes(report)),
        ("tolerance", wording.tolerance(report)),
        ("scope", wording.scope(report)),
    )
    return tuple((label, value) for label, value in rows if value)


def _provenance(report: Report) -> tuple[tuple[str, str], ...]:
    """Returns where the numbers come from, as labels and values."""
    floor = report.tolerance.noise_floor
    rows = (
        ("command", report.command),
        ("target", report.target.path),
        ("sha256", report.target.sha256),
        ("dtype", wording.dtypes(report)),
        ("tolerance", wording.tolerance(report)),
        ("noise floor", "" if floor is None else numbers.number(floor)),
        ("duration", f"{numbers.number(report.seconds)} s"),
        *sorted(report.environment.items()),
    )
    return tuple((label, value) for label, value in rows if value)


# Code may have empty lines inside; everything else ends before one.
_BLOCK = re.compile(
    rf"^(?P<heading>{'|'.join(HEADINGS)})$"
    r"|(?P<code>^    .+(?:\n+    .+)*)"
    r"|(?P<list>^- .+(?:\n.+)*)"
    r"|(?P<paragraph>^\S.*(?:\n(?!- ).+)*)",
    re.MULTILINE,
)
_SPAN = re.compile(r"(?P<code>`+)(?P<body>.+?)(?P=code)|(?P<url>https?://[^\s<>()`]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a line: text, code, or a link, which is its own address."""

    kind: Literal["text", "code", "link"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A heading, a paragraph, a block of code, or a list of one paragraph per item."""

    kind: Literal["heading", "paragraph", "code", "list"]
    text: str = ""
    items: tuple[tuple[Span, ...], ...] = ()


def blocks(page: str) -> tuple[Block, ...]:
    """Returns the blocks of a page."""
    return tuple(
        _block(str(m.lastgroup), m[str(m.lastgroup)]) for m in _BLOCK.finditer(page)
    )


def spans(text: str) -> tuple[Span, ...]:
    """Returns the text split into plain text, `code` and addresses.

    >>> [span.kind for span in spans("see `W` at https://example.org/a")]
    ['text', 'code', 'text', 'link']
    """
    found: list[Span] = []
    end = 0
    for match in _SPAN.finditer(text):
        if match.start() > end:
            found.append(Span(kind="text", text=text[end : match.start()]))
        if match["url"]:
            url = match["url"].rstrip(".,;:")
            found.append(Span(kind="link", text=url))
            end = match.start() + len(url)
        else:
            found.append(Span(kind="code", text=match["body"]))
            end = match.end()
    if end < len(text):
        found.append(Span(kind="text", text=text[end:]))
    return tuple(found)


def _block(kind: str, text: str) -> Block:
    if kind == "heading":
        return Block(kind="heading", text=text)
    if kind == "code":
        return Block(kind="code", text=re.sub("^    ", "", text, flags=re.MULTILINE))
    items = text.removeprefix("- ").split("\n- ") if kind == "list" else [text]
    found = tuple(spans(" ".join(item.split())) for item in items)
    return Block(kind="list" if kind == "list" else "paragraph", items=found)
