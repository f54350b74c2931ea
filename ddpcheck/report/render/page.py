"""A rule's page, written in simple Markdown or reStructuredText, as plain blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ddpcheck.report.pages.pages import HEADINGS

_HEADING = re.compile(r"#{1,6}\s+(?P<title>\S.*)")
_UNDERLINE = re.compile(r"(=|-|~|\^){3,}\s*")
_BULLET = re.compile(r"\s{0,3}[-*]\s+(?P<text>\S.*)")
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
    """Returns the blocks of a page; what is not understood is a paragraph."""
    lines = page.expandtabs(4).splitlines()
    found: list[Block] = []
    at = 0
    while at < len(lines):
        block, at = _block(lines, at)
        if block:
            found.append(block)
    return tuple(found)


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


def _block(lines: list[str], at: int) -> tuple[Block | None, int]:
    """Returns the block that starts at a line, and the line after it."""
    line = lines[at]
    if not line.strip():
        return None, at + 1
    if line.lstrip().startswith("```"):
        return _fenced(lines, at + 1)
    if line.startswith("    "):
        return _indented(lines, at)
    return _heading(lines, at) or (
        _list(lines, at) if _BULLET.fullmatch(line) else _paragraph(lines, at)
    )


def _heading(lines: list[str], at: int) -> tuple[Block, int] | None:
    line = lines[at]
    if heading := _HEADING.fullmatch(line):
        return Block(kind="heading", text=heading["title"]), at + 1
    if line.strip().rstrip(":") in HEADINGS and not line.startswith(" "):
        return Block(kind="heading", text=line.strip().rstrip(":")), _past_rule(
            lines, at
        )
    if _is_rule(lines, at + 1):
        return Block(kind="heading", text=line.strip()), at + 2
    return None


def _is_rule(lines: list[str], at: int) -> bool:
    return at < len(lines) and _UNDERLINE.fullmatch(lines[at]) is not None


def _past_rule(lines: list[str], at: int) -> int:
    return at + 2 if _is_rule(lines, at + 1) else at + 1


def _fenced(lines: list[str], at: int) -> tuple[Block, int]:
    end = at
    while end < len(lines) and not lines[end].lstrip().startswith("```"):
        end += 1
    return Block(kind="code", text="\n".join(lines[at:end])), end + 1


def _indented(lines: list[str], at: int) -> tuple[Block, int]:
    end = at
    while end < len(lines) and (
        lines[end].startswith("    ") or not lines[end].strip()
    ):
        end += 1
    code = "\n".join(line[4:] for line in lines[at:end])
    return Block(kind="code", text=code.rstrip()), end


def _list(lines: list[str], at: int) -> tuple[Block, int]:
    items: list[str] = []
    while at < len(lines) and lines[at].strip():
        bullet = _BULLET.fullmatch(lines[at])
        if bullet:
            items.append(bullet["text"])
        else:
            items[-1] += " " + lines[at].strip()
        at += 1
    return Block(kind="list", items=tuple(spans(item) for item in items)), at


def _paragraph(lines: list[str], at: int) -> tuple[Block, int]:
    end = at + 1
    while end < len(lines) and not _starts_block(lines[end]):
        end += 1
    text = " ".join(line.strip() for line in lines[at:end])
    return Block(kind="paragraph", items=(spans(text),)), end


def _starts_block(line: str) -> bool:
    return (
        not line.strip()
        or line.lstrip().startswith("```")
        or _HEADING.fullmatch(line) is not None
        or _BULLET.fullmatch(line) is not None
    )
