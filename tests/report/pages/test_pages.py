"""Pages: every slug has one, and reading them imports nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ddpcheck.errors.problem import Problem, UsageError
from ddpcheck.report.pages import pages
from ddpcheck.target import target
from ddpcheck.target.options import SETTINGS
from ddpcheck.target.target import NAMES

FOLDER = Path(pages.__file__).parent
PAGES = {p.stem for p in (FOLDER / "errors").glob("*.md")}
PACKAGE = Path(pages.__file__).parents[2]


def slugs_in(source: str) -> set[str]:
    """Returns the slugs of the problems that a source makes; f-strings as patterns."""
    found, fields = set(), Problem.__dataclass_fields__
    for node in ast.walk(ast.parse(source)):
        made = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or made not in ("Problem", "usage_error"):
            continue
        for keyword in node.keywords:
            assert keyword.arg in {None, *fields}, keyword.arg
            if keyword.arg == "slug":
                found.add(_text(keyword.value))
    return found


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "*"
            for part in node.values
        )
    assert isinstance(node, ast.Constant), ast.dump(node)
    return str(node.value)


def all_slugs() -> set[str]:
    """Returns the slugs of all problems in the package."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        found |= slugs_in(path.read_text(encoding="utf-8"))
    if "target-no-*" in found:
        found.remove("target-no-*")
        found |= {f"target-no-{name.replace('_', '-')}" for name in NAMES}
    return found


def test_every_usage_error_has_a_page_and_every_page_an_error() -> None:
    assert all_slugs() == set(PAGES)


def test_a_slug_without_a_page_would_be_seen() -> None:
    source = "raise usage_error(slug='no-page', message='')\nProblem(slug='nor-this')"
    assert slugs_in(source) == {"no-page", "nor-this"}


@pytest.mark.parametrize("slug", pages.slugs())
def test_page_is_short_ascii_and_opens_with_a_sentence(slug: str) -> None:
    text = pages.page(slug)
    first = text.splitlines()[0]
    assert first.endswith(".")
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 120
    assert pages.summary(slug) == first


def test_page_of_settings_has_them_all_and_shows_which_a_target_sets() -> None:
    text = pages.page("option-value")
    lines = re.findall(r"^    (\w+ .*?)(?: +or --.*)?$", text, re.MULTILINE)
    assert lines == [f"{one.name:<13} {one.python}" for one in SETTINGS]
    *first, last = target.SETTINGS
    sentence = f"A target file can set {', '.join(first)} and {last} only"
    assert sentence in " ".join(text.split())


def test_rule_slugs_come_from_file_names() -> None:
    for slug in pages.rule_slugs():
        assert re.fullmatch(r"[a-z]+/[a-z0-9-]+", slug)
    assert "loss/sum-reduction" in pages.rule_slugs()


def test_rule_pages_leave_out_what_is_no_rule() -> None:
    found = pages.rule_pages(["loss/sum-reduction", "unknown/forward"])
    assert list(found) == ["loss/sum-reduction"]


def test_table_has_a_line_per_slug() -> None:
    lines = pages.table().splitlines()
    assert [line.split()[0] for line in lines] == list(pages.slugs())


def test_unknown_slug_is_reported_with_what_is_near() -> None:
    with pytest.raises(UsageError) as caught:
        pages.page("loss/sum-reductoin")
    assert caught.value.problem.slug == "explain-unknown"
    assert caught.value.problem.fix.startswith("did you mean loss/sum-reduction")


def test_unknown_cause_has_a_page() -> None:
    first = pages.page("unknown").splitlines()[0]
    assert first == "Ranks differ from the single-process run, and no rule explains it."
    assert "unknown" in pages.slugs()


def test_no_slug_has_two_pages() -> None:
    assert len(set(pages.slugs())) == len(pages.slugs())


@pytest.mark.parametrize("slug", pages.slugs())
def test_page_is_a_markdown_file_with_its_slug_as_the_title(slug: str) -> None:
    (path,) = FOLDER.glob(f"*/{slug}.md")
    assert path.read_text(encoding="utf-8").startswith(f"# {slug}\n\n")
