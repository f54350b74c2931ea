"""A crew whose ranks other processes hold behaves as one whose ranks are here.

The group is real: its store, its connections, its process group over gloo. Its other
two processes are threads of the test, which say that they do not see rank 0's files.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.cli.nodes import Agent
from ddpcheck.ranks import folder as folders
from ddpcheck.ranks import hosts as hosts_module
from ddpcheck.ranks.hosts import Hello, Hosts, LostRankError
from ddpcheck.ranks.messages import Group, Job, Meeting, Outcome, meeting_of
from ddpcheck.ranks.pool import SOLO, Pool, Preload
from tests.ports import held_port

pytestmark = pytest.mark.xdist_group("hosts")

TIMEOUT_S = 1.0
WORLD_SIZE = 3


class Elsewhere(Agent):
    """A process on another machine than rank 0's."""

    def _sees(self, folders: list[str]) -> None:
        super()._sees(folders[1:])


class Given:
    """A group of three: rank 0 is this process, the others are threads of it."""

    def __init__(self) -> None:
        self.local = Pool(Preload(modules=("torch",)))
        self.local.start()
        self.local.wait_for_imports()
        self.closing = contextlib.ExitStack()
        port = self.closing.enter_context(held_port())
        self.groups = [_group(rank, port) for rank in range(WORLD_SIZE)]
        self.hosts = Hosts(self.groups[0])
        self.leader = Pool(Preload(), timeout_s=60, hosts=self.hosts)
        self.leader._server = self.local._server  # noqa: SLF001 (one import of torch)
        self.hosts.open(self._announce, 20)
        self.exit_codes: dict[int, int | None] = {}
        self.threads = [
            threading.Thread(target=self._follow, args=(group,))
            for group in self.groups[1:]
        ]
        for thread in self.threads:
            thread.start()
        self.hellos = self.hosts.gather(self.leader.folder, 20, 20)

    def _announce(self, meeting: Meeting, value: bytes, *, is_master: bool) -> None:
        what = {"meeting": meeting, "value": value, "is_master": is_master}
        _values([self._keep("announce_job", what)])

    def _keep(self, name: str, arguments: dict[str, Any], index: int = 1) -> Outcome:
        job = Job(function=f"ddpcheck.ranks.hosts:{name}", arguments=arguments)
        task = self.local.submit(job, SOLO, index)
        self.local.wait([task])
        return task.outcomes[0]

    def _follow(self, group: Group) -> None:
        meeting = meeting_of(group, "tool", 20)
        looked_up = self._keep("look_up_job", {"meeting": meeting}, 1 + group.rank)
        connection = hosts_module.knock(group, looked_up.value, 20)
        assert connection is not None
        folder = str(self.local.folder)
        connection.send(Hello(rank=group.rank, machine="host", folder=folder))
        self.exit_codes[group.rank] = Elsewhere(connection, self.local).serve()
        connection.close()

    def close(self, exit_code: int = 0) -> None:
        """Ends the group with this exit code."""
        self.hosts.release(exit_code)
        for thread in self.threads:
            thread.join(20)
        self.leader._server = None  # noqa: SLF001
        self.leader.close()
        self.local.close()
        self.closing.close()


def _group(rank: int, port: int, world_size: int = WORLD_SIZE) -> Group:
    return Group(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        address="127.0.0.1",
        port=port,
    )


@pytest.fixture(scope="module")
def group() -> Iterator[Given]:
    """The group; it can lose no process."""
    made = Given()
    yield made
    made.close(exit_code=1)
    assert made.exit_codes == {1: 1, 2: 1}


def _job(name: str, files: tuple[str, ...] = (), **arguments: Any) -> Job:
    return Job(function=f"tests.ranks.jobs:{name}", arguments=arguments, files=files)


def _values(outcomes: list[Outcome]) -> list[Any]:
    assert {o.kind for o in outcomes} == {"done"}, outcomes
    return [o.value for o in outcomes]


@pytest.mark.slow
def test_ranks_of_all_processes_are_one_process_group(group: Given) -> None:
    found = _values(group.leader.run(_job("add_up", value=5), WORLD_SIZE))
    assert found == [18.0, 18.0, 18.0]


def test_other_world_sizes_have_their_ranks_here(group: Given) -> None:
    assert _values(group.leader.run(_job("add_up", value=5), 2)) == [11.0, 11.0]
    group.leader.retire(2)


def test_files_of_a_job_come_to_another_machine_once(group: Given) -> None:
    path = group.leader.folder / "trace-1"
    files = {"trace-1.bin": b"\x00" * 5_000_000 + b"\x01", "trace-1.idx": b"index"}
    for name, data in files.items():
        path.with_name(name).write_bytes(data)
    job = _job("contents", ("path",), path=str(path))
    own, second, third = _values(group.leader.run(job, WORLD_SIZE))
    theirs = str(group.local.folder / "trace-1")
    assert own == (str(path), files)
    assert second == (theirs, files)
    assert third == (theirs, files)
    assert group.hosts.hosts[1].owner is group.hosts.hosts[1]
    assert group.hosts.hosts[2].owner is group.hosts.hosts[1]


def test_files_go_where_the_other_machine_has_room(
    group: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = group.leader.folder / "trace-2"
    path.with_name("trace-2.bin").write_bytes(b"\x02" * 3_000_000)
    asked: list[tuple[Path, int]] = []

    def on_disk(folder: Path, size: int) -> Path:
        asked.append((folder, size))
        return tmp_path

    monkeypatch.setattr(folders, "place", on_disk)
    job = _job("contents", ("path",), path=str(path))
    _, second, third = _values(group.leader.run(job, WORLD_SIZE))
    assert asked == [(group.local.folder, 3_000_000)]
    files = {"trace-2.bin": b"\x02" * 3_000_000}
    assert second == third == (str(tmp_path / "trace-2"), files)


def test_rank_that_raises_elsewhere_is_reported_as_data(group: Given) -> None:
    job = _job("fail", how="raise", rank=2, emit=True)
    first, second, third = group.leader.run(job, WORLD_SIZE)
    assert third.raised is not None
    assert third.raised.message == "cannot go on"
    assert [first.progress, second.progress, third.progress] == [
        [{"rank": 0}],
        [{"rank": 1}],
        [{"rank": 2}],
    ]
    assert {first.kind, second.kind} <= {"raised", "stopped"}


@pytest.mark.parametrize(("how", "exit_code"), [("os._exit", 7), ("kill", -9)])
def test_rank_that_dies_elsewhere_has_its_exit_code(
    group: Given, how: str, exit_code: int
) -> None:
    third = group.leader.run(_job("fail", how=how, rank=2), WORLD_SIZE)[2]
    assert (third.kind, third.exit_code) == ("died", exit_code)
    if how == "kill":
        assert third.stderr.splitlines()[-1] == "last words"
    assert _values(group.leader.run(_job("add_up", value=5), WORLD_SIZE))


def test_rank_that_hangs_elsewhere_is_found_at_the_deadline(group: Given) -> None:
    assert _values(group.leader.run(_job("add_up", value=5), WORLD_SIZE))
    started = time.monotonic()
    job = _job("fail", how="hang", rank=1)
    outcomes = group.leader.run(job, WORLD_SIZE, timeout_s=TIMEOUT_S)
    assert TIMEOUT_S - 0.1 <= time.monotonic() - started < TIMEOUT_S + 20
    assert [o.kind for o in outcomes] == ["hung", "hung", "hung"]
    assert "_go_wrong" in outcomes[1].stack
    assert "barrier" in outcomes[2].stack


@contextlib.contextmanager
def _door(world_size: int) -> Iterator[tuple[Hosts, bytes, int]]:
    """Yields hosts that wait for others, what they announced, and their port."""
    announced: list[bytes] = []

    def announce(meeting: Meeting, value: bytes, *, is_master: bool) -> None:
        assert (meeting.prefix, is_master) == ("ddpcheck/0/tool", True)
        announced.append(value)

    hosts = Hosts(_group(0, 1, world_size))
    hosts.open(announce, 5)
    try:
        yield hosts, announced[0], int.from_bytes(announced[0][:2], "big")
    finally:
        assert hosts._door is not None  # noqa: SLF001
        hosts._door.close()  # noqa: SLF001


def test_processes_that_do_not_come_are_named_at_the_deadline(tmp_path: Path) -> None:
    with _door(4) as (hosts, _, _), pytest.raises(LostRankError) as caught:
        hosts.gather(tmp_path, 0.2, 0.2)
    assert str(caught.value) == (
        "3 of the 4 processes of the group did not come within 0.2 s: rank 1, 2, 3"
    )


def test_stranger_at_the_port_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "_GREETING_S", 1.0)  # sound ones come late, too
    with _door(2) as (hosts, announced, port):
        silent = socket.create_connection(("127.0.0.1", port))
        loud = socket.create_connection(("127.0.0.1", port))
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wrong_key = announced[:2] + bytes(32)
        came: list[Any] = []
        knocks = [
            threading.Thread(
                target=lambda key=key: came.append(
                    hosts_module.knock(_group(1, 1, 2), key, 5)
                )
            )
            for key in (wrong_key, announced)
        ]
        knocks[0].start()
        knocks[0].join(0.1)
        knocks[1].start()
        assert hosts._door is not None  # noqa: SLF001
        own = hosts._door.let_in(time.monotonic() + 10)  # noqa: SLF001
        for knock in knocks:
            knock.join(10)
        assert own is not None
        (theirs,) = [c for c in came if c is not None]
        theirs.send("it is me")
        assert own.recv() == "it is me"
        for each in (own, theirs, silent, loud):
            each.close()


def test_process_that_goes_is_named(tmp_path: Path) -> None:
    with _door(2) as (hosts, announced, _):
        made: list[Any] = []
        knock = threading.Thread(
            target=lambda: made.append(
                hosts_module.knock(_group(1, 1, 2), announced, 5)
            )
        )
        knock.start()
        assert hosts._door is not None  # noqa: SLF001
        own = hosts._door.let_in(time.monotonic() + 10)  # noqa: SLF001
        knock.join(10)
        assert own is not None
        host = hosts_module.Host(own, Hello(rank=1, machine="node7"), hosts._lose)  # noqa: SLF001
        hosts.check()
        made[0].close()
        assert host.ask("sees", [str(tmp_path)]) is None
        with pytest.raises(LostRankError) as caught:
            hosts.check()
    assert str(caught.value) == "the process of rank 1 on node7 has gone"


def test_process_ends_when_rank_0_has_gone() -> None:
    ours, theirs = Pipe()
    agent = Agent(theirs, Pool(Preload()))
    with contextlib.closing(agent.pool), theirs:
        ours.close()
        assert agent.serve() is None
