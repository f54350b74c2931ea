"""What finds no room in shared memory goes to a disk, or is refused in words."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ddpcheck.compare import space
from ddpcheck.compare.trace import Reader, Writer
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import folder as folders

MIB = 1 << 20


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Bytes that are free in each folder, 0 in others; for the test to fill."""
    known: dict[Path, int] = {}

    def statvfs(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=known.get(folder, 0), f_frsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return known


def test_eight_mib_stay_free(free: dict[Path, int], tmp_path: Path) -> None:
    free[tmp_path] = 11 * MIB
    assert space.has_room(tmp_path, 3 * MIB)
    assert not space.has_room(tmp_path, 3 * MIB + 1)


def test_folder_that_is_not_there_has_no_room(tmp_path: Path) -> None:
    assert not space.has_room(tmp_path / "none", 0)


def test_record_that_finds_no_room_goes_on_elsewhere(
    free: dict[Path, int], tmp_path: Path
) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    free.update({memory: 9 * MIB, disk: 20 * MIB})
    writer = Writer(memory / "t", disk)
    first, second = torch.arange(3.0), torch.arange(2 * MIB // 8, dtype=torch.float64)
    writer.add("gradients", 0, [("first", first)])
    writer.add("gradients", 0, [("second", second), ("third", first + 1)])
    writer.close()
    assert writer.path == disk / "t"
    assert list(memory.iterdir()) == []
    read = Reader(writer.path)
    found = [read.get("gradients", 0, n) for n in ("first", "second", "third")]
    for tensor, expected in zip(found, [first, second, first + 1], strict=True):
        assert tensor is not None
        assert torch.equal(tensor, expected)


def test_record_that_fits_nowhere_is_refused(
    free: dict[Path, int], tmp_path: Path
) -> None:
    memory, disk = tmp_path / "memory" / "a", tmp_path / "disk" / "a"
    memory.mkdir(parents=True)
    disk.parent.mkdir()
    free.update({memory: 9 * MIB, disk: 5 * MIB})
    writer = Writer(memory / "t", disk)
    with pytest.raises(UsageError) as caught:
        writer.add("gradients", 0, [("w", torch.zeros(3 * MIB // 4))])
    writer.discard()
    assert str(caught.value) == (
        "ddpcheck: there is no room for the tensors of the single-process run "
        "[environment-no-space]\n"
        "  expected   11 MiB more in shared memory or among temporary files\n"
        f"  found      9 MiB in {memory.parent}, 5 MiB in {disk.parent}\n"
        "  fix        TMPDIR with a folder of a larger disk; "
        "docker run --shm-size=2g\n"
        "  more       ddpcheck --explain environment-no-space"
    )
    assert list(memory.iterdir()) == []


def test_large_record_is_placed_where_it_fits(
    free: dict[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr(folders, "temporary", lambda: tmp_path)
    disk = folders.on_disk(memory)
    free.update({memory: 64 * MIB, disk: 100 * MIB})
    assert folders.place(memory, 50 * MIB) == memory
    assert folders.place(memory, 60 * MIB) == disk
    assert (
        folders.place(memory, 99 * MIB) == memory
    )  # nowhere: reported when it is written
