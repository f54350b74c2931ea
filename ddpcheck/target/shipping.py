"""Sends objects of the caller's process to ranks: by value what they cannot import.

Ranks have the caller's sys.path, so an installed package, or a module next to the test,
is imported there. A test module is not: importing it again would run it again.

Installed packages that the caller's own modules use are imported by the fork server,
once for all ranks; otherwise every rank would import transformers in its first job.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import site
import sys
import sysconfig
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.target import importing

_TESTS = ("test_", "conftest")


def pack(thing: Any, path: Path) -> None:
    """Writes an object to a file that `unpack` reads in another process.

    Raises:
        UsageError: target-pickle.
    """
    import cloudpickle  # type: ignore[import-untyped]  # noqa: PLC0415

    with _by_value(cloudpickle):
        try:
            data = _pickled(cloudpickle, thing)
        except Exception as error:
            raise _unpicklable(error) from error
    path.write_bytes(data)


def _pickled(cloudpickle: Any, thing: Any) -> bytes:
    """Returns the pickle, in which code objects keep their file names.

    cloudpickle 3.1.3 leaves that out; findings and stacks need it.
    """
    known = getattr(cloudpickle.Pickler, "dispatch_table", {})
    usual = known.get(types.CodeType)
    if usual is None:
        data: bytes = cloudpickle.dumps(thing)
        return data

    def reduce(code: types.CodeType) -> Any:
        make, arguments = usual(code)[:2]
        return _code_of_file, (make, arguments, code.co_filename)

    table = ChainMap({types.CodeType: reduce}, known)
    # A pickler reads its class's table when it is made.
    kind = type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
    stream = io.BytesIO()
    kind(stream).dump(thing)
    return stream.getvalue()


def _code_of_file(
    make: Callable[..., types.CodeType], arguments: tuple[Any, ...], path: str
) -> types.CodeType:
    return make(*arguments).replace(co_filename=path)


def unpack(path: str) -> Any:
    """Returns a new copy of the target that `pack` wrote."""
    import cloudpickle  # noqa: PLC0415

    return cloudpickle.loads(Path(path).read_bytes())


@contextlib.contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """Lets pickles hold the code of the modules that ranks are not to import."""
    # A module under another name than its own cannot be registered.
    modules = [
        m for n, m in list(sys.modules.items()) if _goes_by_value(m) and m.__name__ == n
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def source_of(
    parts: Mapping[str, Any],
) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    """Returns the file that defines all these parts, and its names of them.

    None where no file does that another process may import: objects of a function, or
    a script that would start a check when imported.
    """
    given = {key: value for key, value in parts.items() if value is not None}
    homes = {getattr(v, "__module__", None) or "" for v in given.values()}
    for name in sorted(homes):
        module = sys.modules.get(name)
        path = importing.file_of(module)
        if module is None or not path or is_installed(module):
            continue
        names = {key: _name_in(module, key, value) for key, value in given.items()}
        if all(names.values()) and (name != "__main__" or _only_defines(Path(path))):
            return path, tuple(names.items())
    return None, ()


def _name_in(module: ModuleType, key: str, value: Any) -> str:
    """Returns the name of a value in a module, its usual one if that is it, else ""."""
    own = vars(module)
    if own.get(key) is value:
        return key
    return next((name for name, other in own.items() if other is value), "")


def _only_defines(path: Path) -> bool:
    """Returns whether a script calls nothing of ddpcheck where it is imported."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    imports = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom)]
    ours = {
        (alias.asname or alias.name).partition(".")[0]
        for node in imports
        for alias in node.names
        if package(getattr(node, "module", None) or alias.name) == "ddpcheck"
    }
    defines = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    run = [n for n in body if not isinstance(n, defines) and not is_guard(n)]
    used = {n.id for node in run for n in ast.walk(node) if isinstance(n, ast.Name)}
    return not ours & used


def is_guard(node: ast.stmt) -> bool:
    """Returns whether it is the `if __name__ == "__main__":` of a script."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _goes_by_value(module: Any) -> bool:
    if not isinstance(module, ModuleType) or module.__name__ == "__main__":
        return False  # cloudpickle itself sends __main__ by value
    path = importing.file_of(module)
    if not path or is_installed(module):
        return False
    stem = Path(path).stem
    is_test = stem.startswith(_TESTS) or stem.endswith("_test")
    return is_test or not _is_importable(module.__name__, path, tuple(sys.path))


@functools.cache
def _is_importable(name: str, path: str, sys_path: tuple[str, ...]) -> bool:
    """Returns whether another process with this sys.path finds the same file.

    importlib.util.find_spec would return what this process has, which pytest's import
    mode "importlib" loads from anywhere.
    """
    del sys_path  # the finders read it; here it is the key of the cache
    where: Any = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        spec = _found(".".join(parts[:count]), where)
        if spec is None:
            return False
        where = spec.submodule_search_locations
    return spec is not None and spec.origin == path


def _found(name: str, where: Any) -> Any:
    for finder in sys.meta_path:
        # pytest's own finder rewrites what it finds; the others are in ranks too.
        if type(finder).__module__.startswith("_pytest"):
            continue
        with contextlib.suppress(Exception):
            spec = finder.find_spec(name, where)
            if spec is not None:
                return spec
    return None


def _unpicklable(error: Exception) -> UsageError:
    return usage_error(
        slug="target-pickle",
        message="the target cannot be sent to ranks",
        expected="functions and objects that can be pickled",
        found=f"{type(error).__name__}: {error}".splitlines()[0],
        fix="make inside model(), batch() or loss() what cannot be pickled",
    )


# Ranks have these anyway, or have no use for them.
_LEFT_OUT = {
    *sys.stdlib_module_names,
    *("ddpcheck", "torch", "numpy", "cloudpickle"),
    *("pytest", "_pytest", "pluggy", "xdist", "execnet", "py"),
}


def used_libraries() -> tuple[str, ...]:
    """Returns the modules of these packages, in the order of their first import.

    All loaded modules of a package, also those that it loads lazily.
    """
    # Both grow where the caller imports something: a walk over all takes 3 ms.
    return _used(len(sys.modules), len(vars(sys.modules["__main__"])))


@functools.lru_cache(maxsize=1)
def _used(*_sizes: int) -> tuple[str, ...]:
    values = [v for module in _own_modules() for v in list(vars(module).values())]
    packages = {package(home) for home in map(_home, values) if home} - _LEFT_OUT
    found = [pair for pair in list(sys.modules.items()) if package(pair[0]) in packages]
    return tuple(name for name, module in found if is_installed(module))


def package(name: str) -> str:
    """Returns the outermost package of a module."""
    return name.partition(".")[0]


def is_installed(module: object) -> bool:
    """Returns whether a module's file is Python's own or an installed package's."""
    return importing.file_of(module).startswith(_folders())


@functools.cache
def _folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_path(name) for name in names]
    return tuple({*found, *site.getsitepackages(), site.getusersitepackages()})


def _own_modules() -> Iterator[ModuleType]:
    """Yields the caller's modules: neither installed nor left out."""
    for name, module in list(sys.modules.items()):
        if package(name) in _LEFT_OUT or not isinstance(module, ModuleType):
            continue
        # What is typed into an interpreter or a notebook has no file.
        has_code = importing.file_of(module) or name == "__main__"
        if has_code and not is_installed(module):
            yield module


def _home(value: object) -> str:
    """Returns the module that a module, class or function is or comes from."""
    kind = type(value)
    if issubclass(kind, ModuleType):  # isinstance would ask the value
        return str(vars(value).get("__name__", ""))
    if issubclass(kind, type | FunctionType):
        return str(getattr(value, "__module__", ""))
    return ""
