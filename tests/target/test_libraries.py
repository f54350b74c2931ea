"""Packages that the caller's modules use are imported once, for all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddpcheck import api
from ddpcheck.ranks.pool import Pool, Preload, PreloadError
from ddpcheck.target import libraries
from tests.test_api import TARGET

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
    monkeypatch.setattr(libraries, "_folders", lambda: (str(site),))
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
    found = [name for name in libraries.used() if name.startswith(("kit", "other"))]
    assert found == ["kit", "kit.nets"]
    assert not {"pytest", "mine", "torch", "sys"} & set(libraries.used())


def test_main_without_a_file_is_looked_at() -> None:
    program = (
        "import psutil; from ddpcheck.target import libraries; print(libraries.used())"
    )
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
    monkeypatch.setattr(libraries, "used", lambda: tuple(used))
    monkeypatch.setattr(api, "Pool", _Pool)
    _Pool.made, _Pool.error = [], PreloadError(kind, "") if kind else None
    ranks = api.WarmRanks()
    assert ranks.open(5.0).timeout_s == 5.0
    ranks.start()
    assert _Pool.made == [("base", "kit", "kit.nets"), left]
    used.append("other")
    ranks.start()
    assert _Pool.made[2:] == [(*left, "other")]


def test_pool_passes_over_what_cannot_be_imported_and_tells_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
        encoding="utf-8",
    )
    (tmp_path / "leaving.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for names, unfit in (
        (("no_such_module", "leaving", "json"), ""),
        (("json", "threaded", "csv"), "threaded"),
    ):
        with Pool(Preload(libraries=names)) as pool:
            pool.wait_for_imports()
            assert pool.unfit == unfit
