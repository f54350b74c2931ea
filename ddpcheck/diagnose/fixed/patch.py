"""fixed.py as a change of the user's own file, where that is the same program.

The user's function gets the name original_..., and the new one stands before it. That
is not the same where other code of the file uses that function, or where names of the
two files clash: then there is no such change.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable

from ddpcheck.target import shipping
from ddpcheck.target.options import DEFINITIONS

_DEFINES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# What runs the changed text in the place of the file: with its path and its folder.
_RUN = """\
import sys

sys.path.insert(0, {folder!r})
__file__ = {path!r}
exec(compile({source!r}, __file__, "exec"))
"""
_USUAL = r"lambda p: [^()]+\(p, [^()]+\)"  # of draft.py, without an own optimizer


def changed(source: str, code: str, imports: Iterable[str]) -> str:
    """Returns the text of the user's file with the fix in it, "" where it has no place.

    Args:
        source: of the user's file.
        code: what fixed.py defines, which uses the file as `original`.
        imports: the import lines that this code needs.
    """
    if "\r" in source or not source.endswith("\n"):
        return ""
    try:
        old, new = ast.parse(source), ast.parse(code)
    except (SyntaxError, ValueError):
        return ""
    bound = _bound(old)
    defined = {node.name for node in new.body if isinstance(node, _DEFINES)}
    mine = {key for key in defined & {*DEFINITIONS} if key in bound}
    needed = _missing(old, imports)
    clash = (defined - mine) | {f"original_{key}" for key in mine}
    if not mine or needed is None or clash & bound:
        return ""
    places = {key: _place(old, key) for key in mine}
    if any(node is None or _is_used(old, key, node) for key, node in places.items()):
        return ""
    code = _without_module(code, mine)
    if re.search(r"\boriginal\b", code):
        return ""
    return _joined(source, old, code, needed, [n for n in places.values() if n])


def is_certain(source: str, code: str) -> bool:
    """Returns whether the changed file is the same program as fixed.py, without a run.

    It is where the change adds functions and classes alone, and where no other code of
    the file can see them: all its names are known, and it reads no namespace and no
    text of its own.
    """
    old, new = ast.parse(source), ast.parse(code)
    used = {node.id for node in ast.walk(old) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(old) if isinstance(node, ast.Attribute)}
    stars = {
        alias.name == "*"
        for node in ast.walk(old)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    only_defines = all(isinstance(node, _DEFINES) for node in new.body)
    return only_defines and not any(stars) and used.isdisjoint(_READ_NAMES)


# What reads the names or the text of a module, or of a function.
_READ_NAMES = {
    *("globals", "locals", "vars", "dir", "eval", "exec", "compile", "sys"),
    *("importlib", "inspect", "__dict__", "__code__", "__globals__", "__qualname__"),
}


def _bound(tree: ast.Module) -> set[str]:
    """Returns all names that the file binds, anywhere."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, _DEFINES):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {_alias(alias) for alias in node.names}
    return found


def _alias(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _imported(tree: ast.Module) -> dict[str, str]:
    """Returns what the file imports at its top, by name: "torch.nn.functional"."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else _alias(alias)
                found[_alias(alias)] = whole
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found[_alias(alias)] = f"{node.module}.{alias.name}"
    return found


def _missing(tree: ast.Module, imports: Iterable[str]) -> list[str] | None:
    """Returns the lines that the file lacks, None if a name is something else there."""
    bound, has, found = _bound(tree), _imported(tree), []
    for line in imports:
        wanted = _imported(ast.parse(line)).items()
        lacking = [name for name, what in wanted if has.get(name) != what]
        if bound & {*lacking}:
            return None
        if lacking:
            found.append(line)
    return found


def _place(tree: ast.Module, key: str) -> ast.stmt | None:
    """Returns the one statement at the top of the file that binds a name."""
    found = [node for node in tree.body if key in _targets(node)]
    others = sum(key in _targets(node) for node in ast.walk(tree))
    return found[0] if len(found) == 1 and others == 1 else None


def _targets(node: ast.AST) -> list[str]:
    if isinstance(node, _DEFINES):
        return [node.name]
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        return [target.id] if isinstance(target, ast.Name) else []
    return []


def _is_used(tree: ast.Module, key: str, place: ast.stmt) -> bool:
    """Returns whether the file uses the name elsewhere: it would get the new one.

    Not what it does as a script alone.
    """
    body = [node for node in tree.body if not shipping.is_guard(node)]
    nodes = (node for each in body for node in ast.walk(each))
    reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == key]
    own = 0 if isinstance(place, _DEFINES) else 1
    return len(reads) > own


def _without_module(code: str, mine: set[str]) -> str:
    """Returns the code with the names of one file in place of those of two."""
    for key in DEFINITIONS:
        usual = rf"getattr\(original, '{key}', ({_USUAL})\)"
        if key in mine:
            code = re.sub(usual, f"original_{key}", code)
            code = re.sub(rf"\boriginal\.{key}\b", f"original_{key}", code)
        else:
            code = re.sub(usual, r"(\1)", code)
    return code


def _joined(
    source: str,
    tree: ast.Module,
    code: str,
    imports: list[str],
    places: list[ast.stmt],
) -> str:
    """Returns the text, with the code in front of the first of these places."""
    lines = source.splitlines()
    for node in places:
        line, key = node.lineno - 1, _targets(node)[0]
        kind = r"^(async def |def |class |)"
        lines[line] = re.sub(rf"{kind}{key}\b", rf"\g<1>original_{key}", lines[line])
    first = min(map(_first_line, places)) - 1
    top = min(_after_imports(tree), first)
    before = [*lines[:top], *imports, *lines[top:first]]
    return "\n".join([*before, *code.splitlines(), "", "", *lines[first:]]) + "\n"


def _first_line(node: ast.stmt) -> int:
    decorators = node.decorator_list if isinstance(node, _DEFINES) else []
    return min([node.lineno, *(found.lineno for found in decorators)])


def _after_imports(tree: ast.Module) -> int:
    """Returns how many lines the beginning of the file has, with its first imports."""
    end = 0
    for node in tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (is_text or isinstance(node, ast.Import | ast.ImportFrom)):
            break
        end = node.end_lineno or node.lineno
    return end


def runnable(text: str, folder: str, path: str) -> str:
    """Returns a file that is a target as the changed file in its place would be."""
    return _RUN.format(folder=folder, path=path, source=text)


def diff(source: str, text: str, name: str) -> str:
    """Returns the change as `patch -p1` reads it."""
    pairs = source.splitlines(keepends=True), text.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*pairs, f"a/{name}", f"b/{name}"))
