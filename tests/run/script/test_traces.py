"""What a script writes is removed, and what existed before stays as it was."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ddpcheck.ranks import made
from tests.run.script import start

REFUSED = "which existed before the check; --allow-writes allows it"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of a user's, in the temporary folder, with what a run has left."""
    folder = tmp_path / "project"
    (folder / "out" / "old").mkdir(parents=True)
    (folder / "out" / "old" / "ckpt.pt").write_bytes(b"weights")
    (folder / "out" / "latest.pt").write_bytes(b"more weights")
    (folder / "train.log").write_text("epoch 0\n", encoding="utf-8")
    (folder / "data.db").write_bytes(b"")
    (folder / "run.sh").write_text("true\n", encoding="utf-8")
    (folder / "run.sh").chmod(0o750)
    (folder / "link").symlink_to("train.log")
    (folder / "module.py").write_text("NAME = 'module'\n", encoding="utf-8")
    (folder / "train.py").write_text("", encoding="utf-8")
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    return folder


def _look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Returns the bytes, the mode and the time of each path in a folder, and of it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        data = b""
        if path.is_symlink():
            data = str(path.readlink()).encode()
        elif path.is_file():
            data = path.read_bytes()
        name = str(path.relative_to(folder))
        found[name] = data, status.st_mode, status.st_mtime_ns, status.st_nlink
    return found


def _run(
    project: Path, text: str, *, allows_writes: bool = False
) -> tuple[subprocess.CompletedProcess[str], Path]:
    script = project / "train.py"
    times = script.stat().st_mtime_ns, project.stat().st_mtime_ns
    script.write_text(text, encoding="utf-8")
    os.utime(script, ns=times)
    folder = project.parent / "check"
    folder.mkdir(exist_ok=True)
    return start.to_its_end(script, folder, allows_writes=allows_writes), folder


WRITES = """
import logging, os, pathlib, shutil, sqlite3, sys, tempfile
import numpy as np
import torch
import module
from safetensors.torch import save_file
from torch import nn

os.makedirs("runs/a/b")
os.makedirs("out/old", exist_ok=True)
pathlib.Path("out/step1").mkdir()
torch.save({"step": 1}, "out/step1/ckpt.pt")
torch.save({"step": 1}, pathlib.Path("out/new.pt"))
assert torch.load("out/new.pt") == {"step": 1}
torch.jit.save(torch.jit.script(nn.Linear(2, 2)), "scripted.pt")
save_file({"w": torch.ones(2)}, "out/model.safetensors")
np.save("runs/a/array.npy", np.ones(3))
with open("runs/a/log.txt", "w") as stream:
    stream.write("epoch 0")
with open("runs/a/log.txt", "a") as stream:
    stream.write("epoch 1")
logging.FileHandler("new.log").emit(logging.makeLogRecord({"msg": "hello"}))
with open("config.tmp", "w") as stream:
    stream.write("a: 1")
os.replace("config.tmp", "config.yaml")
os.chmod("config.yaml", 0o600)
os.symlink("config.yaml", "latest")
os.link("config.yaml", "runs/hard")
shutil.copytree("runs/a", "runs/copy")
shutil.move("runs/copy", "moved")
shutil.rmtree("moved")
os.mkdir("gone")
os.rmdir("gone")
connection = sqlite3.connect("study.db")
connection.execute("create table t (x)")
connection.commit()
temporary = tempfile.mkdtemp()
open(os.path.join(temporary, "left"), "w").close()
os.system("touch runs/by-touch")
fork = os.fork()
if not fork:
    open("by-a-fork", "w").close()
    os._exit(0)
os.waitpid(fork, 0)
open("/dev/null", "w").close()
"""


def test_script_that_writes_new_files_leaves_none(project: Path) -> None:
    before = _look(project)
    done, folder = _run(project, WRITES)
    assert done.returncode == 0, done.stderr
    assert (project / "out" / "step1" / "ckpt.pt").exists()
    found = made.read(folder)
    assert found.refused == ()
    assert found.programs == ("touch runs/by-touch",)
    assert made.remove(folder) == []
    after = _look(project)
    after["train.py"] = before["train.py"]
    assert after == before


# Code that changes what existed, how it does, and what.
CASES = [
    ("open('train.log', 'w')", "overwrite", "train.log"),
    ("open('train.log', 'a')", "overwrite", "train.log"),
    ("open('train.log', 'r+')", "overwrite", "train.log"),
    ("open('link', 'w')", "overwrite", "train.log"),
    ("__import__('logging').FileHandler('train.log')", "overwrite", "train.log"),
    ("torch.save(1, 'out/latest.pt')", "overwrite", "out/latest.pt"),
    ("torch.save(1, pathlib.Path('out/latest.pt'))", "overwrite", "out/latest.pt"),
    (
        "torch.jit.save(torch.jit.script(torch.nn.ReLU()), 'out/latest.pt')",
        "overwrite",
        "out/latest.pt",
    ),
    (
        "import safetensors.torch as s; s.save_file({}, 'out/latest.pt')",
        "overwrite",
        "out/latest.pt",
    ),
    ("os.remove('out/latest.pt')", "remove", "out/latest.pt"),
    ("pathlib.Path('link').unlink()", "remove", "link"),
    ("shutil.rmtree('out')", "remove", "out"),
    ("os.rename('out/old', 'out/older')", "move", "out/old"),
    ("shutil.move('train.log', '/tmp/x')", "move", "train.log"),
    (
        "open('t', 'w').close(); os.replace('t', 'train.log')",
        "overwrite",
        "train.log",
    ),
    ("os.truncate('train.log', 2)", "change", "train.log"),
    ("os.chmod('run.sh', 0o600)", "change", "run.sh"),
    ("os.utime('run.sh')", "change", "run.sh"),
    ("os.link('run.sh', 'hard')", "change", "run.sh"),
]
# Each is swallowed: the list still has it.
REFUSALS = "import os, pathlib, shutil\nimport torch\n" + "".join(
    f"try:\n    {code}\nexcept OSError as error:\n    print(error)\n"
    for code, _, _ in CASES
)


def test_script_that_changes_what_existed_is_refused(project: Path) -> None:
    before = _look(project)
    done, folder = _run(project, REFUSALS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"ddpcheck refuses to {how} {project / name}, {REFUSED}"
        for _, how, name in CASES
    ]
    expected = [
        made.Refused(path=str(project / name), how=how) for _, how, name in CASES
    ]
    found = made.read(folder).refused
    assert found == tuple(dict.fromkeys(expected))
    assert made.remove(folder) == []
    after = _look(project)
    after["train.py"] = before["train.py"]
    assert after == before


# Ends as a rank does that hangs: by SIGKILL.
ALLOWED = """
import os, shutil, signal
os.makedirs("new/folder")
shutil.move("train.log", "new/folder")
os.rename("run.sh", "new/run.sh")
open("out/latest.pt", "w").close()
open("out/next.pt", "w").close()
open("new/next.pt", "w").close()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_script_that_may_write_keeps_what_existed_where_it_was_moved(
    project: Path,
) -> None:
    done, folder = _run(project, ALLOWED, allows_writes=True)
    assert done.returncode == -9, done.stderr
    assert made.remove(folder) == [f"{project}/new/folder", f"{project}/new"]
    assert (project / "new" / "folder" / "train.log").read_text() == "epoch 0\n"
    assert (project / "new" / "run.sh").exists()
    assert not (project / "new" / "next.pt").exists()
    assert not (project / "out" / "next.pt").exists()
    assert (project / "out" / "latest.pt").read_bytes() == b""


DATABASE = """
import sqlite3
connection = sqlite3.connect("data.db")
print(connection.execute("select count(*) from sqlite_master").fetchone())
try:
    connection.execute("create table t (x)")
except sqlite3.OperationalError as error:
    print(error)
"""


def test_database_that_existed_can_be_read_but_not_written(project: Path) -> None:
    done, _ = _run(project, DATABASE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(0,)\nattempt to write a readonly database\n"
    assert (project / "data.db").read_bytes() == b""


def test_remove_of_a_check_that_made_nothing_removes_nothing(tmp_path: Path) -> None:
    assert made.remove(tmp_path) == []
    assert made.read(tmp_path).paths == ()


# As of https://github.com/pytorch/examples: it resumes if there is a snapshot.
RESUMES = """
import os, pathlib
import torch
assert not os.path.exists("out/snapshot.pt")
assert not os.path.isdir("runs")
assert sorted(os.listdir("out")) == ["latest.pt", "old"], os.listdir("out")
assert not list(pathlib.Path("runs").glob("*"))
try:
    open("out/snapshot.pt")
except FileNotFoundError:
    pass
os.mkdir("runs")
assert os.listdir("runs") == []
assert not [name for _, _, names in os.walk("runs") for name in names]
with open("runs/log", "a") as stream:
    stream.write("epoch 0")
assert pathlib.Path("runs/log").read_text() == "epoch 0"
torch.save(1, "out/snapshot.pt")
assert os.path.exists("out/snapshot.pt") and torch.load("out/snapshot.pt") == 1
assert "snapshot.pt" in os.listdir("out")
"""


def test_second_run_finds_nothing_of_the_first(project: Path) -> None:
    before = _look(project)
    done, folder = _run(project, RESUMES)
    assert done.returncode == 0, done.stderr
    done, _ = _run(project, RESUMES)
    assert done.returncode == 0, done.stderr
    assert made.remove(folder) == []
    after = _look(project)
    after["train.py"] = before["train.py"]
    assert after == before
