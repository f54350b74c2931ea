"""How much memory a run needs, and whether the machine has it.

An estimate of tensors only: parameters, gradients, DDP's buckets, optimizer state and
records. Activations depend on the target and are not known in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.errors.problem import usage_error
from ddpcheck.run.facts import Sizes
from ddpcheck.run.modes.registry import mode_of

GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # cgroup v1 represents "no limit" by a number near 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The number of bytes a check may use, and the source of this limit."""

    limit: int
    origin: str  # "--max-memory 4", "the 3.2 GiB that are free"


def at_work(sizes: Sizes, mode: str, world_size: int) -> int:
    """Returns the bytes of all processes of a run, without earlier records."""
    return mode_of(mode).bytes_at_work(sizes, world_size)


def needed(sizes: Sizes, mode: str, world_size: int) -> int:
    """Returns the bytes of all processes of a run."""
    return sizes.recorded + at_work(sizes, mode, world_size)


def room(max_memory: float | None) -> Room | None:
    """Returns the limit: the requested one (GiB), else the free memory.

    None if neither is known.
    """
    if max_memory is not None:
        return Room(limit=int(max_memory * GIB), origin=f"--max-memory {max_memory:g}")
    free = available()
    if free is None:
        return None
    return Room(limit=free, origin=f"the {gib(free)} GiB that are free")


def available(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP
) -> int | None:
    """Returns the bytes available without swapping, None if unknown.

    The minimum of the machine's available memory and the container's limit.
    """
    found = [_machine(meminfo), _container(cgroup)]
    known = [value for value in found if value is not None]
    return max(0, min(known)) if known else None


def _machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    value = told.get("MemAvailable", "").split()
    return int(value[0]) * 1024 if value else None


def _container(cgroup: Path) -> int | None:
    """Returns the bytes left to a container: limits of cgroup v2, then of v1."""
    for limit, used, files in (
        ("memory.max", "memory.current", "memory.stat"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
        ),
    ):
        most, now = _number(cgroup / limit), _number(cgroup / used)
        if most is not None and now is not None and most < _NO_LIMIT:
            return most - now + _reclaimable(cgroup / files)
    return None


def _reclaimable(path: Path) -> int:
    """Returns the page cache, which counts as used and can be taken back."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    told = dict(line.split() for line in lines if len(line.split()) == 2)  # noqa: PLR2004
    return int(told.get("inactive_file", 0))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max": no limit
        return None


def check(
    name: str, sizes: Sizes, runs: Sequence[tuple[str, int]], within: Room | None
) -> None:
    """Refuses runs that do not fit, each alone.

    Args:
        name: of the target.
        sizes: of its tensors.
        runs: (mode, world size).
        within: the limit, None for none.

    Raises:
        UsageError: option-max-memory.
    """
    if within is None or not runs:
        return
    wanted = {run: needed(sizes, *run) for run in runs}
    mode, world_size = largest = max(runs, key=lambda run: wanted[run])
    if wanted[largest] <= within.limit:
        return
    more = _up(wanted[largest])
    fitting = [w for m, w in runs if m == mode and wanted[m, w] <= within.limit]
    smaller = f"--world-sizes {max(fitting)}" if fitting else "a smaller model"
    steps = ", fewer --steps" if sizes.recorded else ""
    where = mode_of(mode).where.format(mode=mode, world_size=world_size)
    raise usage_error(
        slug="option-max-memory",
        message=f"{name} needs about {gib(wanted[largest])} GiB {where}",
        expected=f"at most {gib(within.limit)} GiB: {within.origin}",
        found=f"{gib(sizes.parameters)} GiB of parameters, "
        f"{gib(sizes.gradients)} of gradients, {gib(sizes.optimizer)} of optimizer "
        f"state in each process, {gib(sizes.recorded)} of recorded steps",
        fix=f"{smaller}{steps}, or --max-memory {more} if there is more",
    )


def gib(size: int) -> str:
    """Returns bytes as GiB in 3 significant digits: "0.463"."""
    return f"{size / GIB:.3g}"


def _up(size: int) -> int:
    return -(-size // GIB)
