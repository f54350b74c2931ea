"""What ranks cannot import reaches them by value, everything else by name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddpcheck import api
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool, Preload, PreloadError
from ddpcheck.target import shipping
from tests.test_api import TARGET

SOURCE = """\
FACTOR = 1


class Scaled:
    def __call__(self, value):
        return FACTOR * value


def plus(value):
    return value + FACTOR
"""
READER = """
import sys
from ddpcheck.target import shipping
plus, scaled = shipping.unpack(sys.argv[1])
print(plus.__module__ in sys.modules, plus(1), scaled(5))
"""


def _load(path: Path) -> ModuleType:
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path, for this process and those it starts."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith("_module"):
            del sys.modules[name]


def _in_another_process(module: ModuleType, folder: Path) -> str:
    path = folder / "pickled"
    shipping.pack((module.plus, module.Scaled()), path)
    command = [sys.executable, "-c", READER, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importable_module_goes_by_name(folder: Path) -> None:
    module = _load(folder / "helper_module.py")
    module.FACTOR = 3  # type: ignore[attr-defined]
    assert _in_another_process(module, folder) == "True 2 5"


def test_test_module_goes_by_value_with_its_globals_as_they_are(folder: Path) -> None:
    module = _load(folder / "test_of_user_module.py")
    module.FACTOR = 3  # type: ignore[attr-defined]
    assert _in_another_process(module, folder) == "False 4 15"


def test_module_that_only_this_process_can_import_goes_by_value(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    module = _load(folder / "elsewhere" / "hidden_module.py")
    assert _in_another_process(module, folder) == "False 2 5"


def test_code_that_goes_by_value_names_the_file_it_is_from(folder: Path) -> None:
    module = _load(folder / "test_of_user_module.py")

    def outer() -> Any:
        return lambda: module  # an inner code object

    shipping.pack((module.plus, outer), folder / "pickled")
    plus, made = shipping.unpack(str(folder / "pickled"))
    assert plus.__code__.co_filename == str(folder / "test_of_user_module.py")
    assert {f.__code__.co_filename for f in (made, made())} == {__file__}


def test_what_cannot_be_pickled_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot pickle") as raised:
        shipping.pack(threading.Lock(), tmp_path / "pickled")
    assert raised.value.problem.slug == "target-pickle"
    assert not (tmp_path / "pickled").exists()


PROGRAM = """\
import pathlib
import ddpcheck
import heavy

exec({target!r})

def loss(output, target):
    return (output - target).square().mean() * heavy.one()

with ddpcheck.warm_ranks():
    for _ in range(2):
        report = ddpcheck.check(model, batch, loss, world_sizes=[2], modes=["ddp"])
        print(report.verdict)
print(pathlib.Path({log!r}).read_text().count("imported"))
"""
HEAVY = """\
with open({log!r}, "a") as log:
    log.write("imported\\n")

def one():
    return 1
"""


@pytest.mark.slow
def test_fork_server_imports_them_once(tmp_path: Path) -> None:
    user_site = subprocess.run(
        [sys.executable, "-c", "import site; print(site.getusersitepackages())"],
        env=os.environ | {"PYTHONUSERBASE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    log = str(tmp_path / "log")
    Path(user_site).mkdir(parents=True)
    (Path(user_site) / "heavy.py").write_text(HEAVY.format(log=log), encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(target=TARGET, log=log), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        env=os.environ | {"PYTHONUSERBASE": str(tmp_path), "PYTHONPATH": user_site},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    # By the program and by the fork server, not by any of six ranks.
    assert done.stdout.split() == ["equivalent", "equivalent", "2"], done.stderr


def _module(name: str, path: Path, **values: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(values, __file__=str(path / f"{name}.py"))
    return module


def test_they_are_those_that_own_modules_have_names_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, own = tmp_path / "site", tmp_path / "own"
    monkeypatch.setattr(shipping, "_folders", lambda: (str(site),))
    net = type("Net", (), {"__module__": "kit.nets"})
    for module in (
        _module("kit", site),
        _module("kit.nets", site, Net=net),
        _module("kit.unseen", tmp_path / "elsewhere"),
        _module("other", site),
        _module("mine", own, Net=net, pytest=pytest, number=3),
        _module("yours", own),
        _module("theirs", own, mine=ModuleType("mine")),
    ):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = [
        name for name in shipping.used_libraries() if name.startswith(("kit", "other"))
    ]
    assert found == ["kit", "kit.nets"]
    assert not {"pytest", "mine", "torch", "sys"} & set(shipping.used_libraries())


def test_main_without_a_file_is_looked_at() -> None:
    program = "import psutil; from ddpcheck.target import shipping; "
    program += "print(shipping.used_libraries())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True
    )
    assert b"'psutil'" in done.stdout


class _Pool:
    """Cannot fork ranks with the first library, or not even import any."""

    made: list[tuple[str, ...]]
    error: PreloadError | None
    timeout_s = 0.0

    def __init__(self, what: Preload) -> None:
        self.unfit = ""
        self._libraries = what.libraries
        type(self).made.append(what.libraries)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def wait_for_imports(self) -> None:
        if self._libraries and self.error:
            raise self.error
        self.unfit = "kit.nets" if "kit" in self._libraries else ""


@pytest.mark.parametrize(
    ("kind", "left"), [("", ("base",)), ("died", ()), ("hung", ())]
)
def test_ranks_do_without_what_no_process_forks_after(
    kind: str, left: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = ["base", "kit", "kit.nets"]
    monkeypatch.setattr(shipping, "used_libraries", lambda: tuple(used))
    monkeypatch.setattr(api, "Pool", _Pool)
    _Pool.made, _Pool.error = [], PreloadError(kind, "") if kind else None
    ranks = api.WarmRanks()
    assert ranks.open(5.0).timeout_s == 5.0
    ranks.start()
    assert _Pool.made == [("base", "kit", "kit.nets"), left]
    used.append("other")
    ranks.start()
    assert _Pool.made[2:] == [(*left, "other")]


def test_pool_passes_over_what_cannot_be_imported_and_reports_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        encoding="utf-8",
    )
    # As the one that jemalloc starts for pyarrow, and stops before a fork.
    (tmp_path / "stopping.py").write_text(
        "import threading, time, pathlib\n"
        "def run():\n"
        "    task = pathlib.Path(f'/proc/self/task/{threading.get_native_id()}/comm')\n"
        "    task.write_text('jemalloc_bg_thd')\n"
        "    named.set()\n"
        "    time.sleep(60)\n"
        "named = threading.Event()\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "named.wait()\n",
        encoding="utf-8",
    )
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for names, unfit in (
        (("no_such_module", "leaving", "json"), ""),
        (("stopping", "json"), ""),
        (("json", "threaded", "csv"), "threaded"),
    ):
        with Pool(Preload(libraries=names)) as pool:
            pool.wait_for_imports()
            assert pool.unfit == unfit


DEFINES = """
import ddpcheck
from ddpcheck import check as compare
def build(): ...
def loss(output, target): ...
data = ([1], [2])
if __name__ == "__main__":
    compare(build, data, loss)
"""


def _script(path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Returns a script that runs, except for what it calls of ddpcheck."""
    path.write_text(source, encoding="utf-8")
    module = ModuleType("__main__")
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(compile(source.partition("\nif")[0], str(path), "exec"), vars(module))  # noqa: S102
    return module


def test_source_of_parts_is_the_file_with_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _script(tmp_path / "mine.py", DEFINES, monkeypatch)
    parts = {"model": module.build, "batch": module.data, "loss": module.loss}
    assert shipping.source_of(parts) == (
        str(tmp_path / "mine.py"),
        (("model", "build"), ("batch", "data"), ("loss", "loss")),
    )
    assert shipping.source_of(parts | {"wrap": lambda model: model}) == (None, ())
    assert shipping.source_of(parts | {"batch": ([1], [2])}) == (None, ())


def test_source_of_parts_is_no_script_that_checks_when_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = "".join(DEFINES.splitlines(keepends=True)[:-2])
    module = _script(tmp_path / "mine.py", checks, monkeypatch)
    parts = {"model": module.build, "batch": module.data, "loss": module.loss}
    assert shipping.source_of(parts)[0] == str(tmp_path / "mine.py")
    text = f"{checks}report = compare(build, data, loss)\n"
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert shipping.source_of(parts) == (None, ())
