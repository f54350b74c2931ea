"""The command in a process of its own, and what it leaves behind."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from ddpcheck.checking import scripts
from ddpcheck.cli import main
from ddpcheck.ranks.pool import Pool

DEADLINE_S = 180.0
DATA = Path(__file__).parent
_SHARED = Path("/dev/shm")  # noqa: S108


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command left: exit code and the text of both streams."""

    exit_code: int
    stdout: str
    stderr: str


def without_progress(errors: str) -> str:
    """Returns stderr without the lines that a busy machine gets every 15 seconds."""
    return re.sub(r"(?m)^ddpcheck: .* \(\d+ s(, about \d+ \w+ left)?\)\n", "", errors)


def _hears_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """A running ddpcheck, in a session of its own."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        program: tuple[str, ...] = ("-m", "ddpcheck"),
        *,
        stderr: int = subprocess.PIPE,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            # Who runs the suite in the background may ignore Ctrl-C; a terminal's
            # commands do not.
            preexec_fn=_hears_ctrl_c,  # noqa: PLW1509 (one call of the system)
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Returns when `condition` holds; fails at the deadline or after the end."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, "the command has ended"
            assert time.monotonic() < deadline, "the condition never held"
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Signals the whole session, as a terminal does on Ctrl-C."""
        os.killpg(self.process.pid, number)

    def end(self) -> Ended:
        """Waits for the end."""
        try:
            out, err = self.process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        code, errors = self.process.returncode, without_progress(err or "")
        return Ended(exit_code=code, stdout=out, stderr=errors)

    def close(self) -> None:
        """Ends what a failed test left running: its pipes would fail another test."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.communicate()


class Terminal:
    """Starts the command in a folder of its own, and says what it left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Longer than the address of a socket may be: nothing may depend on it.
        self.temporary = folder / "tmp" / ("long-" * 20)
        self.temporary.mkdir(parents=True)
        self._commands: list[Command] = []
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("GITHUB_", "PYTEST_"))
            and key not in ("NO_COLOR", "FORCE_COLOR")
        }
        self.environment["TMPDIR"] = str(self.temporary)
        root = str(DATA.parents[1])
        self.environment["PYTHONPATH"] = root
        self._shared_before = {p.name for p in _SHARED.glob("torch_*")}

    def write(self, text: str, name: str = "mymodel.py") -> str:
        """Writes a target file; returns its name."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def start(self, *arguments: str, stderr: int = subprocess.PIPE) -> Command:
        """Starts the command; its errors may go to an open file."""
        command = Command(list(arguments), self.folder, self.environment, stderr=stderr)
        self._commands.append(command)
        return command

    def start_installed(self, *arguments: str) -> Command:
        """Starts it as pip installs it: by a script, whose folder is on the path."""
        script = self.folder / "bin" / "ddpcheck"
        script.parent.mkdir()
        script.write_text(
            "import sys, ddpcheck.cli.main as c\nsys.exit(c.main())\n", "utf-8"
        )
        command = Command(
            list(arguments), self.folder, self.environment, (str(script),)
        )
        self._commands.append(command)
        return command

    def run(self, *arguments: str) -> Ended:
        """Runs the command to its end."""
        return self.start(*arguments).end()

    def run_in_line(self, *arguments: str) -> tuple[Ended, set[str]]:
        """Runs the command to its end; returns what its process had imported, too."""
        program = (
            "import atexit, sys\nfrom ddpcheck.cli.main import main\n"
            "def note():\n"
            "    open('modules', 'w').write(' '.join(sys.modules))\n"
            "atexit.register(note)\n"
            f"sys.exit(main({list(arguments)!r}))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        names = (self.folder / "modules").read_text(encoding="utf-8").split()
        ended = Ended(
            exit_code=done.returncode,
            stdout=done.stdout,
            stderr=without_progress(done.stderr),
        )
        return ended, set(names)

    def close(self) -> None:
        """Ends every command."""
        for command in self._commands:
            command.close()

    def assert_clean(self, command: Command) -> None:
        """Asserts that no process, temporary file or shared memory is left."""
        deadline = time.monotonic() + 10
        while left := processes_of(command.process.pid):
            assert time.monotonic() < deadline, f"processes left: {left}"
            time.sleep(0.05)
        # torch's own cache of compiled kernels is none of ours.
        left_files = [
            path.name
            for path in self.temporary.iterdir()
            if not path.name.startswith("torchinductor_")
        ]
        left_files += [
            p.name for p in _SHARED.glob(f"ddpcheck-{command.process.pid}-*")
        ]
        assert left_files == []
        # Other tests may be running, but none makes shared memory of torch's.
        assert {p.name for p in _SHARED.glob("torch_*")} <= self._shared_before


def processes_of(session: int) -> list[str]:
    """Returns the command lines of the living processes of a session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) != session:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, ProcessLookupError, PermissionError):
            continue
    return found


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A folder and the command."""
    with contextlib.closing(Terminal(tmp_path)) as made:
        yield made


@pytest.fixture
def here(
    warm: Pool, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    """A terminal whose command runs in this process, on the warm pool."""
    check = functools.partial(scripts.check_script, outer=warm)
    monkeypatch.setattr(scripts, "check_script", check)
    monkeypatch.chdir(terminal.folder)
    monkeypatch.setattr(terminal, "run", _run_here)
    yield terminal
    assert not list(warm.folder.glob(f"{warm.folder.name}-*"))  # of the checks


def _run_here(*arguments: str) -> Ended:
    """Runs the command to its end, as Terminal.run does."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main.main(list(arguments))
    return Ended(
        exit_code=code,
        stdout=out.getvalue(),
        stderr=without_progress(errors.getvalue()),
    )
