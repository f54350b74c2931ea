"""Every fact is described, some code produces it, and some code reads it.

That no code uses a key that is not declared is for mypy.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import ddpcheck
from ddpcheck.diagnose.probes import evidence
from ddpcheck.run import facts

PACKAGE = Path(ddpcheck.__file__).parent
KINDS = (
    facts.UpdateFacts,
    facts.ReferenceFacts,
    facts.RankFacts,
    facts.StateFacts,
    facts.TraceFacts,
    evidence.ProbeFacts,
)
DECLARED = [(kind.__name__, key) for kind in KINDS for key in kind.__annotations__]
CONSTANTS = {"REFUSED": facts.REFUSED, "REMARKS": facts.REMARKS}


@cache
def _used() -> tuple[frozenset[str], frozenset[str]]:
    """Returns the keys that the package produces, and those that it reads."""
    produced, read = set[str](), set[str]()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Dict(keys=keys):
                    produced.update(_texts(keys))
                case ast.Subscript(slice=key, ctx=ast.Store()):
                    produced.update(_texts([key]))
                case ast.Call(func=ast.Attribute(attr="setdefault"), args=[key, *_]):
                    produced.update(_texts([key]))
                case ast.Subscript(value=ast.Name(id="Literal"), slice=key):
                    read.update(_texts(getattr(key, "elts", [key])))
                case ast.Subscript(slice=key, ctx=ast.Load()):
                    read.update(_texts([key]))
                case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
                    read.update(_texts([key]))
                case ast.Compare(left=key, ops=[ast.In()]):
                    read.update(_texts([key]))
    return frozenset(produced), frozenset(read)


def _texts(keys: list[ast.expr | None]) -> Iterator[str]:
    for key in keys:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value
        if isinstance(key, ast.Name) and key.id in CONSTANTS:
            yield CONSTANTS[key.id]


@pytest.mark.parametrize(("kind", "key"), DECLARED, ids="-".join)
def test_fact_that_is_declared_is_produced_and_read(kind: str, key: str) -> None:
    produced, read = _used()
    assert (kind, key in produced, key in read) == (kind, True, True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_fact_has_a_comment_that_says_what_it_is(kind: type) -> None:
    source = inspect.getsource(kind)
    lines = [line.strip() for line in source.splitlines()]
    bare = [
        line
        for before, line in pairwise(lines)
        if re.match(r"\w+: ", line) and "#" not in line and before[:1] != "#"
    ]
    assert bare == []
