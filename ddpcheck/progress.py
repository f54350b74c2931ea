"""One live line on a terminal: what runs, how much is left, for how long."""

from __future__ import annotations

import os
import shutil
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Self

_TICK_S = 0.25
_ERASE = "\r\x1b[K"


class Progress:
    """A line on `stream` while the context lasts, erased at its end.

    Writes nothing where `stream` is no terminal: a log file gets no trace of it.
    """

    def __init__(self, stream: TextIO, *, wanted: bool = True) -> None:
        is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stream, self._live = stream, wanted and is_terminal
        self._text, self._started = "", time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        if self._live:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._stop.set()
            self._thread.join()
            self._write(_ERASE)

    def __call__(self, text: str) -> None:
        """Shows `text` from now on."""
        self._text = text
        if self._live:
            self._show()

    def _tick(self) -> None:
        while not self._stop.wait(_TICK_S):
            self._show()

    def _show(self) -> None:
        seconds = time.monotonic() - self._started
        line = f"ddpcheck: {self._text} ({seconds:.0f} s)"
        # A full last column would wrap, and a wrapped line cannot be erased.
        self._write(_ERASE + line[: shutil.get_terminal_size().columns - 1])

    def _write(self, text: str) -> None:
        with self._lock:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # the terminal has gone
                self._live = False
                self._stop.set()
