"""`ddpcheck run` on scripts that end, write and start processes as scripts do."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Ended, Terminal
from tests.end_to_end.test_scripts import SETUP, TRAIN

LOOP = """
for number, (x, y) in enumerate(loader_of(data)):
    update(x, y)
    if number == {last}:
        break
"""
PREFETCH = """
small = TensorDataset(*[tensor[:{rows}] for tensor in data.tensors])
loader = loader_of(small)
for epoch in range({epochs}):
    batches = iter(loader)
    batch = next(batches)
    while batch is not None:
        following = next(batches, None)
        update(*batch)
        batch = following
"""
# Scripts that are right: how they end, how many steps are compared, and what of their
# end the report names.
AT_WORK = "is still at work at the time limit, at"
ENDS = {
    "a hang": (LOOP.format(last=3) + "import time\ntime.sleep(1000)\n", 3, AT_WORK),
    "a hang after three": (
        LOOP.format(last=2) + "import time\ntime.sleep(1000)\n",
        2,
        AT_WORK,
    ),
    "exit 0": (LOOP.format(last=1) + "sys.exit(0)\n", 2, ""),
    "exit 3": (TRAIN + "sys.exit(3)\n", 3, "raises SystemExit: 3 (train.py:"),
    "a text": (TRAIN + "sys.exit('done')\n", 3, "raises SystemExit: done"),
    "_exit": (TRAIN + "os._exit(0)\n", 3, "exited with code 0"),
    "an interrupt": (TRAIN + "raise KeyboardInterrupt\n", 3, "KeyboardInterrupt"),
    "an error": (TRAIN + "raise OSError('disk full')\n", 3, "OSError: disk full"),
    "a prefetched batch": (PREFETCH.format(rows=16, epochs=1), 2, ""),
    "a prefetched batch of each epoch": (PREFETCH.format(rows=16, epochs=3), 3, ""),
}
# What scripts do to files; the folder has existing.txt.
WRITES = """
import csv, json, logging
logging.basicConfig(filename=f"train-{RANK}.log", level=logging.INFO)
os.makedirs("runs/first", exist_ok=True)
for number, (x, y) in enumerate(loader_of(data)):
    update(x, y)
    logging.info("step %d", number)
    assert len(os.listdir("checkpoints")) == 1  # the user's
    if RANK == 0:
        os.makedirs(f"runs/first/{number}")
        torch.save(model.state_dict(), f"runs/first/{number}/model.pt")
        torch.save(optimizer.state_dict(), "runs/first/latest.pt")
        with open("runs/first/metrics.csv", "a") as stream:
            csv.writer(stream).writerow([number, 1.0])
        with open("state.json", "w") as stream:
            json.dump({"step": number}, stream)
        with open("runs/first/events.out", "ab", buffering=0) as stream:
            stream.write(b"an event")
os.makedirs("outputs/today", exist_ok=True)
os.chdir("outputs/today")
open("summary.txt", "w").write("done")
"""
PROCESSES = """
import multiprocessing, signal, subprocess, threading

stopped = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda *_: stopped.append(1))
text = subprocess.run([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE)
assert text.stdout == b"1\\n"
subprocess.Popen(["sleep", "1000"])
threading.Thread(target=threading.Event().wait).start()
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, 2]) == [1, 2]
"""
OFFLINE = """
import importlib.metadata, pathlib
for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "HF_HUB_OFFLINE"):
    assert os.environ[name]
import tracker
assert tracker.MODE == "disabled"  # read when it was imported
"""
CATCHES = """
done = 0
while done < 12:
    try:
        for x, y in loader_of(data):
            update(x, y)
            done += 1
    except BaseException as error:
        print(error)
"""
SPAWN = """
from torch.utils.data import Dataset


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return x, x[:3].sin()


def main():
    {setup}
    loader = loader_of(
        Rows(),
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="spawn",
    )
    for x, y in loader:
        update(x, y)


if __name__ == "__main__":
    main()
"""
FORK = TRAIN.replace(
    "(data)",
    "(data, num_workers=2, persistent_workers=True, multiprocessing_context='fork')",
)
CONFIGURED = """
import functools, yaml


def configured(path):
    def decorate(function):
        @functools.wraps(function)
        def run():
            folder = os.path.dirname(os.path.abspath(__file__))
            with open(os.path.join(folder, path)) as stream:
                settings = yaml.safe_load(stream)
            out, here = os.path.join("outputs", str(os.getpid())), os.getcwd()
            os.makedirs(out)
            os.chdir(out)
            with open("settings.yaml", "w") as stream:
                yaml.safe_dump(settings, stream)
            try:
                return function(settings)
            finally:
                os.chdir(here)

        return run

    return decorate


@configured("conf/settings.yaml")
def main(settings):
    assert sys.argv[1:] == ["name=a b", "--flag"]
    optimizer.param_groups[0]["lr"] = settings["lr"]
    for x, y in loader_of(data):
        update(x, y)


if __name__ == "__main__":
    main()
"""


def _write(terminal: Terminal, code: str) -> str:
    return terminal.write(SETUP + code, "train.py")


def _shown(ended: Ended) -> str:
    return " ".join((ended.stdout + ended.stderr).split())


def _assert_equivalent(ended: Ended) -> None:
    assert ended.exit_code == 0, ended.stdout + ended.stderr
    assert "EQUIVALENT: 1 of 1 run, " in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_script_that_ends_so_has_a_verdict_on_its_steps(
    name: str, terminal: Terminal
) -> None:
    code, steps, end = ENDS[name]
    limit = ("--timeout-s", "15") if "hang" in name else ()
    ended = terminal.run("run", *limit, _write(terminal, code))
    _assert_equivalent(ended)
    assert f", SGD, {steps} steps; " in _shown(ended)
    what = f"what follows update {steps} (there the single process"
    assert (what in _shown(ended)) == bool(end)
    assert end in _shown(ended)


def _look(folder: Path, without: set[str]) -> dict[str, tuple[object, ...]]:
    """Returns the bytes, the mode and the time of each path in a folder, and of it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *folder.rglob("*")]:
        name = path.relative_to(folder)
        if name.parts[:1] and name.parts[0] in without:
            continue
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(name)] = data, status.st_mode, status.st_mtime_ns, status.st_nlink
    return found


def test_script_that_writes_leaves_every_byte_and_no_process(
    terminal: Terminal,
) -> None:
    name = _write(terminal, WRITES + PROCESSES)
    (terminal.folder / "checkpoints").mkdir()
    (terminal.folder / "checkpoints" / "old.pt").write_bytes(b"weights")
    (terminal.folder / "existing.txt").write_text("mine\n", encoding="utf-8")
    for path in [*terminal.folder.rglob("*"), terminal.folder]:
        if path.name != "tmp":
            os.utime(path, (10**9, 10**9))
    before = _look(terminal.folder, {"tmp"})
    command = terminal.start("run", name)
    ended = command.end()
    _assert_equivalent(ended)
    assert ended.stderr == ""
    assert _look(terminal.folder, {"tmp"}) == before
    terminal.assert_clean(command)


REFUSED = "open('existing.txt', 'w').write('mine')\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", [REFUSED + TRAIN, f"if RANK == 1:\n    {REFUSED}{TRAIN}"]
)
def test_script_that_overwrites_is_refused_on_any_rank(
    code: str, terminal: Terminal
) -> None:
    (terminal.folder / "existing.txt").write_text("precious\n", encoding="utf-8")
    ended = terminal.run("run", _write(terminal, code))
    assert (ended.exit_code, ended.stdout) == (2, "")
    line = 1 + (SETUP + code).splitlines().index(
        next(row for row in code.splitlines() if "existing" in row)
    )
    assert ended.stderr == (
        "ddpcheck: train.py changes files that existed before [script-writes]\n"
        "  expected   a script that leaves them as they are: a check runs it several "
        "times\n"
        f"  found      overwrite existing.txt (train.py:{line})\n"
        "  fix        give it other paths by its arguments, or allow it: ddpcheck run "
        "--allow-writes train.py ...\n"
        "  more       ddpcheck --explain script-writes\n"
    )
    text = (terminal.folder / "existing.txt").read_text(encoding="utf-8")
    assert text == "precious\n"


@pytest.mark.slow
def test_script_that_goes_on_without_its_file_has_a_verdict_and_a_warning(
    terminal: Terminal,
) -> None:
    (terminal.folder / "existing.txt").write_text("precious\n", encoding="utf-8")
    ended = terminal.run("run", _write(terminal, TRAIN + REFUSED))
    _assert_equivalent(ended)
    assert (
        "warning: the script was not allowed to overwrite existing.txt; --allow-writes "
        "allows it"
    ) in _shown(ended)
    ended = terminal.run("run", "--allow-writes", "train.py")
    _assert_equivalent(ended)
    assert "allow" not in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [OFFLINE + TRAIN, CATCHES, FORK],
    ids=["offline", "catches everything", "forked workers"],
)
def test_script_of_this_kind_is_equivalent(code: str, terminal: Terminal) -> None:
    tracker = "import os\nMODE = os.environ.get('WANDB_MODE')\n"
    packages = terminal.folder / "site-packages"
    packages.mkdir()
    (packages / "tracker.py").write_text(tracker, encoding="utf-8")
    path = terminal.environment["PYTHONPATH"]
    terminal.environment["PYTHONPATH"] = f"{path}:{packages}"
    _assert_equivalent(terminal.run("run", _write(terminal, code)))


@pytest.mark.slow
def test_script_whose_workers_are_spawned_is_equivalent(terminal: Terminal) -> None:
    imports, _, setup = SETUP.partition("dist.init_process_group")
    inner = ("dist.init_process_group" + setup).replace("\n", "\n    ")
    code = imports + SPAWN.format(setup=inner)
    _assert_equivalent(terminal.run("run", terminal.write(code, "train.py")))


@pytest.mark.slow
def test_script_with_a_configuration_and_a_folder_for_outputs_is_equivalent(
    terminal: Terminal,
) -> None:
    pytest.importorskip("yaml")
    (terminal.folder / "conf").mkdir()
    terminal.write("lr: 0.05\n", "conf/settings.yaml")
    name = _write(terminal, CONFIGURED)
    _assert_equivalent(terminal.run("run", name, "name=a b", "--flag"))
    assert not (terminal.folder / "outputs").exists()


def test_wrong_arguments_are_reported_with_the_words_of_the_script(
    terminal: Terminal,
) -> None:
    parse = "parser = argparse.ArgumentParser()\n"
    parse += "parser.add_argument('--lr', required=True)\nparser.parse_args()\n"
    ended = terminal.run("run", _write(terminal, parse + TRAIN), "--size", "1")
    assert (ended.exit_code, ended.stdout) == (2, "")
    found = next(
        line for line in ended.stderr.splitlines() if line.startswith("  found")
    )
    assert found.startswith(
        "  found      train.py: error: the following arguments are required: --lr | "
        "SystemExit: 2 (train.py:"
    )
    fix = (
        "  fix        correct the arguments after train.py, which are the script's own"
    )
    assert fix in ended.stderr.splitlines()


@pytest.mark.slow
def test_script_that_is_deleted_during_the_check_is_checked_as_it_was(
    terminal: Terminal,
) -> None:
    marked = "open('started', 'w').close()\n" + TRAIN
    command = terminal.start("run", _write(terminal, marked))
    command.wait_for((terminal.folder / "started").exists)
    (terminal.folder / "train.py").unlink()
    time.sleep(0.1)
    _assert_equivalent(command.end())


@pytest.mark.slow
def test_ctrl_c_at_the_second_world_size_leaves_the_report_of_the_first(
    terminal: Terminal,
) -> None:
    late = "if WORLD_SIZE == 3:\n    open('late', 'w').close()\n    time.sleep(600)\n"
    name = _write(terminal, "import time\n" + late + TRAIN)
    sizes = ("--world-sizes", "2,3,4", "--json", "report.json")
    command = terminal.start("run", *sizes, name)
    command.wait_for((terminal.folder / "late").exists)
    command.signal(signal.SIGINT)
    ended = command.end()
    assert ended.exit_code == 130, ended.stdout + ended.stderr
    found = json.loads((terminal.folder / "report.json").read_text(encoding="utf-8"))
    assert (found["verdict"], found["exit_code"]) == ("not-checked", 130)
    assert [run["world_size"] for run in found["runs"]] == [2]
    left = [item["what"] for item in found["not_compared"]]
    assert [what for what in left if what.startswith("world size")] == [
        "world size 3",
        "world size 4",
    ]
    assert not (terminal.folder / "late").exists()
    terminal.assert_clean(command)
