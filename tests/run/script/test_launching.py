"""Scripts that start torchrun: the script that it would start runs here."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run

from ddpcheck.ranks.messages import Seat
from ddpcheck.run.script import launching
from ddpcheck.target.script import OtherNumberError

SCRIPT = """\
import os, sys
with open("told.txt", "a") as file:
    file.write(f"{os.getpid()} {__name__} {sys.argv[1:]}")
sys.exit(0)
"""


def _seat(rank: int, world_size: int) -> Seat:
    return Seat(
        rank=rank, world_size=world_size, folder="", name="script", timeout_s=1.0
    )


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields where the script writes; it lies in the working folder."""
    state = random.getstate()  # torchrun draws names
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which torchrun sets, else
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM")
    monkeypatch.setattr(sys, "argv", ["launch"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    yield tmp_path / "told.txt"
    random.setstate(state)


def _launch(seat: Seat, *args: str, has_joined: bool = False) -> Any:
    with launching.in_place(seat, lambda: has_joined):
        torch.distributed.run.main(list(args))


@pytest.mark.parametrize(("rank", "world_size"), [(1, 2), (0, 0)])
def test_script_of_torchrun_runs_here(rank: int, world_size: int, told: Path) -> None:
    _launch(_seat(rank, world_size), "--nproc-per-node", "2", "train.py", "-n", "3")
    assert told.read_text(encoding="utf-8") == f"{os.getpid()} __main__ ['-n', '3']"


def test_module_of_torchrun_runs_here(told: Path) -> None:
    _launch(_seat(0, 2), "--nproc-per-node", "2", "-m", "train")
    assert told.read_text(encoding="utf-8") == f"{os.getpid()} __main__ []"


def test_other_number_of_processes_is_refused(told: Path) -> None:
    with pytest.raises(OtherNumberError, match="3"):
        _launch(_seat(0, 2), "--nproc-per-node", "3", "train.py")
    assert not told.exists()


def test_torchrun_after_a_joined_group_starts_processes(told: Path) -> None:
    args = "--nproc-per-node", "1", "train.py"
    _launch(_seat(0, 2), *args, has_joined=True)
    pid, _, rest = told.read_text(encoding="utf-8").partition(" ")
    assert int(pid) != os.getpid()
    assert rest == "__main__ []"


def test_module_that_is_not_yet_imported_is_seen(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith("torch.distributed.launcher")]:
        monkeypatch.delitem(sys.modules, name)
    with launching.in_place(_seat(0, 2), lambda: False):
        from torch.distributed.launcher import api  # noqa: PLC0415

        config = api.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2)
        api.elastic_launch(config, sys.executable)("-u", "train.py")
    assert told.read_text(encoding="utf-8").startswith(str(os.getpid()))
