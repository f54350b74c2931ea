"""Chooses the programs of the corpus that ranks check in every run of the tests.

The recorded cases of all are replayed in every run; here ranks answer. In the quick
tests they check few programs. Together with the examples of the rules' pages, which every run checks as
well, they have

- every slug,
- every intervention that is known to prove a cause,
- both verdicts; and of what is sound every function of torch.distributed, every method
  and argument of DistributedDataParallel, and every class and function of torch.nn that
  any sound program uses.

`.ci/run` checks all sound ones as well, and of the broken so many that each list of
slugs, and each intervention beside each slug, is in one. The rest is for a release.

Slugs and verdicts stand in the headers. What proves a cause, and how many jobs a check
gives its ranks, is in coverage.json, as a run of all found it:

    pytest -n auto -m "corpus or not corpus" tests/diagnose/test_corpus.py \\
        tests/diagnose/test_rules.py --junit-xml corpus.xml
    python -m tests.corpus.coverage corpus.xml

A program that the table lacks counts by its header alone.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ddpcheck.report.data import Report
from ddpcheck.report.pages import pages
from ddpcheck.run import intervention
from ddpcheck.run.intervention import (
    Boundary,
    CountMicroBatches,
    GlobalModule,
    Intervention,
    Meaning,
    Scale,
    Substitute,
    Switch,
)
from tests.corpus.programs import FOLDER, Program, programs

TABLE = FOLDER / "coverage.json"
_PAGE = "page/"  # and the slug: the example of a page
_USUAL_JOBS = 20  # of a program that the table lacks
# torch.distributed, its functions with gradient, torch.nn and its functions.
_MODULES = {"dist", "dnn", "nn", "nn.functional"}
_METHODS = {"join", "no_sync", "register_comm_hook"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a run of a program showed.

    `interventions`: those that prove its causes. `jobs`: how many the check gave ranks.
    """

    interventions: tuple[str, ...] = ()
    jobs: int = _USUAL_JOBS


@functools.cache
def table() -> dict[str, Row]:
    """Returns the rows by the names of programs."""
    if not TABLE.exists():
        return {}
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Row(interventions=tuple(i), jobs=n) for name, (n, *i) in rows.items()}


def covers(program: Program) -> set[str]:
    """Returns what a check of the program exercises."""
    row = table().get(program.name, Row())
    found = {program.verdict, *program.slugs, *row.interventions}
    return found if program.findings else found | set(_used(program.source))


def _used(source: str) -> Iterator[str]:
    """Yields what a program uses of torch.distributed and of the wrapper."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            if ast.unparse(node.value) in _MODULES:
                yield ast.unparse(node)
            elif node.attr in _METHODS:
                yield f"DDP.{node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "DDP":
            yield from (f"DDP({k.arg})" for k in node.keywords if k.arg)


def covered_by_pages() -> set[str]:
    """Returns what the examples of the rules' pages exercise."""
    slugs = pages.rule_slugs()
    rows = [table().get(_PAGE + slug, Row()) for slug in slugs]
    return {"divergent", *slugs}.union(*(row.interventions for row in rows))


@functools.cache
def quick() -> frozenset[str]:
    """Returns the names of the chosen programs.

    That of most that is new per job comes first, as long as there is anything new; one
    that the later ones made superfluous goes. The smallest set would take too long to
    find: this one is near it.
    """
    runnable = [p for p in programs().values() if not (p.slow or p.needs[1])]
    return _chosen({p.name: covers(p) for p in runnable}, covered_by_pages())


@functools.cache
def in_ci() -> frozenset[str]:
    """Returns the names of the programs that `.ci/run` checks."""
    runnable = [p for p in programs().values() if not p.needs[1]]
    left = {p.name: pairs(p) for p in runnable if p.findings}
    sound = {p.name for p in runnable if not p.findings}
    return _chosen(left, set()) | sound | quick()


def pairs(program: Program) -> set[str]:
    """Returns the slugs of a program in their order, and each with what proves it."""
    row = table().get(program.name, Row())
    found = {f"{slug} by {name}" for slug in program.slugs for name in row.interventions}
    return found | {", ".join(program.slugs)}


def _chosen(left: dict[str, set[str]], covered: set[str]) -> frozenset[str]:
    """Returns names that together have all that is not covered already."""
    jobs = {name: table().get(name, Row()).jobs for name in left}
    missing = set().union(*left.values()) - covered
    chosen: list[str] = []
    while missing:
        best = max(left, key=lambda n: (len(left[n] & missing) / jobs[n], n))
        missing -= left[best]
        chosen.append(best)
    for name in sorted(chosen, key=lambda n: (-jobs[n], n)):
        others = covered.union(*(left[n] for n in chosen if n != name))
        if left[name] <= others:
            chosen.remove(name)
    return frozenset(chosen)


def proven_by(sentence: str) -> list[str]:
    """Returns the interventions that the sentence of a fix names.

    >>> proven_by("with the gradient of the loss multiplied by 2 the runs are equal")
    ['ScaleLoss']
    """
    return sorted({name for name, said in _sayings() if said.search(sentence)})


@functools.cache
def _sayings() -> tuple[tuple[str, re.Pattern[str]], ...]:
    found = []
    for name, meaning in _meanings():
        said = re.escape(meaning.effect)
        for part in ("{names}", "{factor}"):
            said = said.replace(re.escape(part), ".+")
        found.append((name, re.compile(rf"(?:^with|and) {said}(?= and | the runs|,)")))
    return tuple(found)


def _meanings() -> Iterator[tuple[str, Meaning]]:
    for switch in Switch:
        yield switch.name, switch.meaning
    for kind in vars(intervention).values():
        is_one = isinstance(kind, type) and issubclass(kind, Intervention)
        if not is_one or kind in (Intervention, Scale, Switch):
            continue
        if kind is GlobalModule:
            for hides in (True, False):
                yield kind.__name__, GlobalModule(hides=hides).meaning
        elif kind is CountMicroBatches:
            for by in (True, False):
                yield kind.__name__, CountMicroBatches(countable="", by_number=by).meaning
        elif kind is Substitute:
            for boundary in get_args(Boundary):
                yield f"Substitute({boundary})", Substitute(boundary=boundary).meaning
        else:
            assert isinstance(kind.meaning, Meaning)
            yield kind.__name__, kind.meaning


def properties(
    name: str, report: Report, jobs: Sequence[str]
) -> Iterator[tuple[str, object]]:
    """Yields what `record` reads of a test: its program, and what the check showed."""
    said = [f.fix.intervention for f in report.findings if f.fix and f.fix.proof]
    proven = {name for sentence in said for name in proven_by(sentence)}
    yield "program", name
    yield "jobs", len(jobs)
    yield "interventions", " ".join(sorted(proven))


def record(results: Path) -> None:
    """Writes the table anew from a JUnit file; rows that it lacks stay as they are."""
    rows = {name: [row.jobs, *row.interventions] for name, row in table().items()}
    for case in ET.parse(results).iter("testcase"):
        found = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
        if "program" in found:
            interventions = found["interventions"].split()
            rows[found["program"]] = [int(found["jobs"]), *interventions]
    known = {*programs(), *(_PAGE + slug for slug in pages.rule_slugs())}
    kept = {name: rows[name] for name in sorted(rows) if name in known}
    lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in kept.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
