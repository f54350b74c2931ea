"""Pages for --explain and --rules, read without importing a rule or torch.

Each is a Markdown file next to this module: rules/loss/sum-reduction.md is the page of
the rule loss/sum-reduction. verdicts/ has what reports give that is no bug's cause,
errors/ has the usage errors.
"""

from __future__ import annotations

import difflib
import functools
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from ddpcheck.errors.problem import cut, usage_error

# The fixed headings of a rule's page.
HEADINGS = (
    "What it means",
    "Why it happens",
    "How it was found",
    "Example",
    "Fix",
    "Not this rule if",
    "References",
)

_HEADING = re.compile(r"^## (.*)\n", re.MULTILINE)
_FOLDER = Path(__file__).parent
_KINDS = ("rules", "verdicts", "errors")  # as --rules lists them


def rule_slugs() -> tuple[str, ...]:
    """Returns the slugs of all rules, sorted."""
    return tuple(_files("rules"))


def slugs() -> tuple[str, ...]:
    """Returns the slugs of all rules, of verdicts, then of all usage errors."""
    return tuple(slug for kind in _KINDS for slug in _files(kind))


def page(slug: str) -> str:
    """Returns the page of a rule, a verdict or a usage error.

    Raises:
        UsageError: explain-unknown.
    """
    for kind in _KINDS:
        if path := _files(kind).get(slug):
            return _text(path)
    raise usage_error(
        slug="explain-unknown",
        message=f"there is no page for {slug!r}",
        expected="a slug as reports and messages show it: family/name",
        found=repr(slug),
        fix=suggestion(slug),
    )


def summary(slug: str) -> str:
    """Returns the first line of a page."""
    text = page(slug)
    return text.splitlines()[0] if text else ""


def sections(text: str) -> dict[str, str]:
    """Returns the text under each heading of a rule's page, in its order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line in HEADINGS:
            found[line] = []
        elif found:
            found[next(reversed(found))].append(line)
    return {heading: "\n".join(lines).strip("\n") for heading, lines in found.items()}


def targets(slug: str) -> tuple[str, str]:
    """Returns a page's broken target and the fixed one, as sources.

    The code under Fix is appended to the Example and redefines what changes.
    """
    parts = sections(page(slug))
    broken, mending = _code(parts["Example"]), _code(parts["Fix"])
    return broken, f"{broken}\n{mending}"


def _code(text: str) -> str:
    lines = [line for line in text.splitlines() if not line or line.startswith("    ")]
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"


def rule_pages(wanted: Iterable[str]) -> dict[str, str]:
    """Returns the pages of the rules among `wanted`, by slug."""
    files = _files("rules")
    return {slug: _text(files[slug]) for slug in wanted if slug in files}


def table() -> str:
    """Returns one line per slug: the slug and the first line of its page."""
    width = max(map(len, slugs()))
    return "".join(f"{slug:<{width}}  {summary(slug)}\n" for slug in slugs())


def suggestion(slug: str) -> str:
    """Returns the slugs that may be meant, or where all are listed."""
    known = slugs()
    family = [s for s in known if s.startswith(slug.rstrip("/") + "/")]
    close = family or difflib.get_close_matches(slug, known, n=3)
    return f"did you mean {cut(close)}?" if close else "ddpcheck --rules lists them all"


@functools.cache
def _files(kind: str) -> dict[str, Path]:
    folder = _FOLDER / kind
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.md"))
    }


@functools.cache
def _text(path: Path) -> str:
    """Returns a page without its title, its headings as plain lines."""
    _, _, body = path.read_text(encoding="utf-8").partition("\n\n")
    return _HEADING.sub(r"\1", body).strip()
