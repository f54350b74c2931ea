"""The process pool: runs jobs in crews of ranks, every wait with a deadline.

How a rank starts: `Pool.start` starts a fork server (forkserver.py), which imports
torch and the target (preload.py, run/jobs.py: load_in_server). `Pool.open` forks the
ranks of a world size from it (crew.py: LocalRank); each joins its process group and
waits for jobs (worker.py: rank_main). A run is one `Job` for all ranks of a crew. Its
function is a text, "package.module:name": for a run `Mode.entry_point`, which builds
the user's model and trains it (run/modes/jobs/candidate.py).

`Pool.fresh` has ranks in which no user code has run: those of a server that is forked
from the first one before its target is imported (preload.py: _fork_spare).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from ddpcheck.errors import frames
from ddpcheck.errors.problem import DeadlineError
from ddpcheck.ranks import processes
from ddpcheck.ranks.crew import Crew, LocalRank, Rank, reason_unseated, unseated_ranks
from ddpcheck.ranks.folder import Folder
from ddpcheck.ranks.hosts import Hosts
from ddpcheck.ranks.messages import Job, Outcome, Seat
from ddpcheck.ranks.processes import standstill
from ddpcheck.ranks.server import forkserver, preload
from ddpcheck.ranks.task import LOOKS, Quiet, Task

if TYPE_CHECKING:
    from typing_extensions import Self


class PreloadError(Exception):
    """The fork server did not get through its imports.

    `kind` is "raised", "died" or "hung"; `detail` a traceback, a stack or output.
    `of_user`: torch and ddpcheck had been imported. `limit_s`: the deadline that
    passed.
    """

    def __init__(
        self, kind: str, detail: str, *, of_user: bool = True, limit_s: float = 0.0
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.of_user = of_user
        self.limit_s = limit_s


class ServerDiedError(Exception):
    """The fork server was killed, and all ranks with it; no job caused it."""

    def __init__(
        self, message: str = "the fork server was killed, and all ranks with it"
    ) -> None:
        super().__init__(message)


def _advice(detail: str) -> str:
    if "find address" in detail:  # gloo's message when an interface is down
        return "ranks meet over the loopback interface: ip link set lo up"
    return (
        "raise the limit (ulimit -u, ulimit -n, the container's pids) or ask for "
        "fewer ranks"
    )


class NoMoreProcessesError(ServerDiedError):
    """Ranks could not be started, or could not connect: no user code has run.

    `detail` is the message of the system.
    """

    def __init__(self, world_size: int, detail: str) -> None:
        super().__init__(
            f"no process for all ranks of world size {world_size}: {detail}\n"
            f"  {_advice(detail)}",
        )


SOLO = 0  # the world size of a crew without a process group

# Ranks fork and form a group in 0.1 s, on a busy machine later: this is added to the
# deadline of a first job.
_START_S = 60.0
_IMPORT_POLL_S = 0.005
_NO_STATUS = 255  # exit code that multiprocessing reports when the fork server has died
_SERVER_EXIT_S = 0.3
# For importing torch itself, to which the user's timeout does not apply: 5 s warm, a
# minute from a cold network file system.
MODULES_S = 180.0
_MANY_MODULES = 50  # whose import takes longer than another server's start


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """What the fork server does before the first fork.

    `call` is "package.module:function", called with `arguments` after the imports of
    `modules`; its result is `server.preload.RESULT` in every rank. The modules of
    `later` are imported after it, unless its result has `needs_later` = False: a user's
    mistake is reported without waiting for them. `libraries` are imported last, as
    "package" or "package:name"; those that cannot be imported are skipped.
    `environment`: variables that are set before. `has_spare`: whether
    `Pool.import_more` will be called.
    """

    modules: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    call: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    has_spare: bool = False


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a whole check ends: `limit_s` after its begin, at `end` (monotonic)."""

    limit_s: float
    end: float

    def check(self) -> None:
        """Raises DeadlineError once it is over."""
        if time.monotonic() > self.end:
            raise DeadlineError(self.limit_s)


class Pool:
    """The engine. A context manager: on exit all processes and files are removed.

    `hosts` are the other processes of a launcher's group: they hold the ranks of the
    crew that is as large as the group. They outlive the pool. `fresh` makes a pool
    within this one: it has a server and crews of its own.
    """

    def __init__(
        self,
        what: Preload,
        *,
        timeout_s: float = 60.0,
        hosts: Hosts | None = None,
        loopback: bool = True,
        outer: Pool | None = None,
    ) -> None:
        self._hosts, self._loopback = hosts, loopback
        self._outer = outer
        self.timeout_s = timeout_s
        self.device = "cpu"  # of the next crews; those of another are replaced
        self._deadline: Deadline | None = None  # see bounded
        self._what = what
        self._crews: dict[tuple[int, int], Crew] = {}
        self._count = 0
        self._server: forkserver.Server | None = None
        self.unfit = ""  # the library after whose import forking is unsafe
        self._clean: forkserver.Server | None = None  # see fresh
        self._spare: forkserver.Server | None = None  # see import_more
        self._folder: Folder | None = None
        if outer is None:
            self._folder = Folder()
            self.folder = self._folder.path
        else:
            self.folder = outer.folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the fork server; its imports go on in the background."""
        settings = {
            "folder": str(self.folder),
            "modules": list(self._what.modules),
            "later": list(self._what.later),
            "libraries": list(self._what.libraries),
            "call": self._what.call,
            "arguments": self._what.arguments,
            "has_spare": self._what.has_spare,
            "search": [*map(str, sys.path), *forkserver.working_folder()],
            "is_safe": preload.SAFE_PATH in os.environ,
        }
        server = forkserver.Server(["ddpcheck.ranks.server.preload"], self.folder)
        with forkserver.changed(
            {
                preload.SETTINGS: json.dumps(settings),
                **self._what.environment,
                **forkserver.interface(loopback=self._loopback),
                **forkserver.large_pages(),
                # Without it torch would import a random.py of the working folder.
                preload.SAFE_PATH: "1",
                # Thread pools made while importing would not survive the fork.
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                # Lets torch count GPUs without initialising CUDA before the fork.
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            }
        ):
            server.start()
        self._server = server
        # multiprocessing joins its children at exit: a program that ends without
        # `close`, by an exception, would wait for ranks that wait for jobs.
        atexit.register(self.close)

    @contextlib.contextmanager
    def bounded(self, deadline: Deadline | None) -> Iterator[None]:
        """Makes every wait inside raise DeadlineError after the deadline, if any.

        An earlier deadline of the pool stays.
        """
        before = self._deadline
        if deadline is not None and (before is None or deadline.end < before.end):
            self._deadline = deadline
        try:
            yield
        finally:
            self._deadline = before

    @property
    def is_in_time(self) -> bool:
        """Whether a deadline bounds all waits."""
        return self._deadline is not None

    def wait_for_imports(self, on_wait: Callable[[], None] | None = None) -> None:
        """Returns when the fork server can fork.

        Raises:
            PreloadError: an import raised, killed the process or did not end in time.
        """
        if self._server is None:
            self.start()
        status = self.folder / preload.STATUS_FILE
        modules_s = limit_s = max(self.timeout_s, MODULES_S)
        deadline = time.monotonic() + modules_s
        marks = [
            (self.folder / preload.MODULES_FILE, self.timeout_s),
            (self.folder / preload.CALLED_FILE, modules_s),
        ]
        while not status.exists():
            if marks and marks[0][0].exists():
                limit_s = marks.pop(0)[1]
                deadline = time.monotonic() + limit_s
            if not self._is_server_alive():
                raise self._preload_error("died", self._read(preload.LOG_FILE))
            if time.monotonic() > deadline:
                stack = self._dump_server_stack()
                raise self._preload_error("hung", stack, limit_s)
            if self._deadline is not None:
                self._deadline.check()
            if on_wait:
                on_wait()
            time.sleep(_IMPORT_POLL_S)
        loaded = json.loads(status.read_text(encoding="utf-8"))
        self.unfit = loaded["unfit"]
        if loaded["error"]:
            raise self._preload_error("raised", loaded["error"])

    def _preload_error(
        self, kind: str, detail: str, limit_s: float = 0.0
    ) -> PreloadError:
        of_user = (self.folder / preload.MODULES_FILE).exists()
        return PreloadError(kind, detail, of_user=of_user, limit_s=limit_s)

    def open(self, world_size: int, index: int = 0) -> Crew:
        """Returns the crew of this world size, forking it where there is none."""
        key = (world_size, index)
        crew = self._crews.get(key)
        if crew is not None and crew.device != self.device:
            self.retire(world_size, index)
            crew = None
        if crew is not None and crew.broken:
            crew.remove_files()
        if crew is None or crew.broken:
            name = f"crew{self._next_number()}"
            crew = Crew(
                self._ranks(world_size, name),
                self.folder / name,
                world_size=world_size,
                device=self.device,
            )
            self._crews[key] = crew
        return crew

    def _next_number(self) -> int:
        """Returns the next number of a crew: they share a folder."""
        if self._outer is not None:
            return self._outer._next_number()  # noqa: SLF001 (of this class)
        self._count += 1
        return self._count

    def within(self, *, timeout_s: float) -> Pool:
        """Returns a pool whose ranks are forks of this one's server. Close it.

        Unlike that of `fresh` it has a folder of its own, in this one's: what its ranks
        make elsewhere is removed when it is closed.
        """
        made = Pool(self._what, timeout_s=timeout_s, outer=self)
        made._folder = Folder(self.folder)
        made.folder = made._folder.path
        made._server = self._server
        return made

    def fresh(self) -> Pool:
        """Returns a pool of ranks that have not run or imported user code. Close it.

        They are processes of this machine, also where this pool has a launcher's.

        Raises:
            ServerDiedError: there is no server for them.
        """
        made = Pool(self._what, timeout_s=self.timeout_s, outer=self)
        made.device, made._deadline = self.device, self._deadline
        if self._what.call is None:  # the server itself has imported no user code
            made._server, made._spare = self._server, self._spare
            return made
        if self._clean is None:
            try:
                self._clean = forkserver.Server.woken(self.folder, MODULES_S)
            except (OSError, ValueError) as error:
                message = "there is no server in which no user code has run"
                raise ServerDiedError(message) from error
        made._server = self._clean
        return made

    def import_more(self, names: Sequence[str]) -> None:
        """Makes later crews forks of a server that has imported these modules, too.

        What a script imports late, or a library when it is first used, each rank would
        import anew. Modules that cannot be imported, or after whose import forking is
        unsafe, are left to the ranks, and so are a few.
        """
        path = self.folder / preload.INSTALLED_FILE
        if self._spare is not None or not path.exists():
            return
        imported = json.loads(path.read_text(encoding="utf-8"))
        if len(set(names) - set(imported)) < _MANY_MODULES:
            return
        path.write_text(json.dumps(list(names)), encoding="utf-8")
        with contextlib.suppress(OSError, ValueError):
            self._spare = forkserver.Server.woken(self.folder, MODULES_S)

    def _ranks(self, world_size: int, crew: str) -> list[Rank]:
        """Starts the ranks of a crew, on this machine or on those of the group."""
        hosts = self._hosts
        if hosts is not None and world_size != hosts.world_size:
            hosts = None
        seats = [
            Seat(
                rank=rank,
                world_size=world_size,
                folder=str(self.folder),
                name=f"{crew}-{rank}",
                timeout_s=self.timeout_s,
                device=self.device,
            )
            for rank in range(max(1, world_size))
        ]
        if hosts is None:
            return [self.spawn(seat) for seat in seats]
        hosts.check()
        seats = hosts.seats(seats, crew)
        return [self.spawn(seats[0]), *map(hosts.rank, seats[1:])]

    def spawn(self, seat: Seat) -> LocalRank:
        """Forks a rank, also one for a crew of another machine's pool.

        Raises:
            NoMoreProcessesError: the system refuses a new process.
            ServerDiedError: the fork server has died.
        """
        assert self._server is not None
        if not self._server.is_alive():
            raise ServerDiedError
        try:
            return LocalRank(self._spare or self._server, seat)
        except (EOFError, OSError) as error:
            # A server that cannot fork exits and leaves no log. It may exit before or
            # after it has read the whole request.
            is_end = isinstance(error, EOFError | ConnectionError)
            detail = "fork failed" if is_end else f"{type(error).__name__}: {error}"
            raise NoMoreProcessesError(seat.world_size, detail) from error

    def retire(self, world_size: int, index: int = 0) -> None:
        """Replaces the crew before its next job, as its processes are not clean."""
        crew = self._crews.pop((world_size, index), None)
        if crew is not None:
            crew.kill()
            crew.remove_files()

    def retire_busy(self) -> None:
        """Replaces the crews that are at work: nobody waits for their results."""
        for key, crew in list(self._crews.items()):
            if crew.busy:
                self.retire(*key)

    def submit(
        self,
        job: Job,
        world_size: int,
        index: int = 0,
        *,
        timeout_s: float | None = None,
        quiet_looks: int = LOOKS,
        is_bounded: bool = False,
    ) -> Task:
        """Starts the job on the crew of this world size, which must be idle.

        Args:
            job: the function that every rank calls.
            world_size: of the crew.
            index: of the crew among those of this world size.
            timeout_s: seconds that it may take; the pool's where it is None.
            quiet_looks: how many looks in a row find the ranks idle before their stacks
                are read for a deadlock.
            is_bounded: a rank that waits for a core gets no extra time.
        """
        crew = self.open(world_size, index)
        assert not crew.busy, "a crew does one job at a time"
        crew.send(job)
        now = time.monotonic()
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        start_s = 0.0 if crew.is_ready else _START_S
        return Task(
            crew=crew,
            deadline=now + max(limit_s, start_s),
            limit_s=limit_s,
            is_bounded=is_bounded,
            has_begun=crew.is_ready,
            started=now,
            quiet=Quiet(quiet_looks),
        )

    @property
    def is_given(self) -> bool:
        """Whether its ranks belong to a launcher's group."""
        return self._hosts is not None

    def wait(self, tasks: Sequence[Task]) -> None:
        """Returns when all tasks are done; each then has an outcome per rank."""
        for task in self.as_done(tasks):
            assert task.done

    def as_done(self, tasks: Sequence[Task]) -> Iterator[Task]:
        """Yields the tasks in the order in which they end."""
        pending = list(tasks)
        while pending:
            if self._deadline is not None:
                self._deadline.check()
            handles = [h for task in pending for h in task.crew.waiting_for()]
            wait_s, before = self._next_look(pending), time.monotonic()
            ready = set(wait(handles, timeout=wait_s))
            now = time.monotonic()
            for task in list(pending):
                task.give_back(now, standstill(wait_s, now - before))
                self._update(task, ready)
                if task.done:
                    pending.remove(task)
                    yield task

    def run(
        self,
        job: Job,
        world_size: int,
        *,
        timeout_s: float | None = None,
        quiet_looks: int = LOOKS,
        is_bounded: bool = False,
    ) -> list[Outcome]:
        """Runs one job to its end; returns the outcome of every rank."""
        task = self.submit(
            job,
            world_size,
            timeout_s=timeout_s,
            quiet_looks=quiet_looks,
            is_bounded=is_bounded,
        )
        self.wait([task])
        return task.outcomes

    def close(self) -> None:
        """Ends all processes and removes the folder; may be called twice."""
        for crew in self._crews.values():
            if not crew.broken:
                crew.dismiss()
                crew.kill()
        for crew in self._crews.values():
            crew.remove_files()
        self._crews.clear()
        if self._outer is None:
            for server in (self._spare, self._server, self._clean):
                if server is not None:
                    server.stop()
        self._clean = self._server = self._spare = None
        if self._folder is not None:
            self._folder.remove()
        atexit.unregister(self.close)  # last: a signal may break off what is above

    def _next_look(self, pending: list[Task]) -> float:
        """Returns the seconds to wait for messages at most."""
        ends = [task.next_end for task in pending]
        ends += [] if self._deadline is None else [self._deadline.end]
        left_s = min(ends) - time.monotonic()
        return min(max(0.0, left_s), *(task.look_s for task in pending))

    def _update(self, task: Task, ready: Collection[Any]) -> None:
        crew = task.crew
        crew.receive(ready)
        now = time.monotonic()
        task.note_begin(now)
        kinds = {o.kind for o in crew.outcomes}
        failed = bool(kinds & {"raised", "died", "unseated"}) or any(
            getattr(o.value, "failed", False) for o in crew.outcomes
        )
        if failed:
            task.note_failure(now)
        if "running" in kinds:
            kind = task.reason_to_stop(now)
            if kind is None:
                return
            crew.stop_running(kind)
        self._end(task, now, failed=failed)

    def _end(self, task: Task, now: float, *, failed: bool) -> None:
        """Collects the results of a task's ranks; kills a crew that is not reusable."""
        crew = task.crew
        kinds = {o.kind for o in crew.outcomes}
        if self._server_died_with(crew):
            raise ServerDiedError
        if unseated := unseated_ranks(crew.outcomes):
            crew.kill()
            raise NoMoreProcessesError(crew.world_size, reason_unseated(unseated[0]))
        if failed or kinds != {"done"}:
            crew.collect_failures()
        if kinds != {"done"}:
            if not crew.broken:
                crew.kill()
        elif any(o.leftovers for o in crew.outcomes):
            crew.kill()
        crew.collect_progress()
        if crew.broken:
            # Nobody uses it any more; its pipes close with it.
            crew.remove_files()
            self._crews = {k: c for k, c in self._crews.items() if c is not crew}
        crew.busy = False
        if self._hosts is not None:
            self._hosts.check()
        task.done, task.outcomes = True, crew.outcomes
        task.seconds = now - task.started

    def _server_died_with(self, crew: Crew) -> bool:
        """Returns whether ranks died because the fork server did.

        The kernel kills ranks while the server is still on its way out.
        """
        ended = [o for o in crew.outcomes if o.kind in ("died", "unseated")]
        codes = {o.exit_code for o in ended if o.raised is None}
        deadline = time.monotonic() + (_SERVER_EXIT_S if _NO_STATUS in codes else 0)
        while codes and self._is_server_alive() and time.monotonic() < deadline:
            time.sleep(_IMPORT_POLL_S)
        return bool(codes) and not self._is_server_alive()

    def _is_server_alive(self) -> bool:
        return self._server is not None and self._server.is_alive()

    def _dump_server_stack(self) -> str:
        assert self._server is not None
        if self._server.pid is not None:
            os.kill(self._server.pid, processes.STACK)
            time.sleep(0.2)
            os.kill(self._server.pid, signal.SIGKILL)
        return frames.main_first(self._read(preload.STACK_FILE))

    def _read(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / name).read_text(encoding="utf-8", errors="replace")
        return ""
