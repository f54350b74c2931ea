"""A rule's page becomes blocks, whichever way its headings are written."""

from __future__ import annotations

import pytest

from ddpcheck.report.render import page

TEXT = """First line.

{heading}

A mean over `n_r`
over two lines.
- one
  and more
- two

    def loss(x):

        return x

End, see https://example.org/a_(b), or not.
"""


@pytest.mark.parametrize(
    "heading",
    ["## Fix", "Fix", "Fix:", "Fix\n---", "Fix\n======"],
    ids=["markdown", "bare", "colon", "rest", "rest-equals"],
)
def test_blocks_of_a_page(heading: str) -> None:
    found = page.blocks(TEXT.format(heading=heading))
    assert [block.kind for block in found] == [
        "paragraph", "heading", "paragraph", "list", "code", "paragraph",
    ]  # fmt: skip
    assert found[1].text == "Fix"
    assert [span.text for span in found[2].items[0]] == [
        "A mean over ", "n_r", " over two lines.",
    ]  # fmt: skip
    assert [item[0].text for item in found[3].items] == ["one and more", "two"]
    assert found[4].text == "def loss(x):\n\n    return x"


def test_blocks_of_fenced_code_keep_its_text() -> None:
    (block,) = page.blocks("```python\n# no heading\n- no list\n```")
    assert (block.kind, block.text) == ("code", "# no heading\n- no list")


def test_blocks_of_an_unclosed_fence_end_with_the_page() -> None:
    assert page.blocks("```\nx")[0].text == "x"


def test_spans_of_a_link_leave_its_full_stop_out() -> None:
    found = page.spans("see https://example.org/x.")
    assert [(span.kind, span.text) for span in found] == [
        ("text", "see "),
        ("link", "https://example.org/x"),
        ("text", "."),
    ]


def test_spans_of_a_script_address_are_no_link() -> None:
    assert [span.kind for span in page.spans("javascript:alert(1)")] == ["text"]
