"""Imports a target's file as a module, as the files next to it would.

User code runs here: in child processes alone, but for `check_file` and `place`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path

from ddpcheck.errors import raised
from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.target import scripts

# The beginning of a target's module name where its file's is none, or another's.
UNLIKE_THE_FILE = "ddpcheck_target"


def check_file(path: Path) -> None:
    """Reports a wrong path early and without torch.

    Raises:
        UsageError: target-missing-file.
    """
    is_notebook = path.suffix == ".ipynb"
    if path.is_file() and not is_notebook:
        return
    kind = "a folder" if path.is_dir() else "a notebook" if is_notebook else "nothing"
    fix = "check the path, or write a template: ddpcheck --init mymodel.py"
    if meant := _meant(path):
        fix = f"did you mean {meant}?"
    raise usage_error(
        slug="target-missing-file",
        message=f"{path} is no {'Python ' if is_notebook else ''}file",
        expected="a Python file that defines model, batch and loss",
        found=kind,
        fix=f"jupyter nbconvert --to script {path}" if is_notebook else fix,
    )


def _meant(path: Path) -> Path | None:
    """Returns the file of a module's name: pkg/mod.py for "pkg.mod", as Python's -m."""
    name = path.name
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    found = path.parent.joinpath(*name.split("."))
    tried = [found.with_name(f"{found.name}.py"), found / "__main__.py"]
    return next((file for file in tried if file.is_file()), None)


def file_of(module: object) -> str:
    """Returns the `__file__` of a module, "" without one.

    Read from its dict: a lazy module imports itself on access, which may fail.
    """
    found = getattr(module, "__dict__", {}).get("__file__")
    return found if isinstance(found, str) else ""


def import_file(path: Path) -> types.ModuleType:
    """Imports the file with its folder first on the path, as Python runs a script.

    Raises:
        UsageError: target-missing-file, target-import.
    """
    check_file(path)
    folder, name = place(path)
    if "." in name:
        return _import_part(path, folder, name)
    if name in sys.modules:
        name = f"{UNLIKE_THE_FILE}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        # A file without .py is read as Python, too.
        loader = importlib.machinery.SourceFileLoader(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, folder)
    sys.modules[name] = module  # dataclasses and pickle look modules up by name
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # sys.exit in the file included
        del sys.modules[name]
        if raised.is_own(error):
            raise
        raise _import_problem(path, error) from error
    return module


def _import_part(path: Path, folder: str, name: str) -> types.ModuleType:
    """Imports a part of a package, after the package: that may import the part."""
    sys.path.insert(0, folder)
    sys.modules.pop(name, None)
    try:
        return importlib.import_module(name)
    except BaseException as error:  # sys.exit in the file included
        sys.modules.pop(name, None)
        if raised.is_own(error):
            raise
        raise _import_problem(path, error) from error


def place(path: Path) -> tuple[str, str]:
    """Returns the folder that goes on sys.path for a target, and its module's name.

    A file of a package that imports its neighbours by `from .` is imported as a part
    of it, with what the package's own __init__.py does.
    """
    folder = path.resolve().parent
    name = path.stem if path.stem.isidentifier() else UNLIKE_THE_FILE
    if not (folder / "__init__.py").is_file() or not _imports_neighbours(path):
        return str(folder), name
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, f"{folder.name}.{name}"
    return str(folder), name


def _imports_neighbours(path: Path) -> bool:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False  # the import reports the error
    return any(isinstance(n, ast.ImportFrom) and n.level for n in ast.walk(tree))


def _import_problem(path: Path, error: BaseException) -> UsageError:
    fix = "make `python " + path.name + "` run without an error"
    if isinstance(error, SystemExit) or scripts.starts_group(str(path)):
        fix = 'put what only a script does under `if __name__ == "__main__":`'
    if isinstance(error, ModuleNotFoundError) and error.name:
        fix = f"install {error.name.split('.')[0]} in this environment"
    if isinstance(error, ImportError) and _hides_a_package(path, error.name or ""):
        fix = f"give the file another name: it hides the package {path.stem}"
    return usage_error(
        slug="target-import",
        message=f"{path.name} cannot be imported",
        expected="a file that imports without an error",
        found=raised.in_words(error, path.absolute().parent),
        fix=fix,
        stack=raised.stack(error),
    )


def _hides_a_package(path: Path, missed: str) -> bool:
    """Returns whether a package that is elsewhere has the name of the target's file."""
    folder = str(path.resolve().parent)
    elsewhere = [p for p in sys.path if str(Path(p).resolve()) != folder]
    finder = importlib.machinery.PathFinder
    is_of_its_name = missed.partition(".")[0] == path.stem
    return is_of_its_name and finder.find_spec(path.stem, elsewhere) is not None
