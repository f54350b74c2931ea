"""A pool leaves nothing behind, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from ddpcheck.ranks.folder import Folder, sweep
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import (
    SOLO,
    NoMoreProcessesError,
    Pool,
    Preload,
    PreloadError,
    ServerDiedError,
)

PID = Job(function="tests.ranks.plain_jobs:pid")
ROOT = Path(__file__).parents[2]
# Says where everything is, then waits to be killed.
PROGRAM = """
import sys, time
from ddpcheck.ranks.messages import Job
from ddpcheck.ranks.pool import Pool, Preload
sleeps = {"stuck": ("sleeper",), "locked": ("lock", "sleeper")}
plain = {"busy": (), "leaving": ()}
modules = {"importing": ("torch",), **plain, **sleeps}[sys.argv[1]]
pool = Pool(Preload(modules=modules))
pool.start()
if "sleeper" in modules:
    while not (pool.folder / "stuck").exists():
        time.sleep(0.01)
if sys.argv[1] in plain:
    pool.wait_for_imports()
    jobs = "tests.ranks.plain_jobs"
    ranks = pool.run(Job(function=f"{jobs}:pid"), 0)
    child = pool.folder / "child"
    busy = Job(function=f"{jobs}:wait_with_child", arguments={"path": str(child)})
    pool.submit(busy, 0, 1)
    while not child.exists():
        time.sleep(0.01)
    print(*(rank.value for rank in ranks), child.read_text(), end=" ")
print(pool._server.pid, pool.folder, flush=True)
if sys.argv[1] != "leaving":
    time.sleep(600)
from ddpcheck.ranks.crew import Crew
def kill(crew):
    raise SystemExit("broken off")
Crew.kill = kill
pool.close()
"""


def _wait_until_gone(pids: list[int], folder: Path) -> None:
    # Looks are counted, not seconds: in those a machine may have stood still.
    for _ in range(200):  # fewer than a fork server takes that hangs in its own end
        if not folder.exists() and not any(map(_is_alive, pids)):
            return
        time.sleep(0.05)
    assert not [_status(pid) for pid in pids if _is_alive(pid)]
    assert not folder.exists()


def _status(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return f"{pid} has gone since"


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_close_leaves_no_process_and_no_folder() -> None:
    with Pool(Preload(modules=("torch",))) as pool:
        pool.start()
        pool.wait_for_imports()
        server = pool._server  # noqa: SLF001
        assert server is not None
        assert server.pid is not None
        pids = [server.pid]
        for world_size in (SOLO, 1, 2):
            pids += [outcome.value for outcome in pool.run(PID, world_size)]
        folder = pool.folder
        assert oct(folder.stat().st_mode)[-3:] == "700"
    _wait_until_gone(pids, folder)
    pool.close()


# Writes its mark to the folder of the fork server, whose settings are gone by then.
SLEEPER = """
import sys, time
from pathlib import Path
frame = sys._getframe()
while "settings" not in frame.f_locals:
    frame = frame.f_back
(Path(frame.f_locals["settings"]["folder"]) / "stuck").touch()
time.sleep(600)
"""


# Asks for the folder of temporary files and gets no further.
LOCK = """
import tempfile
tempfile._once_lock.acquire()
tempfile.tempdir = None
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("importing", signal.SIGTERM),
        ("stuck", signal.SIGKILL),
        ("locked", signal.SIGKILL),
        ("busy", signal.SIGKILL),
        ("busy", signal.SIGTERM),
    ],
)
def test_killed_tool_leaves_no_process_and_no_folder(
    when: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER, encoding="utf-8")
    (tmp_path / "lock.py").write_text(LOCK, encoding="utf-8")
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    tool = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, when],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    with tool:
        assert tool.stdout is not None
        *pids, folder = tool.stdout.readline().split()
        tool.send_signal(number)
    _wait_until_gone([int(pid) for pid in pids], Path(folder))


def test_tool_whose_end_is_broken_off_waits_for_no_rank() -> None:
    # A second Ctrl-C can break off `close`, and the rank runs for ten minutes.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "leaving"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "broken off" in done.stderr
    *pids, folder = done.stdout.split()
    _wait_until_gone([int(pid) for pid in pids], Path(folder))


# Hangs at its end, and has let alarms pass before.
STUCK_AT_THE_END = """
import signal, time
from ddpcheck.ranks import processes
signal.signal(signal.SIGALRM, signal.SIG_IGN)
processes.leave_within(1)
while True:
    time.sleep(600)
"""


def test_process_that_hangs_while_it_cleans_up_is_ended_by_the_kernel() -> None:
    code = [sys.executable, "-c", STUCK_AT_THE_END]
    done = subprocess.run(code, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGALRM


def test_killed_server_is_no_fault_of_the_job() -> None:
    with Pool(Preload()) as pool:
        pool.start()
        pool.wait_for_imports()
        pids = [outcome.value for outcome in pool.run(PID, SOLO)]
        server = pool._server  # noqa: SLF001
        assert server is not None
        assert server.pid is not None
        task = pool.submit(Job(function="tests.ranks.plain_jobs:wait"), SOLO)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ServerDiedError) as caught:
            pool.wait([task])
        expected = "the fork server was killed, and all ranks with it"
        assert str(caught.value) == expected
        with pytest.raises(ServerDiedError):
            pool.run(PID, SOLO)
    _wait_until_gone([*pids, server.pid or 0], pool.folder)


def test_children_of_a_rank_that_died_by_itself_die_too(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "child"
    code = (
        f"p = subprocess.Popen(['sleep', '600']); open({str(path)!r}, 'w')"
        ".write(str(p.pid)); os._exit(3)"
    )
    job = Job(function="tests.ranks.jobs:deed", arguments={"code": code})
    (outcome,) = pool.run(job, SOLO)
    assert (outcome.kind, outcome.exit_code) == ("died", 3)
    _wait_until_gone([int(path.read_text(encoding="utf-8"))], tmp_path / "none")


def test_folder_of_a_session_that_was_killed_whole_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpcheck.ranks.folder.base_folder", lambda: str(tmp_path))
    left, made, foreign = (tmp_path / f"ddpcheck-{n}-abc" for n in (1, 2, 3))
    for path in (left, made, foreign):
        path.mkdir()
    (left / "lock").touch()
    (foreign / "lock").mkdir()
    first = Folder()
    second = Folder()  # does not take the first for one that is left
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {first.path.name, second.path.name, made.name, foreign.name}
    first.remove()
    second.remove()
    second.remove()
    assert {p.name for p in tmp_path.iterdir()} == {made.name, foreign.name}


def test_folder_that_is_being_made_is_not_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two workers of pytest start at once: one sweeps at any point of the other's start.
    monkeypatch.setattr("ddpcheck.ranks.folder.base_folder", lambda: str(tmp_path))
    points: list[str] = []

    def swept_before(owner: ModuleType | type, name: str) -> None:
        original = getattr(owner, name)

        def act(*args: Any, **options: Any) -> Any:
            with monkeypatch.context() as inner:
                inner.setattr(owner, name, original)
                sweep(tmp_path)
            points.append(name)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, act)

    for owner, name in ((os, "open"), (fcntl, "flock"), (Path, "rename")):
        swept_before(owner, name)
    folder = Folder()
    monkeypatch.undo()
    sweep(tmp_path)
    assert [path.name for path in folder.path.iterdir()] == ["lock"]
    assert {"open", "flock", "rename"} <= set(points)
    folder.remove()


def test_temporary_files_of_imported_modules_go_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "import tempfile\nfolder = tempfile.mkdtemp()\ndef call(*_): return folder\n"
    for name in ("torch_2_6", "user_code"):
        (tmp_path / f"{name}.py").write_text(body, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    what = Preload(modules=("torch_2_6",), call="user_code:call")
    with Pool(what) as pool:
        pool.wait_for_imports()
        made = [
            Path(pool.run(Job(function=f"{name}:call"), 0)[0].value)
            for name in ("torch_2_6", "user_code")
        ]
        assert [path.parent for path in made] == [pool.folder, tmp_path]
    assert [path.exists() for path in made] == [False, True]


def test_import_that_raises_is_reported() -> None:
    with Pool(Preload(modules=("no_such_module",))) as pool:
        pool.start()
        with pytest.raises(PreloadError, match="No module named 'no_such_module'") as e:
            pool.wait_for_imports()
    assert e.value.kind == "raised"


@pytest.mark.parametrize(
    ("body", "kind", "detail"),
    [
        ("import time\ntime.sleep(600)\n", "hung", "sleeper.py"),
        ("import os\nos.write(2, b'goodbye')\nos._exit(3)\n", "died", "goodbye"),
    ],
    ids=["hung", "died"],
)
def test_target_that_does_not_import_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    kind: str,
    detail: str,
) -> None:
    (tmp_path / "sleeper.py").write_text(body, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    # Only what `call` imports is user code, and under the deadline of the pool.
    with Pool(Preload(call="sleeper:load"), timeout_s=1) as pool:
        pool.start()
        with pytest.raises(PreloadError) as caught:
            pool.wait_for_imports()
    assert caught.value.kind == kind
    assert detail in caught.value.detail


@pytest.mark.parametrize("needs_later", [True, False])
def test_modules_of_later_come_after_the_call_if_at_all(
    *, needs_later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys, time, types\n"
        "def load():\n"
        "    print('late' in sys.modules, flush=True)\n"
        f"    return types.SimpleNamespace(needs_later={needs_later})\n"
    )
    (tmp_path / "early.py").write_text(program, encoding="utf-8")
    late = "import time\ntime.sleep(0.5)\nprint('imported late', flush=True)\n"
    (tmp_path / "late.py").write_text(late, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    # The deadline is for the call: what comes after it may take longer.
    with Pool(Preload(call="early:load", later=("late",)), timeout_s=0.3) as pool:
        pool.start()
        pool.wait_for_imports()
        log = (pool.folder / "forkserver.log").read_text(encoding="utf-8")
    assert log.splitlines() == ["False", "imported late"][: 1 + needs_later]


def test_environment_of_the_tool_is_left_alone() -> None:
    before = dict(os.environ)
    with contextlib.suppress(PreloadError), Pool(Preload(modules=("nope",))) as pool:
        pool.start()
        assert dict(os.environ) == before
        pool.wait_for_imports()


CANNOT_FORK = """
import os
def load():
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    os.fork = fork
"""
CANNOT_MEET = """
from ddpcheck.ranks import worker
def load():
    def join(seat):
        raise RuntimeError("no interface")
    worker.join_group = join
"""
DIES_EARLY = """
import os
from ddpcheck.ranks import worker
def load():
    worker.join_group = lambda seat: os._exit(7)
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CANNOT_FORK, "fork failed"),
        (CANNOT_MEET, "RuntimeError: no interface"),
        (DIES_EARLY, "a rank ended with exit code 7 before it was ready"),
    ],
    ids=["fork", "meet", "dies"],
)
def test_rank_that_never_sat_is_no_fault_of_the_job(
    source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "poor.py").write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    with Pool(Preload(call="poor:load")) as pool:
        pool.start()
        pool.wait_for_imports()
        with pytest.raises(NoMoreProcessesError) as caught:
            pool.run(PID, SOLO)
    assert str(caught.value) == (
        f"no process for all ranks of world size 0: {expected}\n"
        "  raise the limit (ulimit -u, ulimit -n, the container's pids) or ask for "
        "fewer ranks"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (EOFError(), "fork failed"),
        (BrokenPipeError(32, "Broken pipe"), "fork failed"),
        (ConnectionResetError(104, "reset"), "fork failed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_why_there_is_no_process_is_reported(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(*_: object) -> None:
        raise error

    monkeypatch.setattr("ddpcheck.ranks.server.forkserver.Server.spawn", spawn)
    with Pool(Preload()) as pool:
        pool.start()
        pool.wait_for_imports()
        with pytest.raises(NoMoreProcessesError, match=re.escape(expected)):
            pool.run(PID, 2)


OF_USER = """
import colorsys
def load():
    return "the user's"
"""
OUTSIDE = """
import sys
def seen(context):
    from ddpcheck.ranks.server import preload
    return "of_user" in sys.modules, "colorsys" in sys.modules, preload.RESULT
"""


def test_fresh_ranks_have_imported_the_libraries_of_the_target_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_user.py").write_text(OF_USER, encoding="utf-8")
    (tmp_path / "outside.py").write_text(OUTSIDE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    job = Job(function="outside:seen")
    with Pool(Preload(call="of_user:load")) as pool:
        pool.start()
        pool.wait_for_imports()
        assert pool.run(job, SOLO)[0].value == (True, True, "the user's")
        pids = []
        for _ in range(2):
            with contextlib.closing(pool.fresh()) as fresh:
                assert fresh.run(job, SOLO)[0].value == (False, True, None)
                pids.append(fresh.run(PID, SOLO)[0].value)
        assert len(set(pids)) == 2
        assert pool.run(job, SOLO)[0].value == (True, True, "the user's")
        folder, spare = pool.folder, pool.fresh()._server  # noqa: SLF001
        assert spare is not None
        assert spare.pid is not None
        pids.append(spare.pid)
    _wait_until_gone(pids, folder)
