"""Pages for --explain and --rules, read without importing a rule or torch.

A rule's page is the docstring of its file in diagnose/rules/: `loss_sum_reduction.py`
is `loss/sum-reduction`. Pages of numeric/ and of unknown causes are in
ddpcheck.verdict_pages, those of usage errors in ddpcheck.usage_pages and file_pages.
"""

from __future__ import annotations

import ast
import difflib
import functools
import textwrap
from collections.abc import Iterable
from pathlib import Path

from ddpcheck.errors import Problem, UsageError, cut
from ddpcheck.verdict_pages import PAGES as VERDICTS

# The fixed headings of a page, each alone on a line.
HEADINGS = (
    "What it means",
    "Why it happens",
    "How it was found",
    "Example",
    "Fix",
    "Not this rule if",
    "References",
)

_RULES = Path(__file__).parent / "diagnose" / "rules"


def rule_slugs() -> tuple[str, ...]:
    """Returns the slugs of all rules, sorted."""
    return tuple(sorted(_files()))


def slugs() -> tuple[str, ...]:
    """Returns the slugs of all rules, of verdicts, then of all usage errors."""
    return (*rule_slugs(), *sorted(VERDICTS), *sorted(_usage()))


def page(slug: str) -> str:
    """Returns the page of a rule, a verdict or a usage error.

    Raises:
        UsageError: explain-unknown.
    """
    if path := _files().get(slug):
        return _docstring(path)
    if slug in VERDICTS:
        return VERDICTS[slug].strip()
    if slug in _usage():
        return _usage()[slug].strip()
    raise UsageError(
        Problem(
            slug="explain-unknown",
            message=f"there is no page for {slug!r}",
            expected="a slug as reports and messages show it: family/name",
            found=repr(slug),
            fix=suggestion(slug),
        )
    )


def summary(slug: str) -> str:
    """Returns the first line of a page."""
    text = page(slug)
    return text.splitlines()[0] if text else ""


def sections(text: str) -> dict[str, str]:
    """Returns what stands under each heading of a rule's page, in its order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line in HEADINGS:
            found[line] = []
        elif found:
            found[next(reversed(found))].append(line)
    return {heading: "\n".join(lines).strip("\n") for heading, lines in found.items()}


def targets(slug: str) -> tuple[str, str]:
    """Returns a page's broken target and the mended one, as sources.

    The code under Fix is added to the Example: it defines anew what changes.
    """
    parts = sections(page(slug))
    broken, mending = _code(parts["Example"]), _code(parts["Fix"])
    return broken, f"{broken}\n{mending}"


def _code(text: str) -> str:
    lines = [line for line in text.splitlines() if not line or line.startswith("    ")]
    return textwrap.dedent("\n".join(lines)).strip("\n") + "\n"


def rule_pages(wanted: Iterable[str]) -> dict[str, str]:
    """Returns the pages of the rules among `wanted`, by slug."""
    files = _files()
    return {slug: _docstring(files[slug]) for slug in wanted if slug in files}


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
def _files() -> dict[str, Path]:
    found = {}
    for path in _RULES.glob("*_*.py"):
        family, _, name = path.stem.partition("_")
        if family:
            found[f"{family}/{name.replace('_', '-')}"] = path
    return found


def _docstring(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return ast.get_docstring(tree) or ""


def _usage() -> dict[str, str]:
    from ddpcheck import file_pages, usage_pages  # noqa: PLC0415 (only if asked for)

    return {**usage_pages.PAGES, **file_pages.PAGES}
