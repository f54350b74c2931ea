"""The code that findings print: whole in 80 columns, and only where it can be right."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

from ddpcheck.diagnose import rules
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.render.terminal import LABEL
from ddpcheck.run.intervention import GlobalLoss, GlobalModule, Substitute, Switch
from tests.corpus import programs
from tests.diagnose.test_rules import checked

RULES = sorted(Path(rules.__path__[0]).glob("*_*.py"))
COLUMNS = 80 - (LABEL + 2)


def _printed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields what is given as `code`, or is a constant that is called so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code":
            yield node.value
        elif isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if any(name.endswith("CODE") for name in names):
                yield node.value


def _lines(code: ast.AST) -> Iterator[str]:
    for node in ast.walk(code):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.splitlines()


def test_all_rules_are_looked_at() -> None:
    with_code = [p for p in RULES if list(_printed(ast.parse(p.read_text("utf-8"))))]
    assert len(with_code) > 0.8 * len(RULES)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_no_line_is_cut(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [line for code in _printed(tree) for line in _lines(code)]
    assert [line for line in lines if len(line) > COLUMNS] == []


LABELS = "labels = torch.arange(len(a)) + dist.get_rank() * len(a)"
SCALED = (
    "world = dist.get_world_size() if dist.is_initialized() else 1\n"
    "loss = world * loss  # or reduction='mean'"
)
# Bug -> what is proven, and the code of its first finding: "" where it could not be
# right, as an offset of labels where it is the order of what was gathered.
SHOWN = {
    "collective/labels-without-offset-in-forward": ("intervention", LABELS),
    "collective/embeddings-reduced-where-they-are-to-be-gathered": ("located", ""),
    "loss/own-rows-among-gathered-ones-times-world-and-a-temperature": (
        "intervention",
        "",
    ),
    "sync/own-second-moment-in-the-update": ("located", ""),
    "sync/momentum-that-rank-0-alone-takes-up": ("intervention", ""),
    "loss/maximum-of-the-shard-beside-a-parameter-that-is-returned": ("located", ""),
    "loss/sum-whose-gradient-is-clipped": ("intervention", SCALED),
}


# The code that is suggested, as where no fixed.py is verified.
@pytest.mark.usefixtures("causes_alone")
@pytest.mark.parametrize("name", SHOWN)
def test_code_is_shown_only_where_it_can_be_right(
    name: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, programs.source(name))
    fix = report.findings[0].fix
    assert fix is not None
    assert fix.text
    assert (fix.proof, fix.code) == SHOWN[name]


_EVIDENCE = {"code_rests_on", "rests_on", "gathers"}


def _only_locates(fixes: ast.AST) -> bool:
    """Returns whether an expression names an intervention that is no fix by itself."""
    nodes = list(ast.walk(fixes))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    members = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    located = {s.name for s in Switch if s.kind != "fix"}
    classes = {c.__name__ for c in (GlobalLoss, GlobalModule, Substitute)}
    return bool(classes & names or located & members)


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_code_beside_an_intervention_that_only_locates_names_its_evidence(
    path: Path,
) -> None:
    unfounded = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        given = {k.arg: k.value for k in node.keywords} if _is_proposal(node) else {}
        if "code" not in given or _EVIDENCE & set(given):
            continue
        fixes = given.get("fixes", ast.Constant(value=None))
        if _only_locates(fixes) and any(_lines(given["code"])):
            unfounded.append(ast.unparse(given["code"]))
    assert unfounded == []


def _is_proposal(node: ast.AST) -> TypeGuard[ast.Call]:
    is_named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_named and node.func.id in ("Proposal", "replaced", "Row")  # type: ignore[attr-defined]


@pytest.mark.usefixtures("no_script")
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("loss/sum-whose-gradient-is-clipped", SCALED),
        ("collective/labels-without-offset-in-forward", ""),
    ],
)
def test_code_without_a_run_is_shown_where_evidence_alone_asks_for_it(
    name: str, code: str, pool: Pool, tmp_path: Path
) -> None:
    report = checked(pool, tmp_path, programs.source(name), fix=False)
    shown = [f.fix for f in report.findings if f.fix]
    assert all((f.proof, f.verified, f.intervention) == (None, None, "") for f in shown)
    assert [f.code for f in shown[:1]] == [code]
