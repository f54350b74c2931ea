"""What a family of fixes gets: the fixes of a file, and what is known of the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpcheck.diagnose.fixed.draft import Facts
from ddpcheck.run.intervention import Intervention


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The fixes of one file: all of them, as one may say how another is made.

    `attempt`: 1 where the file of attempt 0 did not train as the single process, 2
    where that of attempt 1 did not either.
    """

    fixes: tuple[Intervention, ...]
    facts: Facts
    world_size: int
    attempt: int = 0


def listed(names: Sequence[str]) -> str:
    """Returns the names as the code of a set."""
    return "{" + ", ".join(map(repr, names)) + "}"


def at_each_ddp(facts: Facts, code: str) -> str:
    """Returns what runs a line on each DDP of `wrapped`, which the line calls `ddp`.

    Without a wrap() of the file that is `wrapped` itself.
    """
    if not facts.has_wrap:
        return code.replace("ddp.", "wrapped.").replace("(ddp)", "(wrapped)")
    return (
        "for ddp in wrapped.modules():\n"
        "    if isinstance(ddp, DistributedDataParallel):\n"
        f"        {code}"
    )
