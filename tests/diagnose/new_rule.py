r"""Writes the files of a new rule: page, detector, near miss, and its registry lines.

    python -m tests.diagnose.new_rule loss/half-shard --link loss \
        --after loss/uneven-shard

Run it at the top of a checkout. What is left to write is marked TODO; the tests of
pages, rules and the corpus fail until it is written. They check the page's example and
its fix as well, and the near miss: a rule needs no test of its own for that.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

LINKS = ("data", "forward", "loss", "backward", "reduce", "update")
_SLUG = re.compile(r"[a-z]+/[a-z0-9]+(-[a-z0-9]+)*")
_REGISTRY = Path("ddpcheck/diagnose/registry.py")

_PAGE = """\
# {slug}

TODO: one sentence that says what is seen.

## What it means

TODO

## Why it happens

TODO: the formula, and its source.

## How it was found

TODO: the evidence and its threshold, and what looks alike.

## Example

    TODO: a broken target of at most 15 lines

## Fix

TODO: one sentence. The fixed example:

    TODO: code that, added to the example, mends it

## Not this rule if

TODO: the nearest slug, and what tells them apart.

## References

TODO: addresses, or -
"""

_DETECTOR = '''\
"""Detects {slug}."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal

SLUG = "{slug}"
LINK = "{link}"


def detect(case: Case) -> Proposal | None:
    """Proposes it where TODO."""
    if not case.reduce_is_broken:  # TODO: the evidence; read it, run nothing
        return None
    return Proposal(
        summary="TODO: the cause, one sentence",
        facts=("TODO: a sentence with numbers",),
        fix="TODO: what to do",
        fixes=(),  # TODO: the intervention that proves it
    )
'''

_NEAR_MISS = """\
# expect: equivalent
# shows: TODO: what looks like {slug} here, and why it is sound

# TODO: the nearest healthy target: it differs from the example in what matters alone
"""


def create(slug: str, *, after: str, link: str, root: Path) -> list[Path]:
    """Writes the files of a rule, and adds it to the registry; returns their paths.

    Args:
        slug: of the new rule, family/pattern-that-is-seen.
        after: slug of the rule behind which it is asked.
        link: of the chain.
        root: the top of a checkout.

    Raises:
        ValueError: the slug is malformed or taken, or there is no rule `after`.
    """
    if not _SLUG.fullmatch(slug):
        raise ValueError(f"{slug!r} is no slug: family/pattern, in small letters")
    name, before = _module(slug), _module(after)
    paths = {
        root / "ddpcheck/report/pages/rules" / f"{slug}.md": _PAGE,
        root / "ddpcheck/diagnose/rules" / f"{name}.py": _DETECTOR,
        root / "tests/corpus/sound" / f"{slug.replace('/', '-')}.py": _NEAR_MISS,
    }
    if taken := [path for path in paths if path.exists()]:
        raise ValueError(f"there is a rule {slug} already: {taken[0]}")
    registry = root / _REGISTRY
    text = _registered(registry.read_text(encoding="utf-8"), name, before)
    for path, template in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.format(slug=slug, link=link), encoding="utf-8")
    registry.write_text(text, encoding="utf-8")
    return [*paths, registry]


def _registered(text: str, name: str, before: str) -> str:
    """Returns the registry with a rule imported, and listed behind another one."""
    imports, head, listed = text.partition("class Rule(Protocol)")
    line = f"    {before},\n"
    if line not in imports or line not in listed:
        raise ValueError(f"there is no rule {before} in {_REGISTRY}")
    lines = imports.splitlines(keepends=True)
    # Tables of several slugs have imports of their own below.
    first = lines.index("from ddpcheck.diagnose.rules import (\n") + 1
    known = list(range(first, lines.index(")\n", first)))
    later = [i for i in known if lines[i] > f"    {name},\n"]
    lines.insert(later[0] if later else known[-1] + 1, f"    {name},\n")
    # The last mention: rules of faults and of DataParallel have lists of their own.
    start, _, end = listed.rpartition(line)
    return "".join(lines) + head + start + line + f"    {name},\n" + end


def _module(slug: str) -> str:
    return slug.replace("/", "_").replace("-", "_")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code, 2 for arguments that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.diagnose.new_rule",
        description="Writes the files of a new rule, at the top of a checkout.",
    )
    parser.add_argument("slug", help="family/pattern")
    parser.add_argument("--after", required=True, help="the rule that is asked before")
    parser.add_argument(
        "--link", required=True, choices=LINKS, help="where in a step the cause is"
    )
    args = parser.parse_args(argv)
    try:
        made = create(args.slug, after=args.after, link=args.link, root=Path.cwd())
    except (ValueError, OSError) as error:
        parser.error(str(error))
    for path in made:
        sys.stdout.write(f"{path.relative_to(Path.cwd())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
