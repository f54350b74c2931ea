"""Progress: one live line on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Self

_TICK_S = 0.25
# Between lines in a log. What ends before the first leaves the log as it was.
LOG_S = 15.0
_LOOK_S = 2.0  # between reads of the ranks' current steps
_ERASE = "\r\x1b[K"
_MINUTE_S = 60.0
_HOUR_S = 3600.0


class Silent:
    """The current phase of a check, not shown."""

    def __init__(self) -> None:
        self.doing, self.part = "", ""
        self._end: float | None = None  # when the runs will be over, monotonic
        self._step: Callable[[], str] | None = None

    def __call__(self, doing: str) -> None:
        """Notes the phase, as a gerund: "importing torch"."""
        self.doing, self.part, self._end = doing, "", None
        self._changed()

    def detail(self, part: str) -> None:
        """Notes the part of the phase."""
        self.part = part
        self._changed()

    def expect(self, seconds: float) -> None:
        """Notes how long the phase will go on."""
        self._end = time.monotonic() + seconds
        self._changed()

    def follow(self, step: Callable[[], str] | None) -> None:
        """Sets the function that returns the training step, "" if it is not known."""
        self._step = step

    def announce(self, text: str) -> None:
        """Shows a line that stays."""

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Shows nothing while another stream of the terminal is written to."""
        yield

    def _changed(self) -> None:
        """Is called where there is something else to show."""


class Progress(Silent):
    """A line on `stream` while the context lasts, erased at its end.

    Where `stream` is no terminal, a line every 15 seconds: a check that ends within
    them leaves no trace in a log file.
    """

    def __init__(
        self, stream: TextIO, *, wanted: bool = True, log_s: float = LOG_S
    ) -> None:
        super().__init__()
        is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stream, self._wanted = stream, wanted
        self._live = wanted and is_terminal
        self._tick_s = _TICK_S if is_terminal else log_s
        self._started = time.monotonic()
        self._looked, self._told = 0.0, ""
        self._is_hidden = False
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._wanted:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._wanted and self._thread.ident is not None:
            self._thread.join()
        if self._live:
            self._write(_ERASE)

    def announce(self, text: str) -> None:
        """Writes a line that stays."""
        if self._wanted:
            erase = _ERASE if self._live else ""
            self._write(f"{erase}ddpcheck: {text}\n")
            self._changed()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Erases the line, and shows it no more while the context lasts."""
        if self._live:
            self._write(_ERASE)
        self._is_hidden = True
        try:
            yield
        finally:
            self._is_hidden = False

    def _changed(self) -> None:
        if self._live:
            self._show()

    def _tick(self) -> None:
        while not self._stop.wait(self._tick_s):
            if self._live:
                self._show()
            elif self.doing:
                self._write(f"{self._line()}\n")

    def _show(self) -> None:
        if self._is_hidden:
            return
        # A full last column would wrap, and a wrapped line cannot be erased.
        columns = shutil.get_terminal_size().columns
        self._write(_ERASE + self._line()[: columns - 1])

    def _line(self) -> str:
        now = time.monotonic()
        times = f"{now - self._started:.0f} s"
        end = self._end
        if end is not None and end > now:
            times += f", {about(end - now)} left"
        parts = filter(None, (self.part, self._where(now)))
        return f"ddpcheck: {', '.join((self.doing, *parts))} ({times})"

    def _where(self, now: float) -> str:
        """Returns the training step; ranks are not asked every time."""
        ask = self._step
        if ask is None:
            return ""
        if now - self._looked > min(_LOOK_S, self._tick_s):
            self._looked, self._told = now, ask()
        return self._told

    def _write(self, text: str) -> None:
        with self._lock:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # the terminal has gone
                self._live = self._wanted = False
                self._stop.set()


def about(seconds: float) -> str:
    """Returns a time in words, always rounded up: "about 4 min".

    >>> [about(s) for s in (0.2, 42, 61, 7300)]
    ['about 1 s', 'about 42 s', 'about 2 min', 'about 3 h']
    """
    for unit_s, unit, most in ((1.0, "s", _MINUTE_S), (_MINUTE_S, "min", _HOUR_S)):
        if seconds < most:
            return f"about {max(1, -int(-seconds // unit_s))} {unit}"
    return f"about {-int(-seconds // _HOUR_S)} h"
