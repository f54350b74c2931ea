"""A check in a launcher's group of processes: torchrun, on one machine or several.

Rank 0 does what the command always does, on ranks that the group's processes hold.
The other processes print nothing, follow rank 0, and end with its exit code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ddpcheck.checking import checking, opening, reporting
from ddpcheck.errors.problem import Problem, SignalError, UsageError, usage_error
from ddpcheck.ranks import folder as folders
from ddpcheck.ranks.crew import LocalRank
from ddpcheck.ranks.hosts import (
    Announce,
    Ended,
    Hello,
    Hosts,
    LostRankError,
    announce,
    knock,
    look_up,
    try_receive,
    try_send,
)
from ddpcheck.ranks.messages import (
    Group,
    Job,
    Meeting,
    Seat,
    launched_group,
    meeting_of,
)
from ddpcheck.ranks.pool import MODULES_S, SOLO, Pool
from ddpcheck.report import streams
from ddpcheck.report.data import EXIT_NOT_CHECKED, EXIT_SIGNAL, EXIT_USAGE, Report
from ddpcheck.report.progress import Silent
from ddpcheck.run.session.session import CannotCheckError
from ddpcheck.target import target as targets
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

_LATE_S = 30.0
_SILENT_S = 20.0  # that a rank waits for rank 0 before it prints a line
# Of the process that has torch and runs no user code: at rank 0 it may hold the store.
_KEEPER = 1


class Leader:
    """Rank 0: the command, and at its end the exit code of all."""

    is_leader = True

    def __init__(self, group: Group) -> None:
        self.hosts = Hosts(group)
        self._is_alone = False

    def is_idle(self) -> bool:
        """Notes that the command is no check: the others end, rank 0 runs it alone."""
        self._is_alone = True
        return False

    def run(self, action: Callable[[], int]) -> int:
        """Returns what the action returns."""
        return action()

    def check_file(
        self,
        ref: TargetRef,
        options: Options,
        *,
        progress: Silent,
        on_verdict: checking.Verdict,
    ) -> Report:
        """Checks the target on the ranks of the group, as checking.check_file.

        Raises:
            UsageError: as checking.check_file, of any process; group-differs.
            CannotCheckError: as checking.check_file; a process does not come, or goes.
        """
        try:
            return self._check_file(ref, options, progress, on_verdict)
        except LostRankError as error:
            raise CannotCheckError(str(error), "") from error

    def _check_file(
        self,
        ref: TargetRef,
        options: Options,
        progress: Silent,
        on_verdict: checking.Verdict,
    ) -> Report:
        hosts, group = self.hosts, self.hosts.group
        progress("importing torch and the target")
        is_here = group.is_one_machine
        with (
            opening.pool_for(ref, options, hosts, loopback=is_here) as pool,
            opening.in_time(pool, options, progress),
        ):
            pool.start()
            opening.wait_for_imports(pool, ref)
            self._open(pool, options)
            progress(f"waiting for {group.world_size - 1} processes of the group")
            hellos = hosts.gather(pool.folder, options.limit_s, _import_s(options))
            _raise_first(hellos)
            _compare(_identity(ref), hellos)
            machines = {"machines": _machines(hellos)}

            def placed(report: Report) -> Report:
                return replace(report, environment=report.environment | machines)

            return placed(
                checking.check(
                    pool,
                    ref,
                    options,
                    progress=progress,
                    on_verdict=lambda report: on_verdict(placed(report)),
                )
            )

    def _open(self, pool: Pool, options: Options) -> None:
        try:
            self.hosts.open(_announcer(pool), options.limit_s)
        except (RuntimeError, OSError) as error:
            group = self.hosts.group
            place = f"{group.address}:{group.port}"
            message = f"the group cannot meet at {place}: {error}"
            raise CannotCheckError(message, "") from None

    def leave(self, code: int) -> int:
        """Ends the other processes with this code and returns it; called last."""
        if not self._is_alone:
            if not self.hosts.is_open:  # a mistake: the check has not begun
                with contextlib.suppress(RuntimeError, OSError):
                    self.hosts.open(announce, _LATE_S)
            self.hosts.release(code)
        _ignore_end()
        return code


class Follower:
    """Any other rank: it prints nothing and provides a rank process for rank 0."""

    is_leader = False

    def __init__(self, group: Group) -> None:
        self.group = group
        self._connection: Connection | None = None

    def is_idle(self) -> bool:
        """Notes that the command is not a check: there is nothing to do."""
        return True

    def run(self, action: Callable[[], int]) -> int:
        """Returns rank 0's exit code; `action` is the command up to `follow`."""
        try:
            return action()
        except UsageError as error:
            return self._report(error.problem)
        except SignalError as error:
            return EXIT_SIGNAL + error.number  # rank 0 reports it

    def follow(self, ref: TargetRef, options: Options) -> int:
        """Serves rank 0 to its end; returns its exit code.

        Raises:
            UsageError: the target or the environment is wrong here.
            CannotCheckError: rank 0 does not come, or goes.
        """
        is_here = self.group.is_one_machine
        with opening.pool_for(ref, options, loopback=is_here) as pool:
            pool.start()
            try:
                opening.wait_for_imports(pool, ref)
            except CannotCheckError as error:
                self._knock(look_up, _LATE_S)
                self._say_hello(trouble=(error.message, error.detail))
            else:
                self._knock(_looker(pool), _import_s(options))
                self._say_hello(folder=str(pool.folder), identity=_identity(ref))
            code = Agent(self._connection, pool).serve() if self._connection else None
        if self._connection is None:
            place = f"{self.group.address}:{self.group.port}"
            message = f"rank {self.group.rank} does not reach rank 0 by {place}"
            raise CannotCheckError(message, "")
        if code is None:
            raise CannotCheckError(f"rank {self.group.rank}: rank 0 has gone", "")
        return code

    def leave(self, code: int) -> int:
        """Hangs up: rank 0 waits for it; returns the code."""
        if self._connection is not None:
            self._connection.close()
        _ignore_end()
        return code

    def _report(self, problem: Problem) -> int:
        if self._connection is None:
            self._knock(look_up, MODULES_S)
        if self._connection is None:
            return EXIT_USAGE
        self._say_hello(problem=problem)
        answer = try_receive(self._connection)
        return int(answer[1]) if answer else EXIT_NOT_CHECKED

    def _knock(self, look_up: Callable[[Meeting], bytes], timeout_s: float) -> None:
        place = f"{self.group.address}:{self.group.port}"
        text = f"ddpcheck: rank {self.group.rank} waits for rank 0 at {place}\n"
        waiting = threading.Timer(_SILENT_S, streams.write, (text, sys.stderr))
        waiting.daemon = True
        waiting.start()
        try:
            answer = look_up(meeting_of(self.group, "tool", timeout_s))
        except RuntimeError:  # torch.distributed.DistError: nothing there in time
            return
        finally:
            waiting.cancel()
        self._connection = knock(self.group, answer, _LATE_S)

    def _say_hello(
        self,
        *,
        folder: str = "",
        identity: dict[str, str] | None = None,
        problem: Problem | None = None,
        trouble: tuple[str, str] | None = None,
    ) -> None:
        if self._connection is None:
            return
        hello = Hello(
            rank=self.group.rank,
            machine=socket.gethostname(),
            local_rank=self.group.local_rank,
            local_world_size=self.group.local_world_size,
            folder=folder,
            identity=identity or {},
            problem=problem,
            trouble=trouble,
        )
        try_send(self._connection, hello)


Member = Leader | Follower


def member() -> Member | None:
    """Returns this process's part in the group that it was started in, None alone."""
    group = launched_group(os.environ)
    if group is None:
        return None
    return Follower(group) if group.rank else Leader(group)


def for_group(options: Options, member: Member) -> Options:
    """Returns the options with the world size of the group.

    Raises:
        UsageError: group-world-size.
    """
    group = member.hosts.group if isinstance(member, Leader) else member.group
    sizes = (group.world_size,)
    if options.world_sizes not in (None, sizes):
        assert options.world_sizes is not None
        chosen = ",".join(map(str, options.world_sizes))
        raise usage_error(
            slug="group-world-size",
            message="the world size is fixed by the launcher's group",
            expected=f"WORLD_SIZE={group.world_size} of the launcher alone",
            found=f"--world-sizes {chosen}",
            fix="leave --world-sizes out, or start ddpcheck without the launcher",
        )
    return replace(options, world_sizes=sizes)


def _announcer(pool: Pool) -> Announce:
    """Returns `announce`, called in a process that has torch and stays."""

    def announce(meeting: Meeting, value: bytes, *, is_master: bool) -> None:
        arguments = {"meeting": meeting, "value": value, "is_master": is_master}
        _in_keeper(pool, "announce_job", arguments, meeting.timeout_s)

    return announce


def _looker(pool: Pool) -> Callable[[Meeting], bytes]:
    """Returns `look_up`, called in a process that has torch."""

    def look_up(meeting: Meeting) -> bytes:
        answer = _in_keeper(
            pool, "look_up_job", {"meeting": meeting}, meeting.timeout_s
        )
        pool.retire(SOLO, _KEEPER)
        assert isinstance(answer, bytes)
        return answer

    return look_up


def _in_keeper(
    pool: Pool, name: str, arguments: dict[str, Any], timeout_s: float
) -> Any:
    job = Job(function=f"ddpcheck.ranks.hosts:{name}", arguments=arguments)
    task = pool.submit(job, SOLO, _KEEPER, timeout_s=2 * timeout_s)
    pool.wait([task])
    (outcome,) = task.outcomes
    if outcome.kind == "done":
        return outcome.value
    lines = outcome.raised.message.splitlines() if outcome.raised else []
    raise RuntimeError(lines[0] if lines else f"the process {outcome.kind}")


def _import_s(options: Options) -> float:
    return MODULES_S + options.limit_s


def _identity(ref: TargetRef) -> dict[str, str]:
    """Returns what must be the same in all processes, by name."""
    assert ref.path is not None
    found = {"the target file": f"{ref.path} {targets.sha256(ref.path)[:12]}"}
    return found | {name: reporting.version(name) for name in ("ddpcheck", "torch")}


def _raise_first(hellos: list[Hello]) -> None:
    for hello in hellos:
        where = f" (rank {hello.rank} on {hello.machine})"
        if hello.problem is not None:
            message = hello.problem.message + where
            raise UsageError(replace(hello.problem, message=message))
        if hello.trouble is not None:
            message, detail = hello.trouble
            raise CannotCheckError(message + where, detail)


def _compare(own: dict[str, str], hellos: list[Hello]) -> None:
    for hello in hellos:
        for what, value in own.items():
            if hello.identity.get(what) == value:
                continue
            raise usage_error(
                slug="group-differs",
                message=f"{what} is not the same on all machines",
                expected=f"{value}, as on rank 0",
                found=f"{hello.identity.get(what)}, rank {hello.rank} on "
                f"{hello.machine}",
                fix="a folder that all machines share, one environment for all",
            )


def _machines(hellos: list[Hello]) -> str:
    """Returns which ranks are where: "node1: rank 0, 1; node2: rank 2, 3"."""
    places = {0: socket.gethostname()} | {h.rank: h.machine for h in hellos}
    found: dict[str, list[str]] = {}
    for rank, machine in sorted(places.items()):
        found.setdefault(machine, []).append(str(rank))
    return "; ".join(f"{name}: rank {', '.join(r)}" for name, r in found.items())


def _ignore_end() -> None:
    """The launcher ends all processes when the first fails; this one is ending."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


_STACK_WAIT_S = 1.0


class Agent:
    """Serves rank 0, on one connection, in any other process of the group.

    Rank 0 decides everything. This process runs no user code either: its fork server
    starts the rank process, which does the jobs that rank 0 sends.
    """

    def __init__(self, connection: Connection, pool: Pool) -> None:
        self._connection, self.pool = connection, pool
        self._ranks: dict[str, LocalRank] = {}
        self._running: set[str] = set()

    def serve(self) -> int | None:
        """Returns the exit code that rank 0 sends, None if its connection is lost."""
        try:
            while True:
                handles: list[Any] = [self._connection]
                for name in self._running:
                    handles += self._ranks[name].handles()
                if self._connection in wait(handles):
                    message = self._connection.recv()
                    if message[0] == "end":
                        return int(message[1])
                    getattr(self, f"_{message[0]}")(*message[1:])
                for name in sorted(self._running):
                    self._look_at(name)
        except (EOFError, OSError):
            return None

    def _look_at(self, name: str) -> None:
        rank = self._ranks[name]
        while (message := rank.next_message()) is not None:
            if message.kind != "ready":
                self._send_end(name, message=message)
                return
        if not rank.is_alive():
            self._send_end(name, exit_code=rank.exit_code, stack=rank.stack_so_far())

    def _send_end(self, name: str, **what: Any) -> None:
        self._running.discard(name)
        self._connection.send(self._ended(name, **what))

    def _ended(self, name: str, **what: Any) -> Ended:
        rank = self._ranks[name]
        return Ended(name=name, progress=rank.progress(), stderr=rank.stderr(), **what)

    def _sees(self, folders: list[str]) -> None:
        seen = (folder for folder in folders if Path(folder).is_dir())
        self._connection.send(next(seen, ""))

    def _place(self, size: int) -> None:
        self._connection.send(str(folders.place(self.pool.folder, size)))

    def _file(self, path: str, chunk: bytes) -> None:
        with Path(path).open("ab") as stream:
            stream.write(chunk)

    def _written(self) -> None:
        self._connection.send("written")

    def _open(self, seat: Seat) -> None:
        # Only one crew at a time is as large as the group.
        for name in list(self._ranks):
            self._kill(name)
        self._ranks.clear()
        here = replace(seat, folder=str(self.pool.folder))
        self._ranks[seat.name] = self.pool.spawn(here)

    def _job(self, name: str, job: Job) -> None:
        self._running.add(name)
        self._ranks[name].send(job)

    def _ask_stack(self, name: str) -> None:
        self._ranks[name].ask_stack()

    def _stack(self, name: str) -> None:
        self._running.discard(name)
        stack = self._ranks[name].stack(time.monotonic() + _STACK_WAIT_S)
        self._connection.send(self._ended(name, is_reply=True, stack=stack))

    def _kill(self, name: str) -> None:
        self._running.discard(name)
        if name in self._ranks:
            self._ranks[name].kill()
            self._ranks[name].reap()
