"""The calling module, also without any caller."""

from __future__ import annotations

import threading
from types import FrameType

from ddpcheck.run.process import callers


def test_frames_above_are_found_and_beyond_the_last_there_is_none() -> None:
    def inner() -> list[FrameType | None]:
        own, above = callers.frame(0), callers.frame(1)
        return [own, above]

    def outer() -> list[FrameType | None]:
        return inner()

    names = [found.f_code.co_name for found in outer() if found is not None]
    assert names == ["inner", "outer"]
    assert callers.module_of(outer()[0]) == __name__
    assert callers.frame(10_000) is None
    assert callers.module_of(None) == ""


def test_a_thread_begins_at_the_bottom_of_its_stack() -> None:
    told: list[str] = []
    thread = threading.Thread(
        target=lambda: told.append(callers.module_of(callers.frame(9)))
    )
    thread.start()
    thread.join()
    assert told == [""]
