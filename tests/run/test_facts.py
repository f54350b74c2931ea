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
    facts.MoreTraceFacts,
    facts.TraceFacts,
    evidence.ProbeFacts,
)
_USES = re.compile("facts|Facts|of_trace")  # in the text of a module
CONSTANTS = {"REFUSED": facts.REFUSED, "REMARKS": facts.REMARKS}
_OF_TRACE = ("TraceFacts", "MoreTraceFacts", "StateFacts")
# What an expression for facts has in it, and which these are; the first that fits.
SIGNS = {
    "UpdateFacts": ("UpdateFacts", "ReferenceFacts", "RankFacts", *_OF_TRACE),
    "TraceFacts": _OF_TRACE,
    "ReferenceFacts": ("ReferenceFacts",),
    "RankFacts": ("RankFacts",),
    "of_trace(": (*_OF_TRACE, "ProbeFacts"),
    "facts(": ("RankFacts",),
    "facts_of_ranks(": ("RankFacts",),
    ".ranks": ("RankFacts",),
    ".facts": ("ReferenceFacts",),
}
Scope = dict[str, str]  # name -> the expression or annotation that says what it is


@cache
def _trees() -> tuple[ast.Module, ...]:
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    return tuple(ast.parse(text) for text in texts if _USES.search(text))


@cache
def _produced() -> frozenset[str]:
    """Returns the keys of dicts that are made or added to."""
    found = set[str]()
    for node in (node for tree in _trees() for node in ast.walk(tree)):
        match node:
            case ast.Dict(keys=keys):
                found.update(key for k in keys if k for key in _keys(k))
            case ast.Subscript(slice=key, ctx=ast.Store()):
                found.update(_keys(key))
            case ast.Call(func=ast.Attribute(attr="setdefault"), args=[key, *_]):
                found.update(_keys(key))
    return frozenset(found)


@cache
def _read() -> frozenset[tuple[str, str]]:
    """Returns (kind of facts, key) of all that is read."""
    reads = _Reads()
    for tree in _trees():
        reads.visit(tree)
    return frozenset(reads.found)


class _Reads(ast.NodeVisitor):
    """Collects what is read, with the names of the scope that is visited."""

    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()
        self.scope: Scope = {}

    def visit(self, node: ast.AST) -> None:
        """Visits a node; names that it binds are known in it alone."""
        before = self.scope
        if isinstance(node, ast.FunctionDef | ast.Module):
            self.scope = before | dict(_bound(node))
        elif loops := getattr(node, "generators", ()):
            self.scope = before | {
                ast.unparse(loop.target): ast.unparse(loop.iter) for loop in loops
            }
        match node:
            case ast.Subscript(value=ast.Name(id="Literal"), slice=keys):
                names = {*_keys(keys)}
                whole = [k.__name__ for k in KINDS if names <= {*k.__annotations__}]
                self.found.update((kind, key) for kind in whole for key in names)
            case ast.Subscript(value=held, slice=key, ctx=ast.Load()):
                self._note(held, key)
            case ast.Call(func=ast.Attribute(attr="get", value=held), args=[key, *_]):
                self._note(held, key)
            case ast.Compare(left=key, ops=[ast.In()], comparators=[held]):
                self._note(held, key)
        self.generic_visit(node)
        self.scope = before

    def _note(self, held: ast.expr, key: ast.expr) -> None:
        for text in _keys(key):
            self.found.update((kind, text) for kind in _kinds(held, self.scope))


def _bound(scope: ast.FunctionDef | ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the names that a function binds, with what says what they are."""
    for node in ast.walk(scope):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as given):
                yield name, ast.unparse(given)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=given):
                yield name, ast.unparse(given)
            case ast.Assign(targets=[ast.Name(id=name)], value=given):
                yield name, ast.unparse(given)
            case ast.For(target=ast.Name(id=name), iter=given):
                yield name, ast.unparse(given)


def _kinds(held: ast.expr, scope: Scope) -> tuple[str, ...]:
    text = ast.unparse(held)
    if text == "self.facts":  # of a mode's run in a rank
        return ("RankFacts",)
    text = scope.get(text, text)
    text = scope.get(text, text)  # the variable of a loop over another one
    return next((kinds for sign, kinds in SIGNS.items() if sign in text), ())


def _keys(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        yield CONSTANTS[node.id]
    if isinstance(node, ast.Tuple):
        for each in node.elts:
            yield from _keys(each)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_facts_that_are_declared_are_produced_and_read(kind: type) -> None:
    keys = kind.__annotations__
    assert [key for key in keys if key not in _produced()] == []
    assert [key for key in keys if (kind.__name__, key) not in _read()] == []


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ('case.facts["draws"]', {"ReferenceFacts"}),
        ('[f.get("draws", "") for f in case.ranks]', {"RankFacts"}),
        ('def of(told: RankFacts) -> bool:\n    return told["draws"]', {"RankFacts"}),
        ('facts = outcome.reference.facts\nfacts["draws"]', {"ReferenceFacts"}),
        ('outcome.facts(rank).get("draws")', {"RankFacts"}),
        ('other["draws"]', set()),
    ],
)
def test_reader_of_a_fact_is_known_by_where_its_facts_are_from(
    source: str, kinds: set[str]
) -> None:
    reads = _Reads()
    reads.visit(ast.parse(source))
    assert reads.found == {(kind, "draws") for kind in kinds}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_fact_has_a_comment_that_says_what_it_is(kind: type) -> None:
    lines = [line.strip() for line in inspect.getsource(kind).splitlines()]
    bare = [
        line
        for before, line in pairwise(lines)
        if re.match(r"\w+: ", line) and "#" not in line and before[:1] != "#"
    ]
    assert bare == []
