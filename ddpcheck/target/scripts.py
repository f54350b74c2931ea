"""Decides from a file's source, before it is executed, if it is a target or a script.

Decided by the syntax tree alone, and only where it is certain: a file that may bind
names in another way (exec, globals(), `from x import *`) is left to be imported.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ddpcheck.errors.problem import cut, usage_error

# What only a script that trains calls; ddpcheck makes the group that a target finds.
_STARTS = ("init_process_group", "Accelerator")

# Calls by which names appear that no assignment shows.
_BINDS = frozenset(
    {"exec", "eval", "globals", "locals", "vars", "setattr", "execfile", "run_path"}
    | {"import_module", "__import__"}
)
# Statements that set something up and train nothing, by how the called name begins.
_SETS_UP = (
    *("set_", "use_", "enable", "disable", "filter", "simplefilter", "register"),
    *("seed", "manual_seed", "insert", "append", "extend", "update", "print"),
    *("setdefault", "basicConfig", "getLogger", "load_dotenv", "addHandler"),
)
# Assigned calls that do work: `history = trainer.fit(...)`.
_WORKS = frozenset(
    {"fit", "train", "backward", "step", "run", "launch", "main", "mkdir"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_TRAINS = ("backward", "step")


def starts_group(path: str) -> bool:
    """Returns whether a file starts distributed training by itself."""
    tree = _parsed(Path(path))
    return tree is not None and any(_called(n) in _STARTS for n in _calls([tree]))


def check(path: Path, names: Collection[str]) -> None:
    """Refuses a file that trains when it is imported, and cannot be a target.

    Args:
        path: of the file; one that cannot be read or parsed passes: the import reports
            the error.
        names: that a target must bind at its top level.

    Raises:
        UsageError: target-script.
    """
    tree = _parsed(path)
    if tree is None:
        return
    missing = [name for name in names if name not in _bound(tree)]
    trained = _trained(tree, names)
    if not (missing or trained) or _binds_otherwise(tree):
        return
    calls = list(_working_calls(tree))
    if not calls:
        return  # the import reports what it defines instead
    first, *more = (f"{ast.unparse(c.func)} in line {c.lineno}" for c in calls)
    raise usage_error(
        slug="target-script",
        message=f"{path.name} is a training script: it was not executed, because "
        + _reason(missing, trained),
        expected="model, batch and loss, or the script's step as train_step",
        found=f"calls at its top level: {cut([first, *more], 3)}",
        fix=_todo(path),
    )


def _reason(missing: list[str], trained: list[str]) -> str:
    if missing:
        return f"it defines no {' and no '.join(f'`{name}`' for name in missing)}"
    values = " and ".join(f"`{name}`" for name in trained)
    return f"it trains in a loop at its top level, with {values} of its own"


def _todo(path: Path) -> str:
    """Returns the command to type for a script that no target can import."""
    if starts_group(str(path)):
        return f"ddpcheck run {path.name}, with its arguments, checks it as it is"
    return (
        f"ddpcheck run {path.name}, if torchrun starts it; else ddpcheck --init "
        "target.py, and copy there what builds its model, batch and loss"
    )


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _top_level(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that run when the file is imported, outer ones first."""
    for node in nodes:
        if isinstance(node, ast.If) and _is_main_guard(node.test):
            yield from _top_level(node.orelse)
            continue
        yield node
        if isinstance(node, _SCOPES):
            continue
        for body in ("body", "orelse", "finalbody"):
            yield from _top_level(getattr(node, body, []))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _top_level(part.body)


def _is_main_guard(test: ast.expr) -> bool:
    """Returns whether a condition asks for `__name__ == "__main__"`."""
    named = (n.id for n in ast.walk(test) if isinstance(n, ast.Name))
    values = (n.value for n in ast.walk(test) if isinstance(n, ast.Constant))
    return "__name__" in named and "__main__" in values


def _bound(tree: ast.Module) -> set[str]:
    """Returns the names that the file binds at its top level.

    Functions bind those that they declare `global`. The variables of a loop that trains
    define nothing: `for batch in loader: ...; loss.backward()`.
    """
    elsewhere = _within(n for n in ast.walk(tree) if isinstance(n, _SCOPES))
    elsewhere |= _within(n for n in _top_level(tree.body) if _is_training_loop(n))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found |= set(node.names)
        if id(node) not in elsewhere:
            found |= set(_bound_by(node))
    return found


def _trained(tree: ast.Module, names: Collection[str]) -> list[str]:
    """Returns which names are values of a file that trains in a loop when imported.

    A target that trains something else first, a teacher, has functions by these names.
    """
    if not any(_is_training_loop(node) for node in _top_level(tree.body)):
        return []
    kinds = (*_FUNCTIONS, ast.ClassDef, ast.alias)
    made = {
        n for node in ast.walk(tree) if isinstance(node, kinds) for n in _bound_by(node)
    }
    return [name for name in names if name not in made]


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name or ""]
    return [node.rest or ""] if isinstance(node, ast.MatchMapping) else []


def _within(nodes: Iterable[ast.AST]) -> set[int]:
    """Returns the identities of all that is inside these nodes."""
    return {
        id(inner) for node in nodes for inner in ast.walk(node) if inner is not node
    }


def _is_training_loop(node: ast.stmt) -> bool:
    return isinstance(node, _LOOPS) and any(
        _called(n) in _TRAINS for n in ast.walk(node)
    )


def _binds_otherwise(tree: ast.Module) -> bool:
    """Returns whether names may be bound that no statement of the file shows."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
            return True
        if isinstance(node, _FUNCTIONS) and node.name == "__getattr__":
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("modules", "__dict__"):
            return True  # sys.modules[__name__]
        if _called(node) in _BINDS:
            return True
    return False


def _working_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yields calls at the top level that may train, in the order of the file.

    A statement that is a call, any call in a loop or a `with`, and assigned calls of
    the file's own functions, or by a name that shows it.
    """
    own = {node.name for node in tree.body if isinstance(node, _FUNCTIONS)}
    repeated = _within(n for n in _top_level(tree.body) if isinstance(n, _LOOPS))
    for node in _top_level(tree.body):
        for call in _calls(_expressions(node)):
            name = _called(call)
            if isinstance(call.func, ast.Name) and hasattr(builtins, name):
                continue
            is_statement = isinstance(node, ast.Expr) and node.value is call
            is_alone = is_statement or id(node) in repeated
            is_own = isinstance(call.func, ast.Name) and name in own
            if is_own or name in _WORKS or (is_alone and not name.startswith(_SETS_UP)):
                yield call


def _expressions(node: ast.stmt) -> list[ast.AST]:
    """Returns the parts of a statement that are no statements themselves."""
    if isinstance(node, _SCOPES):
        return []
    return [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]


def _calls(nodes: list[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                yield inner


def _called(node: ast.AST) -> str:
    """Returns the last name of what a call calls, "" for another node."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))
