"""The engine: whatever a rank does, the pool says so in time and goes on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path
from typing import Any

import psutil
import pytest

import ddpcheck
from ddpcheck.ranks.folder import base_folder
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import SOLO, Pool, Preload

TIMEOUT_S = 0.6
# A slow machine included; a hang would otherwise be found by no one.
LIMIT_S = 60.0


@pytest.fixture
def engine(pool: Pool, early_looks: None) -> Pool:  # noqa: ARG001 (patches)
    """The pool, quick to see that ranks wait for one that failed."""
    return pool


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < LIMIT_S


def _job(name: str, **arguments: Any) -> Job:
    return Job(function=f"tests.ranks.jobs:{name}", arguments=arguments)


def _values(outcomes: list[Outcome]) -> list[Any]:
    assert {o.kind for o in outcomes} == {"done"}, outcomes
    return [o.value for o in outcomes]


def _warm(engine: Pool, world_size: int) -> list[int]:
    """Returns the process ids of a crew that has done its first job."""
    return _values(engine.run(_job("pid"), world_size))


def _assert_next_job_runs_on_new_ranks(
    engine: Pool, before: list[int], world_size: int
) -> None:
    after = _warm(engine, world_size)
    assert not set(after) & set(before)
    alive = [pid for pid in before if psutil.pid_exists(pid)]
    states = [psutil.Process(pid).status() for pid in alive]
    assert all(state == psutil.STATUS_ZOMBIE for state in states)


def test_warm_ranks_do_fifty_jobs(engine: Pool) -> None:
    pids = _warm(engine, 3)
    for value in range(50):
        found = _values(engine.run(_job("add_up", value=value), 3))
        assert found == [3.0 * value + 3] * 3
    assert _warm(engine, 3) == pids
    assert len(set(pids)) == 3


@pytest.mark.parametrize(
    ("writable", "temporary", "expected"),
    [
        ({"/dev/shm", "/tmp", "/scratch"}, "/scratch", "/dev/shm"),  # noqa: S108
        ({"/tmp", "/scratch"}, "/scratch", "/scratch"),  # noqa: S108
        ({"/tmp", "/s" * 40}, "/s" * 40, "/tmp"),  # noqa: S108
        ({"/s" * 40}, "/s" * 40, "/s" * 40),
    ],
)
def test_folder_goes_where_a_socket_has_room(
    writable: set[str], temporary: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, _: path in writable)
    monkeypatch.setattr("tempfile.tempdir", temporary)
    monkeypatch.setattr("ddpcheck.compare.space.has_room", lambda *_: True)
    assert base_folder() == expected


def test_folder_goes_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    full = {"/dev/shm"}  # noqa: S108
    monkeypatch.setattr(
        "ddpcheck.compare.space.has_room", lambda p, _: str(p) not in full
    )
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108
    assert base_folder() == "/tmp"  # noqa: S108


def test_solo_process_has_no_group(engine: Pool) -> None:
    assert _values(engine.run(_job("add_up", value=5), SOLO)) == [5.0]


def test_crews_work_side_by_side(engine: Pool) -> None:
    tasks = [engine.submit(_job("add_up", value=1), size) for size in (SOLO, 2, 3)]
    engine.wait(tasks)
    assert [_values(task.outcomes)[0] for task in tasks] == [1.0, 3.0, 6.0]


def test_two_crews_of_one_size_are_two_sets_of_ranks(engine: Pool) -> None:
    tasks = [engine.submit(_job("pid"), 2, index=index) for index in (0, 1)]
    engine.wait(tasks)
    first, second = (_values(task.outcomes) for task in tasks)
    assert not set(first) & set(second)
    engine.retire(2, index=1)


def test_time_of_a_job_does_not_follow_from_that_of_the_crews_first(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.retire(2)
    monkeypatch.setattr(pool, "timeout_s", 0.2)
    _warm(pool, 2)
    monkeypatch.undo()
    late = """
import time, torch.distributed as dist
time.sleep(0.6 * dist.get_rank())
dist.barrier()
"""
    assert _values(pool.run(_job("deed", code=late), 2)) == [None, None]


def test_ranks_have_the_variables_of_a_launcher(engine: Pool) -> None:
    found = _values(engine.run(_job("variables"), 3))
    assert found == [[str(rank), "3", str(rank)] for rank in range(3)]


def test_ranks_and_what_they_start_are_in_a_check(engine: Pool) -> None:
    expected = [(True, "True\n")] * 2
    assert _values(engine.run(_job("in_check"), 2)) == expected
    assert _values(engine.run(_job("in_check"), SOLO)) == expected[:1]
    assert not ddpcheck.in_check()


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_fork_server_asks_for_large_pages_unless_the_user_does_not(
    own: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    with Pool(Preload()) as pool:
        pool.wait_for_imports()
        found = pool.run(Job(function="tests.ranks.plain_jobs:tunables"), SOLO)
    assert _values(found) == [expected]
    assert os.environ.get("GLIBC_TUNABLES") == own


def test_all_threads_of_a_rank_take_turns_with_those_of_others(engine: Pool) -> None:
    for found in _values(engine.run(_job("policies"), 2)):
        assert len(found) > 1  # gloo has threads of its own
        assert set(found) == {os.SCHED_BATCH}


def test_raising_rank_is_reported_as_data(engine: Pool) -> None:
    before = _warm(engine, 2)
    first, second = engine.run(_job("fail", how="raise", rank=0), 2)
    assert (first.kind, second.kind) == ("raised", "stopped")
    assert first.raised is not None
    assert first.raised.type_name == "ValueError"
    assert first.raised.message == "cannot go on"
    assert first.raised.where is not None
    assert "tests/ranks/jobs.py:" in first.raised.where
    assert "barrier" in second.stack
    _assert_next_job_runs_on_new_ranks(engine, before, 2)


def test_exit_in_user_code_is_an_exception(engine: Pool) -> None:
    first, _ = engine.run(_job("fail", how="exit", rank=0), 2)
    assert first.raised is not None
    assert (first.raised.type_name, first.raised.message) == ("SystemExit", "5")


@pytest.mark.parametrize(
    ("how", "exit_code"), [("os._exit", 7), ("kill", -9), ("abort", -6)]
)
def test_dead_rank_has_its_exit_code(engine: Pool, how: str, exit_code: int) -> None:
    before = _warm(engine, 2)
    first, second = engine.run(_job("fail", how=how, rank=1, emit=True), 2)
    assert (second.kind, second.exit_code) == ("died", exit_code)
    # The other notices the broken connection, or waits until it is stopped.
    assert first.kind in ("raised", "stopped")
    assert first.progress == [{"rank": 0}]
    assert second.progress == [{"rank": 1}]
    _assert_next_job_runs_on_new_ranks(engine, before, 2)


def test_last_output_of_a_killed_rank_is_in_its_outcome(engine: Pool) -> None:
    (only,) = engine.run(_job("fail", how="kill", rank=0), SOLO)
    assert only.stderr.splitlines()[-1] == "last words"


@pytest.mark.parametrize("how", ["hang", "stopped"])
def test_hanging_rank_is_found_at_the_deadline(engine: Pool, how: str) -> None:
    before = _warm(engine, 2)
    started = time.monotonic()
    outcomes = engine.run(_job("fail", how=how, rank=1), 2, timeout_s=TIMEOUT_S)
    seconds = time.monotonic() - started
    assert TIMEOUT_S - 0.1 <= seconds < TIMEOUT_S + 5
    assert [o.kind for o in outcomes] == ["hung", "hung"]
    assert "barrier" in outcomes[0].stack
    if how == "hang":
        assert "_go_wrong" in outcomes[1].stack
    _assert_next_job_runs_on_new_ranks(engine, before, 2)


def test_unknown_function_is_reported_as_data(engine: Pool) -> None:
    (only,) = engine.run(_job("no_such_job"), SOLO)
    assert only.raised is not None
    assert only.raised.type_name == "AttributeError"


def test_value_that_cannot_be_sent_is_reported_and_does_not_hang(engine: Pool) -> None:
    (only,) = engine.run(_job("unpicklable"), SOLO)
    assert only.kind in ("raised", "died")
    assert _warm(engine, SOLO)


def test_flood_of_output_does_not_block(
    engine: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    size_bytes = 4 << 20
    assert _values(engine.run(_job("flood", size_bytes=size_bytes), SOLO)) == [
        size_bytes
    ]
    assert capfd.readouterr() == ("", "")


def test_children_that_a_killed_rank_left_die_with_it(engine: Pool) -> None:
    (child,) = _values(engine.run(_job("spawn_child"), SOLO))
    assert psutil.pid_exists(child)
    engine.retire(SOLO)
    deadline = time.monotonic() + 30
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        if psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.02)
    else:
        assert not psutil.pid_exists(child)


def test_replaced_ranks_leave_no_files(engine: Pool) -> None:
    _warm(engine, 2)
    before = {path.name for path in engine.folder.glob("crew*")}
    engine.run(_job("fail", how="kill", rank=1), 2)
    _warm(engine, 2)  # forks others
    engine.retire(2)
    _warm(engine, 2)
    assert len({path.name for path in engine.folder.glob("crew*")}) == len(before)


@pytest.mark.parametrize(
    ("pause_s", "work_s", "kind"),
    [(0.7, 0.4, "done"), (0.7, 60.0, "hung")],
    ids=["works-on", "hangs-after-it"],
)
def test_imports_within_a_job_are_no_time_of_the_jobs(
    pause_s: float, work_s: float, kind: str
) -> None:
    arguments = {"pause_s": pause_s, "work_s": work_s}
    job = Job(function="tests.ranks.plain_jobs:pauses_then_works", arguments=arguments)
    with Pool(Preload(), timeout_s=0.5) as pool:
        pool.wait_for_imports()
        pool.run(Job(function="tests.ranks.plain_jobs:pid"), SOLO)  # the rank sits
        started = time.monotonic()
        (outcome,) = pool.run(job, SOLO)
        assert outcome.kind == kind
        assert time.monotonic() - started < 30
        assert not list(pool.folder.glob("*.pause*"))


@pytest.mark.slow
def test_waiting_for_a_core_is_no_time_of_the_jobs() -> None:
    job = Job(
        function="tests.ranks.plain_jobs:works_on_a_busy_core",
        arguments={"cpu_s": 0.6, "others": 3},
    )
    with Pool(Preload(), timeout_s=1.7) as pool:
        pool.wait_for_imports()
        pool.run(Job(function="tests.ranks.plain_jobs:pid"), SOLO)  # the rank sits
        (outcome,) = pool.run(job, SOLO)
    assert outcome.kind == "done"
    assert outcome.value > 1.7


def test_standstill_of_the_machine_is_no_time_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = iter([0.9])

    def wait_late(handles: list[Any], timeout: float) -> list[Any]:
        if (seconds := next(late, 0.0)) == 0.0:
            return connection.wait(handles, timeout)
        time.sleep(timeout + seconds)
        return []

    job = Job(function="tests.ranks.plain_jobs:sleep", arguments={"seconds": 1.3})
    with Pool(Preload(), timeout_s=0.7) as pool:
        pool.wait_for_imports()
        pool.run(Job(function="tests.ranks.plain_jobs:pid"), SOLO)  # the rank sits
        monkeypatch.setattr("ddpcheck.ranks.pool.wait", wait_late)
        (outcome,) = pool.run(job, SOLO)
    assert outcome.kind == "done"


@pytest.mark.parametrize(
    ("last", "imported"),
    [
        ("", [f"later{i:02}" for i in range(60)]),
        ("raise ImportError", [f"later{i:02}" for i in range(59)]),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            [],
        ),
    ],
    ids=["imports", "passes-over", "threads"],
)
def test_modules_of_a_recording_are_imported_once_for_all_later_ranks(
    last: str, imported: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"later{i:02}" for i in range(60)]
    for name in names:
        source = last if name == names[-1] else ""
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    job = Job(function="tests.ranks.plain_jobs:imported", arguments={"prefix": "later"})
    with Pool(Preload(has_spare=True)) as pool:
        pool.wait_for_imports()
        assert _values(pool.run(job, SOLO)) == [[]]
        pool.import_more(names[:5])  # not worth another server
        pool.retire(SOLO)
        assert _values(pool.run(job, SOLO)) == [[]]
        pool.import_more(names)
        pool.retire(SOLO)
        assert _values(pool.run(job, SOLO)) == [imported]
        with pool.fresh() as fresh:
            assert _values(fresh.run(job, SOLO)) == [imported]


def test_pool_within_a_pool_has_a_folder_of_its_own_and_leaves_the_outer_one(
    tmp_path: Path,
) -> None:
    job = Job(function="tests.ranks.plain_jobs:pid")
    with Pool(Preload()) as pool:
        pool.wait_for_imports()
        before = _values(pool.run(job, SOLO))
        with pool.within(timeout_s=9.0) as inner:
            assert inner.folder.parent == pool.folder
            assert inner.timeout_s == 9.0
            assert _values(inner.run(job, SOLO)) != before
            made = [str(tmp_path / "x"), str(tmp_path), None, "run"]
            (tmp_path / "x").touch()
            line = json.dumps(["made", *made])
            (inner.folder / "made.jsonl").write_text(line + "\n", encoding="utf-8")
        assert not inner.folder.exists()
        assert not (tmp_path / "x").exists()
        assert _values(pool.run(job, SOLO)) == before
    with Pool(Preload()) as pool:
        pool.start()
        left = pool.within(timeout_s=9.0)
        (tmp_path / "x").touch()
        (left.folder / "made.jsonl").write_text(line + "\n", encoding="utf-8")
    assert not (tmp_path / "x").exists()
