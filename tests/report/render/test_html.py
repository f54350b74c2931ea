"""The HTML report: well formed, complete by itself, safe, the same every time."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import cast

import pytest

from ddpcheck.report.data import (
    Evidence,
    NotCompared,
    Proof,
    Quantity,
    Report,
    from_json,
    to_json,
)
from ddpcheck.report.render.html import blocks, spans, to_html

from . import sample

VOID = {"meta", "br", "link", "img", "hr", "input", "base"}
LOADING = {"src", "srcset", "data", "action", "poster", "background", "xlink:href"}
PAGES = {"loss/local-normalizer": "Seen.\n\n## Fix\n\nSee https://example.org/x."}
EVERY = pytest.mark.parametrize("report", sample.ALL.values(), ids=sample.ALL)


class Parsed(HTMLParser):
    """Collects ids, links and text, and any tag closed out of order."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        self.ids += [value or "" for key, value in attrs if key == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def headings(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]

    def hrefs(self) -> list[str]:
        return [value for key, value in self.attributes if key == "href"]


def _problems(document: str) -> list[str]:
    """Returns what is wrong with a document; the meta-test below breaks each."""
    parsed = Parsed(document)
    found = [f"</{tag}> out of order" for tag in parsed.wrong + parsed.open]
    found += [f"#{i} twice" for i in set(parsed.ids) if parsed.ids.count(i) > 1]
    for href in parsed.hrefs():
        if href.startswith("#"):
            found += [] if href[1:] in parsed.ids else [f"{href} dangling"]
        elif not href.startswith("https://"):
            found.append(f"{href} is no link")
    found += [f"loads {value}" for key, value in parsed.attributes if key in LOADING]
    found += [f"handler {key}" for key, _ in parsed.attributes if key.startswith("on")]
    forbidden = {"script", "link", "iframe", "img", "object", "embed", "base"}
    found += [f"<{tag}>" for tag in parsed.tags if tag in forbidden]
    if re.search(r"@import|url\(", document):
        found.append("style loads")
    return found


@EVERY
def test_html_has_no_problems(report: Report) -> None:
    assert _problems(to_html(report, pages=PAGES)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "<p><div></p>",
        "<script></script>",
        '<a href="#nowhere">x</a>',
        '<a href="javascript:x">x</a>',
        '<p id="findings"></p>',
        '<img src="https://example.org/x.png">',
        '<p onclick="x">x</p>',
        "<style>@import 'x'</style>",
    ],
)
def test_html_problems_are_seen(wrong: str) -> None:
    document = to_html(sample.divergent()).replace("<main>", f"<main>{wrong}")
    assert _problems(document) != []


@EVERY
def test_html_is_the_same_twice_and_through_json(report: Report) -> None:
    document = to_html(report, pages=PAGES)
    assert to_html(report, pages=PAGES) == document
    assert to_html(from_json(to_json(report)), pages=PAGES) == document


@EVERY
def test_html_is_under_200_kb(report: Report) -> None:
    assert len(to_html(report, pages=PAGES).encode()) < 200_000


@EVERY
def test_html_can_be_written_and_holds_no_control_characters(report: Report) -> None:
    document = to_html(report, pages=PAGES)
    document.encode("utf-8")
    assert all(c.isprintable() or c == "\n" for c in document)


def test_html_sections_come_in_the_order_of_the_style() -> None:
    assert Parsed(to_html(sample.divergent())).headings("h2") == [
        "First and worst divergence",
        "Findings",
        "Warnings about this check",
        "Every run compared with the single-process run",
        "Pictures",
        "Tensors, worst first",
        "Not compared, and why",
        "How to read this",
        "Provenance",
    ]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("divergent", "Divergent"),
        ("equivalent", "Equivalent"),
        ("accepted", "Accepted"),
        ("not-checked", "Not checked"),
        ("nothing-compared", "Not checked"),
        ("without-runs", "Not checked"),
    ],
)
def test_html_shows_its_verdict_in_a_word(name: str, word: str) -> None:
    assert Parsed(to_html(sample.ALL[name])).headings("h1") == [word]


def test_html_of_nothing_compared_has_no_word_of_success() -> None:
    document = to_html(sample.nothing_compared())
    assert "Nothing was compared, so nothing is known about the model." in document
    assert ">equivalent<" not in document


def test_html_shows_counts_cause_fix_and_proof() -> None:
    document = to_html(sample.divergent(), pages=PAGES)
    for text in (
        (
            "Data-parallel training differs from single-process training in 2 of 3 "
            "runs, "
            "with 60 of 216 tensor comparisons above tolerance."
        ),
        "each rank divides by its own mask count, not by the global one",
        "torch.distributed.all_reduce(count)\nreturn W * (error * mask).sum() / count",
        (
            '<p class="soft">Example, not run:</p>\n'
            '<pre tabindex="0"><code>count = mask.sum()'
        ),
        (
            "confirmed by intervention: with each rank&#39;s loss weighted by its "
            "share of the count the runs are equal (excess 4e+13 before, 0.0213 "
            "after); tried instead, the fixes of 3 other causes leave 9.99e+12 or more"
        ),
        "17 of 36 differ",
        '<a href="https://example.org/x" rel="noreferrer">',
        "9f2c" * 16,
    ):
        assert text in document


@pytest.mark.parametrize(
    ("proof", "status"), [("intervention", "equivalent"), ("located", "not-checked")]
)
def test_html_marks_as_passed_what_a_fix_has_mended_alone(
    proof: Proof, status: str
) -> None:
    (finding,) = sample.divergent().findings
    assert finding.fix is not None
    changed = replace(finding, fix=replace(finding.fix, proof=proof))
    document = to_html(replace(sample.divergent(), findings=(changed,)))
    assert f'<p class="proof"><span class="{status}">' in document
    assert ("located, no fix proven: with each rank" in document) == (
        proof == "located"
    )


def test_html_escapes_hostile_names() -> None:
    parsed = Parsed(to_html(sample.hostile()))
    shown = sample.HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
    shown = shown.replace("\ud800", r"\ud800")
    assert ("p", shown) in parsed.texts
    assert "b" not in parsed.tags


def test_html_links_matrix_cells_to_their_tensors() -> None:
    document = to_html(sample.divergent())
    assert '<a href="#tensor-2">4e+13</a>' in document
    row = document[document.index('<tr id="tensor-2">') :]
    assert row.index("head.weight") < row.index("4e+13") < row.index("</tr>")


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"modules": 3},
        {"modules": [{}]},
        {"modules": [{"name": "head", "rel_diff": 1e-16, "diverges": False}]},
        {"ratios": {}},
        {"ratios": {"ranks": []}},
    ],
)
def test_html_without_evidence_leaves_the_picture_out(
    evidence: Evidence,
) -> None:
    finding = replace(sample.local_normalizer(), evidence=evidence)
    document = to_html(replace(sample.divergent(), findings=(finding,)))
    assert 'id="modules-0-title"' not in document
    assert 'id="ratios-0-title"' not in document
    assert 'id="growth-1-title"' in document


def _ratios(**evidence: object) -> str:
    given = cast("Evidence", {"ratios": evidence})
    finding = replace(sample.local_normalizer(), evidence=given)
    return to_html(replace(sample.divergent(), findings=(finding,)))


def test_html_draws_the_ratios_of_micro_batches_with_their_places() -> None:
    places = [[0, 0], [0, 1], [1, 0], [1, 1]]
    document = _ratios(ranks=[1.65, 2.54, 2.21, 1.83], places=places, expected=2)
    assert (
        "rank 0 #1: 1.65, rank 0 #2: 2.54, rank 1 #1: 2.21, rank 1 #2: 1.83. "
        "Expected: 2."
    ) in document
    assert (
        "Loss gradient of each rank and micro-batch (#) over the reference&#39;s "
        "(loss/local-normalizer); 2 on every micro-batch is right."
    ) in document


@pytest.mark.parametrize("places", [3, [3], [["a", 0], [0, 1]], [[0, 0]]])
def test_html_of_strange_places_draws_ranks(places: object) -> None:
    document = _ratios(ranks=[1.5, 3.0], places=places, expected=2)
    assert "rank 0: 1.5, rank 1: 3. Expected: 2." in document


def test_html_draws_no_ratio_that_is_an_average() -> None:
    document = _ratios(ranks=[2.0, 2.0], residuals=[1e-16, 0.3], expected=2)
    assert 'id="ratios-0-title"' not in document


def test_html_of_many_tensors_lists_200_and_counts_the_rest() -> None:
    rows = tuple(
        replace(sample.GRADIENTS_2[0], name=f"p{i}", excess=1e3 + i) for i in range(301)
    )
    run = replace(
        sample.divergent_run(),
        gradients=sample.quantity(rows[::-1], compared=301, mismatched=301),
    )
    report = replace(sample.divergent(), runs=(run,))
    document = to_html(report)
    assert document.count('<tr id="tensor-') == 200
    assert "104 further rows in report.json." in document
    assert len(document.encode()) < 200_000


def test_steps_count_from_1() -> None:
    page = to_html(sample.two_findings())
    assert "step 1" in page
    assert "step 0" not in page


def _by_a_train_step() -> Report:
    """Returns a report of a target that keeps loss and output, without buffers."""
    none = Quantity()
    runs = tuple(
        replace(run, losses=none, buffers=none) for run in sample.divergent().runs
    )
    return replace(sample.divergent(), runs=runs)


def test_html_lists_whole_kinds_that_are_not_compared_with_their_reason() -> None:
    document = to_html(_by_a_train_step())
    assert '<a href="#not-compared">Not compared (3)</a>' in document
    listed = document[document.index('id="not-compared-title"') :]
    for kind, why in (
        ("outputs, loss", "the target's train_step does not return it"),
        ("buffers", "the model has no buffers"),
        ("optimizer state", "SGD without momentum has none"),
    ):
        assert f"<dt>{kind}</dt><dd>{why}</dd>" in html.unescape(listed)


def test_html_of_buffers_that_are_listed_gives_them_no_other_reason() -> None:
    report = _by_a_train_step()
    item = NotCompared(what="buffer norm.num", why="ranks count other calls")
    document = to_html(replace(report, not_compared=(item,)))
    assert "<dt>buffers</dt>" not in document
    assert "<dt>buffer norm.num</dt>" in document


def test_html_cell_without_anything_to_compare_is_a_dash_that_shows_why() -> None:
    document = to_html(_by_a_train_step())
    assert (
        '<td><span class="soft" title="the model has no buffers">-</span></td>'
        in document
    )
    assert "not compared</span>" not in document


def test_html_cell_of_ranks_that_failed_shows_it() -> None:
    run = replace(sample.not_checked().runs[0], verdict="divergent")
    document = to_html(replace(sample.divergent(), runs=(run,), findings=()))
    cell = '<td><span class="soft" title="ranks failed before it">-</span></td>'
    assert document.count(cell) == 3


def test_html_of_what_was_not_checked_begins_with_the_reason() -> None:
    parsed = Parsed(to_html(sample.not_checked()))
    assert parsed.headings("h2")[0] == "Every run compared with the single-process run"
    (lead,) = (text for _, text in parsed.texts if "Reason: " in text)
    reason = "Reason: 2 of 4 ranks failed before the first comparison."
    assert " ".join(lead.split()).endswith(reason)


def test_html_cell_without_a_known_reason_is_marked() -> None:
    runs = (replace(sample.divergent_run(), gradients=Quantity()),)
    document = to_html(replace(sample.divergent(), runs=runs))
    assert '-</span><span class="note">not compared</span></td>' in document


def test_html_matrix_begins_with_what_decides_and_has_no_empty_column() -> None:
    document = to_html(_by_a_train_step())
    head = document[document.index('<table class="matrix">') :]
    titles = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', head)
    shown = titles[: titles.index("ranks") + 1]
    assert shown == [
        "mode",
        "world size",
        "verdict",
        "gradients",
        "weights",
        "buffers",
        "ranks",
    ]


def test_html_of_an_equivalent_report_has_no_empty_section() -> None:
    report = replace(sample.equivalent(), not_compared=())
    parsed = Parsed(to_html(report))
    assert parsed.headings("h2") == [
        "Every run compared with the single-process run",
        "Tensors, worst first",
        "Not compared, and why",
        "How to read this",
        "Provenance",
    ]
    assert "growth-0-title" not in parsed.ids


def test_html_shows_code_of_a_cause_as_code() -> None:
    finding = replace(sample.local_normalizer(), summary="its own `y != -100` alone")
    document = to_html(replace(sample.divergent(), findings=(finding,)))
    cause = '<p class="cause">its own <code>y != -100</code> alone</p>'
    assert cause in " ".join(document.split())


def test_html_names_the_page_and_the_script() -> None:
    document = to_html(replace(sample.divergent(), reproduce="import torch\n"))
    assert "<code>ddpcheck --explain loss/local-normalizer</code>" in document
    assert "<code>python reproduce.py</code>" in document
    assert "reproduce.py" not in to_html(sample.divergent())


TEXT = """First line.

Fix

A mean over `n_r`
over two lines.
- one
  and more
- two

    def loss(x):

        return x

End, see https://example.org/a_(b), or not.
"""


def test_blocks_of_a_page() -> None:
    found = blocks(TEXT)
    assert [block.kind for block in found] == [
        "paragraph", "heading", "paragraph", "list", "code", "paragraph",
    ]  # fmt: skip
    assert found[1].text == "Fix"
    assert [span.text for span in found[2].items[0]] == [
        "A mean over ", "n_r", " over two lines.",
    ]  # fmt: skip
    assert [item[0].text for item in found[3].items] == ["one and more", "two"]
    assert found[4].text == "def loss(x):\n\n    return x"


def test_spans_of_a_link_leave_its_full_stop_out() -> None:
    found = spans("see https://example.org/x.")
    assert [(span.kind, span.text) for span in found] == [
        ("text", "see "),
        ("link", "https://example.org/x"),
        ("text", "."),
    ]


def test_spans_of_a_script_address_are_no_link() -> None:
    assert [span.kind for span in spans("javascript:alert(1)")] == ["text"]
