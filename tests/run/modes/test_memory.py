"""The memory that a run needs, available memory, and the error if it is too small."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpcheck.checking import checking
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks.pool import Pool
from ddpcheck.run.facts import Sizes
from ddpcheck.run.modes import memory
from ddpcheck.run.modes.memory import GIB, Room
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef

SIZES = Sizes(parameters=4, gradients=3, optimizer=6, recorded=50)


@pytest.mark.parametrize(
    ("mode", "world_size", "needed"),
    [
        ("single", 1, 50 + 13),
        ("ddp", 2, 50 + 2 * 16),
        ("averaged", 4, 50 + 4 * 16),
        ("dp", 4, 50 + 13 + 3 * 7),
        ("ps", 2, 50 + 3 * 13 + 2 * 10),
        ("sim", 2, 50 + 16),
        ("sim", 4096, 50 + 16),
    ],
)
def test_need_of_a_run(mode: str, world_size: int, needed: int) -> None:
    assert memory.needed(SIZES, mode, world_size) == needed


def test_what_does_not_fit_is_told_whole() -> None:
    sizes = Sizes(
        parameters=GIB // 2, gradients=GIB // 4, optimizer=GIB, recorded=3 * GIB
    )
    runs = [("dp", 2), ("ddp", 2), ("ddp", 4), ("ddp", 8)]
    with pytest.raises(UsageError) as caught:
        memory.check("big.py", sizes, runs, memory.room(12))
    assert str(caught.value) == (
        "ddpcheck: big.py needs about 19 GiB for ddp at world size 8 "
        "[option-max-memory]\n"
        "  expected   at most 12 GiB: --max-memory 12\n"
        "  found      0.5 GiB of parameters, 0.25 of gradients, 1 of optimizer state "
        "in each process, 3 of recorded steps\n"
        "  fix        --world-sizes 4, fewer --steps, or --max-memory 19 if there is "
        "more\n"
        "  more       ddpcheck --explain option-max-memory"
    )


def test_what_fits_or_has_no_limit_is_silent() -> None:
    memory.check("big.py", SIZES, [("ddp", 2)], Room(limit=82, origin=""))
    memory.check("big.py", SIZES, [("ddp", 2)], None)
    with pytest.raises(UsageError):
        memory.check("big.py", SIZES, [("ddp", 2)], Room(limit=81, origin=""))


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")
    return path


def test_available_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    told = "MemTotal: 9 kB\nMemAvailable:   7 kB\n"
    meminfo = _file(tmp_path / "meminfo", told)
    assert memory.available(meminfo, tmp_path) == 7 * 1024
    _file(tmp_path / "memory.max", "max\n")
    _file(tmp_path / "memory.current", "5000\n")
    assert memory.available(meminfo, tmp_path) == 7 * 1024
    _file(tmp_path / "memory.max", "6000\n")
    assert memory.available(meminfo, tmp_path) == 1000
    _file(tmp_path / "memory.stat", "anon 1\ninactive_file 300\n")
    assert memory.available(meminfo, tmp_path) == 1300


def test_available_knows_the_first_cgroups_and_may_know_nothing(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert memory.available(none, tmp_path) is None
    _file(tmp_path / "memory/memory.usage_in_bytes", "400\n")
    _file(tmp_path / "memory/memory.limit_in_bytes", f"{2**63 - 4096}\n")
    assert memory.available(none, tmp_path) is None
    _file(tmp_path / "memory/memory.limit_in_bytes", "1000\n")
    assert memory.available(none, tmp_path) == 600


@pytest.mark.parametrize(
    ("size", "where"),
    # 736 bytes of parameters and of gradients, 5,152 recorded, 2,208 for each rank.
    [(6_000, "in one process"), (10_000, "for ddp at world size 4")],
)
def test_run_is_refused_before_it_starts(pool: Pool, size: int, where: str) -> None:
    parts = (("model", "mlp"), ("loss", "mean"))
    ref = TargetRef(factory="ddpcheck.suite.zoo.cases:target", arguments=parts)
    options = Options(max_memory=size / GIB, world_sizes=(2, 4), modes=("ddp",))
    with pytest.raises(UsageError) as caught:
        checking.check(pool, ref, options)
    assert caught.value.problem.slug == "option-max-memory"
    assert caught.value.problem.message.endswith(f" GiB {where}")


def test_run_that_nobody_asked_for_is_left_out(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = memory.Room(limit=20_000, origin="the 1.86e-05 GiB that are free")
    monkeypatch.setattr(memory, "room", lambda _: room)
    parts = (("model", "mlp"), ("loss", "mean"))
    ref = TargetRef(factory="ddpcheck.suite.zoo.cases:target", arguments=parts)
    report = checking.check(pool, ref, Options(modes=("ddp",)))
    assert [run.world_size for run in report.runs] == [2, 4]
    why = {item.what: item.why for item in report.not_compared}
    assert why["ddp-W8"] == (
        "it needs about 2.12e-05 GiB, and the 1.86e-05 GiB that are free must also "
        "hold activations; --world-sizes 8 runs it anyway"
    )
    with pytest.raises(UsageError, match="option-max-memory"):
        checking.check(pool, ref, Options(modes=("ddp",), world_sizes=(8,)))
