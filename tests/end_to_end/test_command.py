"""The command as a user runs it, in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ddpcheck.checking import checking
from ddpcheck.cli import template
from ddpcheck.ranks.pool import Pool
from ddpcheck.report import data as reports
from ddpcheck.report import files
from ddpcheck.target.options import Options
from ddpcheck.target.target import TargetRef
from tests.end_to_end.conftest import Command, Ended, Terminal
from tests.end_to_end.wrong_files import target
from tests.report.render import sample
from tests.target.test_scripts import FLAT

BROKEN = target(
    loss="def loss(output, target):\n"
    "    return nn.functional.cross_entropy(output, target, reduction='sum')\n"
)
HANG = target(end="import time\nwhile True:\n    time.sleep(1)\n")
QUICK = ("--world-sizes", "2", "--modes", "ddp")
FILES = ["report.html", "report.json", "reproduce.py"]  # and fixed.py, if verified


def test_report_comes_with_the_bug_and_goes_with_it(terminal: Terminal) -> None:
    name = terminal.write(BROKEN)
    ended, own_modules = terminal.run_in_line(name, *QUICK, "--no-fix")
    assert (ended.exit_code, ended.stderr) == (1, "")
    assert not {"torch", "numpy"} & own_modules
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("ddpcheck mymodel.py: Linear, 10 parameters")
    assert "report: reports/mymodel/report.html" in lines
    assert lines[-1].startswith("DIVERGENT: 1 of 1 run, ")
    assert "\x1b" not in ended.stdout
    folder = terminal.folder / "reports" / "mymodel"
    report = reports.from_json((folder / "report.json").read_text(encoding="utf-8"))
    written = [f for f in FILES if f != "reproduce.py" or report.reproduce]
    assert sorted(path.name for path in folder.iterdir()) == written
    assert report.target.path == "mymodel.py"
    assert report.command == "ddpcheck mymodel.py --world-sizes 2 --modes ddp --no-fix"

    terminal.write(target())
    options = ("--json", "-", "--junit-xml", "junit.xml")
    command = terminal.start(name, *QUICK, *options)
    ended = command.end()
    assert (ended.exit_code, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    assert (document["verdict"], document["exit_code"]) == ("equivalent", 0)
    junit = (terminal.folder / "junit.xml").read_text(encoding="utf-8")
    assert junit.startswith("<?xml")
    assert not folder.exists()
    terminal.assert_clean(command)


def test_wrong_file_exits_2_with_the_text_and_in_its_reports(
    terminal: Terminal,
) -> None:
    name = terminal.write(target(loss=""))
    earlier = terminal.folder / "junit.xml"
    earlier.write_text("<testsuite/>", encoding="utf-8")
    command = terminal.start(name, "--json", "-", "--junit-xml", "junit.xml")
    ended = command.end()
    document = json.loads(ended.stdout)
    assert (ended.exit_code, document["exit_code"], document["verdict"]) == (
        2,
        2,
        "not-checked",
    )
    (skipped,) = document["not_compared"]
    assert skipped["what"] == "everything"
    assert skipped["why"].startswith("mymodel.py defines no `loss` [target-no-loss]\n")
    assert "no `loss` [target-no-loss]" in earlier.read_text(encoding="utf-8")
    assert ended.stderr == (
        "ddpcheck: mymodel.py defines no `loss` [target-no-loss]\n"
        "  expected   def loss(output, target) -> scalar tensor\n"
        "  found      functions: model, batch\n"
        "  fix        define `loss`, or name what takes its place: "
        "ddpcheck mymodel.py --loss-fn NAME\n"
        "  more       ddpcheck --explain target-no-loss\n"
    )
    terminal.assert_clean(command)


@pytest.mark.slow
def test_import_that_hangs_exits_3_with_its_stack(terminal: Terminal) -> None:
    command = terminal.start(terminal.write(HANG), "--timeout-s", "1")
    ended = command.end()
    assert (ended.exit_code, ended.stdout) == (3, "")
    first, second, *stack = ended.stderr.splitlines()
    assert first == (
        "ddpcheck: not checked: importing mymodel.py did not end within 1 s, at "
        "mymodel.py:17 in <module>; if it needs longer: --timeout-s"
    )
    assert re.fullmatch(r"  stack( \(12 of \d+ lines, all with -v\))?:", second)
    own = str(terminal.folder / "mymodel.py")
    assert f'File "{own}", line 17 in <module>' in [line.strip() for line in stack]
    terminal.assert_clean(command)


@pytest.mark.slow
def test_import_that_ends_the_process_exits_3_with_its_output(
    terminal: Terminal,
) -> None:
    source = target(
        end="import os\nprint('out of licences', flush=True)\nos._exit(5)\n"
    )
    command = terminal.start(terminal.write(source))
    ended = command.end()
    assert (ended.exit_code, ended.stdout) == (3, "")
    assert ended.stderr == (
        "ddpcheck: not checked: importing mymodel.py ends the process (os._exit, or a "
        "crash in native code); to see which, run: python mymodel.py\n"
        "  last output:\n"
        "    out of licences\n"
    )
    terminal.assert_clean(command)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="needs PYTHONSAFEPATH, of Python 3.11"
)
def test_working_folder_hides_nothing_and_what_an_import_starts_ends(
    terminal: Terminal,
) -> None:
    for name in ("random", "token", "typing"):
        (terminal.folder / f"{name}.py").write_text("raise ValueError\n", "utf-8")
    helper = terminal.folder / "helper_of_mymodel.py"
    helper.write_text("from os import environ\n", encoding="utf-8")
    (terminal.folder / "checks").mkdir()
    start = "subprocess.Popen(['sh', '-c', 'sleep 600 & sleep 600'])"
    source = target(
        head="import subprocess\nimport torch\nfrom torch import nn\n",
        end=f"import helper_of_mymodel\n{start}\n"
        "assert 'PYTHONSAFEPATH' not in helper_of_mymodel.environ\n",
    )
    (terminal.folder / "checks" / "mymodel.py").write_text(source, encoding="utf-8")
    command = terminal.start_installed("checks/mymodel.py", *QUICK)
    ended = command.end()
    assert (ended.exit_code, ended.stderr) == (0, "")
    terminal.assert_clean(command)


# Two signals may be one by the time when Python looks.
CTRL_C = (
    signal.SIGINT,
    130,
    {
        "ddpcheck: interrupted\n",
        "ddpcheck: not checked: interrupted by SIGINT (Ctrl-C) while making runs, 0 of "
        "1 done\n",
    },
)
TERMINATION = (
    signal.SIGTERM,
    143,
    {
        "ddpcheck: not checked: terminated by SIGTERM while importing torch and the "
        "target\n"
    },
)


@pytest.mark.parametrize(
    ("when", "sent"),
    [
        ("importing torch", TERMINATION),
        ("in a rank", CTRL_C),
    ],
    ids=["importing-sigterm", "rank-ctrl-c"],
)
def test_signal_ends_everything(
    when: str, sent: tuple[signal.Signals, int, set[str]], terminal: Terminal
) -> None:
    number, code, says = sent
    mark = terminal.folder / "mark"
    source = target(
        loss="def loss(output, target):\n"
        "    if torch.distributed.is_initialized():\n"
        f"        open({str(mark)!r}, 'w').close()\n"
        "        import time\n"
        "        time.sleep(600)\n"
        "    return output.mean()\n"
    )
    # A machine that stalls must not end the ranks before the signal does.
    name = terminal.write(source)
    command = terminal.start(name, *QUICK, "--timeout-s", "600")
    _wait(command, mark, when)
    if when == "in a rank":
        _assert_all_listen_on_loopback(command)
    if number == signal.SIGINT:
        command.signal(number)
        command.signal(number)  # the impatient do it twice
    else:
        command.process.send_signal(number)
    ended = command.end()
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert ended.stderr in says
    terminal.assert_clean(command)


def test_second_ctrl_c_while_python_shuts_down_changes_no_exit_code() -> None:
    source = (
        "import atexit, signal, sys\n"
        "from ddpcheck.checking import exits\n"
        # A shell's background job ignores it, and so would what it starts.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "sys.exit(exits.guarded(lambda: signal.raise_signal(signal.SIGINT)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (130, "ddpcheck: interrupted\n")


def test_kill_leaves_nothing_and_no_half_report(terminal: Terminal) -> None:
    mark = terminal.folder / "mark"
    source = target(
        loss="def loss(output, target):\n"
        "    if torch.distributed.is_initialized():\n"
        f"        open({str(mark)!r}, 'w').close()\n"
        "        import subprocess\n"
        "        subprocess.run(['sleep', '600'])\n"
        "    return output.mean()\n"
    )
    command = terminal.start(terminal.write(source), *QUICK, "--json", "out.json")
    command.wait_for(mark.exists)
    command.process.kill()
    assert command.end() == Ended(exit_code=-9, stdout="", stderr="")
    terminal.assert_clean(command)
    names = {path.name for path in terminal.folder.iterdir()}
    assert names - {"__pycache__"} == {"mymodel.py", "mark", "tmp"}


def _wait(command: Command, mark: Path, when: str) -> None:
    if when == "importing torch":
        parent = psutil.Process(command.process.pid)
        command.wait_for(lambda: len(parent.children()) > 1)
    else:
        command.wait_for(mark.exists)


def _assert_all_listen_on_loopback(command: Command) -> None:
    seen = []
    for child in psutil.Process(command.process.pid).children(recursive=True):
        connections = getattr(child, "net_connections", child.connections)
        seen += [c for c in connections(kind="inet") if c.status == psutil.CONN_LISTEN]
    assert seen, "gloo's own sockets must be seen, or this test sees nothing"
    assert {c.laddr.ip for c in seen} <= {"127.0.0.1", "::1"}


def test_init_writes_a_target_that_passes(terminal: Terminal, pool: Pool) -> None:
    first = terminal.run("--init")
    assert (first.exit_code, first.stdout, first.stderr) == (
        0,
        "wrote mymodel.py; now run: ddpcheck mymodel.py\n",
        "",
    )
    again = terminal.run("--init")
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr == (
        "ddpcheck: cannot write a template to mymodel.py [init-path]\n"
        "  expected   a path where nothing is yet, in a folder that exists\n"
        "  found      a file or folder\n"
        "  fix        another path: ddpcheck --init other.py\n"
        "  more       ddpcheck --explain init-path\n"
    )
    path = terminal.folder / "mymodel.py"
    printed = terminal.run("--init", "-")
    assert (printed.exit_code, printed.stdout) == (0, path.read_text(encoding="utf-8"))
    report = checking.check(pool, TargetRef(path=str(path)), Options())
    assert [run.verdict for run in report.runs] == ["equivalent"] * 6


def test_template_passes_with_all_that_it_offers(tmp_path: Path, pool: Pool) -> None:
    before, offers, after = template.TEXT.partition("# def optimizer")
    path = tmp_path / "mymodel.py"
    code = "".join(
        line.removeprefix("# ").removeprefix("#")
        for line in (offers + after).splitlines(keepends=True)
    )
    path.write_text((before + code).format(name=path), encoding="utf-8")
    report = checking.check(pool, TargetRef(path=str(path)), Options())
    assert {(run.mode, run.world_size) for run in report.runs} == {
        *(("ddp", w) for w in (2, 4, 8)),
        ("sim", 16),
    }  # DataParallel has no step of one's own
    assert {run.verdict for run in report.runs} == {"equivalent"}


@pytest.mark.slow
def test_demo_shows_one_of_each_over_an_earlier_one(terminal: Terminal) -> None:
    folder = terminal.folder / "reports" / "demo"
    earlier = sample.divergent()
    target = replace(earlier.target, path="reports/demo/broken.py")
    text = reports.to_json(replace(earlier, target=target))
    files.write(folder / "broken" / "report.json", text)
    command = terminal.start("--demo")
    ended = command.end()
    assert (ended.exit_code, ended.stderr) == (0, "")
    verdicts = re.findall(r"^(DIVERGENT|EQUIVALENT): ", ended.stdout, re.MULTILINE)
    assert verdicts == ["DIVERGENT", "EQUIVALENT"]
    assert "+        dist.all_reduce(count)" in ended.stdout
    names = {path.name for path in folder.iterdir()}
    assert names - {"__pycache__"} == {"broken", "broken.py", "fixed.py"}
    assert (folder / "broken" / "report.html").exists()
    terminal.assert_clean(command)


def test_file_that_ran_is_reported_everywhere_and_its_code_is_shown(
    terminal: Terminal,
) -> None:
    name = terminal.write(BROKEN)
    files = ("--json", "out.json", "--junit-xml", "out.xml", "--sarif", "out.sarif")
    ended = terminal.run(name, *QUICK, *files, "--diff")
    diff, _, shown = ended.stdout.partition("\n\nddpcheck mymodel.py")
    assert diff.startswith("--- a/mymodel.py\n+++ b/mymodel.py\n")
    assert shown
    text = (terminal.folder / "out.json").read_text(encoding="utf-8")
    (finding,) = json.loads(text)["findings"]
    fix = finding["fix"]
    sentence = "with fixed.py in place of the file ddp at W=2 and 4 is equal"
    assert fix["intervention"] == sentence
    assert (fix["proof"], fix["verified"], fix["file"]) == ("file", True, "fixed.py")
    assert (
        "multiply the summed loss by the world size; from\n"
        "         fixed.py, which ran:\n"
        "           def loss(output, target):\n"
    ) in ended.stdout
    assert "  proof  verified: with fixed.py in place of the file" in ended.stdout
    assert "; fixed.py and reproduce.py next to\n" in ended.stdout
    file = terminal.folder / "reports" / "mymodel" / "fixed.py"
    assert fix["code"] in file.read_text(encoding="utf-8")
    assert terminal.run(str(file), *QUICK).exit_code == 0
    page = terminal.folder / "reports" / "mymodel" / "report.html"
    written = [terminal.folder / "out.xml", terminal.folder / "out.sarif", page]
    texts = [ended.stdout, *(path.read_text(encoding="utf-8") for path in written)]
    texts.append(terminal.run("--render", "out.json", "--format", "github").stdout)
    for each in texts[1:]:
        assert f"verified: {sentence} (excess " in each


def test_explain_and_render(terminal: Terminal) -> None:
    page = terminal.run("--explain", "target-no-loss")
    assert page.stdout.startswith("target-no-loss\n\nThe file defines no `loss`.\n")
    assert (page.exit_code, page.stderr) == (0, "")
    report = sample.divergent()
    path = terminal.folder / "report.json"
    path.write_text(reports.to_json(report), encoding="utf-8")
    html = terminal.run("--render", "report.json", "--format", "html")
    assert html.stdout.startswith("<!DOCTYPE html>") or "<html" in html.stdout[:200]
    assert (html.exit_code, html.stderr) == (0, "")


def test_reader_that_has_gone_changes_nothing(terminal: Terminal) -> None:
    command = terminal.start("--rules")
    assert command.process.stdout is not None
    command.process.stdout.close()
    command.process.stdout = None
    _, err = command.process.communicate(timeout=60)
    assert (command.process.returncode, err) == (0, "")


@pytest.mark.slow
def test_closed_streams_change_no_exit_code(terminal: Terminal) -> None:
    """`>&- 2>&- <&-`: files that are opened next would take their numbers."""
    name = terminal.write(target())
    line = f"{sys.executable} -m ddpcheck {name} {' '.join(QUICK)} >&- 2>&- <&-"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=terminal.folder,
        env=terminal.environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.slow
def test_file_that_cannot_be_written_is_no_success(terminal: Terminal) -> None:
    ended = terminal.run(terminal.write(target()), *QUICK, "--sarif", "/proc/a.sarif")
    assert ended.exit_code == 3
    assert ended.stdout.splitlines()[-1].startswith("EQUIVALENT: ")
    assert ended.stderr == (
        "ddpcheck: warning: cannot write /proc/a.sarif: No such file or directory\n"
        "ddpcheck: warning: the exit code is 3: what an option asks for could not be "
        "written\n"
    )


def test_divergence_stays_one_where_no_file_can_be_written(terminal: Terminal) -> None:
    """The verdict is known, and what is missing is said: no run is to be repeated."""
    loss = "loss = nn.CrossEntropyLoss(reduction='sum')\n"
    name = terminal.write(target(loss=loss))
    options = ("--report-dir=/proc/x", "--json=/proc/y.json", "--no-fix")
    ended = terminal.run(name, *QUICK, *options)
    assert ended.exit_code == 1
    shown = ended.stdout.splitlines()
    assert shown[-1].startswith("DIVERGENT: 1 of 1 run, ")
    assert "next to the report" not in ended.stdout
    assert "report: " not in ended.stdout
    assert ended.stderr.splitlines() == [
        f"ddpcheck: warning: cannot write /proc/{path}: No such file or directory"
        for path in (
            "x/mymodel/report.json",
            "x/mymodel/report.html",
            "x/mymodel/reproduce.py",
            "y.json",
        )
    ]


def test_importing_the_whole_tool_leaves_torch_out() -> None:
    program = (
        "import sys, ddpcheck.checking.checking, ddpcheck.cli.main\n"
        "import ddpcheck.cli.commands, ddpcheck.cli.demo\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


LOUD = """
import os, sys, torch
from torch import nn

def model():
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("a\\x1b[1m", nn.Linear(8, 1))
    return net

def batch():
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    return x, x.sum(1, keepdim=True)

def loss(output, target):
    if len(output) <= {size}:
        print("\\x1b[32m" + "y" * 50_000, file=sys.stderr)
        raise ValueError("\\x1b[31mrot\\x1b[0m " + "x" * 100_000)
    return nn.functional.mse_loss(output, target)
"""


@pytest.mark.parametrize(("size", "code"), [(32, 2), (16, 1)])
def test_loud_exception_is_cut_and_escaped_in_every_output(
    size: int, code: int, terminal: Terminal
) -> None:
    terminal.write(LOUD.replace("{size}", str(size)), "my\x1bmodel.py")
    summary = terminal.folder / "summary.md"
    terminal.environment["GITHUB_STEP_SUMMARY"] = str(summary)
    ended = terminal.run(
        *("my\x1bmodel.py", "--world-sizes", "2", "--modes", "ddp", "--github", "-v"),
        *("--json", "o.json", "--junit-xml", "o.xml", "--sarif", "o.sarif"),
    )
    assert ended.exit_code == code
    texts = [ended.stdout, ended.stderr]
    texts += [p.read_text("utf-8") for p in terminal.folder.iterdir() if p.is_file()]
    texts += [p.read_text("utf-8") for p in terminal.folder.rglob("reports/*/*")]
    # Two streams, the target, three files; then the summary and the folder's, too.
    assert len(texts) == (6 if code == 2 else 10)
    printed = ended.stderr if code == 2 else ended.stdout
    assert " ... and 99,719 characters more" in " ".join(printed.split())
    for text in texts:
        assert "\x1b" not in text
        assert "x" * 400 not in text
        assert "y" * 1100 not in text


def test_flat_script_is_not_executed(terminal: Terminal) -> None:
    name = terminal.write(FLAT, "flat_script.py")
    ended, _ = terminal.run_in_line(name)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr == (
        "ddpcheck: flat_script.py is a training script: it was not executed, because "
        "it defines no `batch` [target-script]\n"
        "  expected   model, batch and loss, or the script's step as train_step\n"
        "  found      calls at its top level: dist.init_process_group in line 10, "
        "out.mkdir in line 12, torch.randn in line 17 and 8 more\n"
        "  fix        ddpcheck run flat_script.py, with its arguments, checks it as it "
        "is\n"
        "  more       ddpcheck --explain target-script\n"
    )
    assert not (terminal.folder / "out").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("pkg.mod", "pkg/mod.py"),
        ("pkg.mod:Net", "pkg/mod.py"),
        ("pkg/mod", "pkg/mod.py"),
        ("pkg", "pkg/__main__.py"),
    ],
)
def test_name_of_a_module_is_answered_with_its_file(
    given: str, meant: str, terminal: Terminal
) -> None:
    (terminal.folder / "pkg").mkdir()
    for name in ("mod.py", "__main__.py"):
        (terminal.folder / "pkg" / name).touch()
    ended, _ = terminal.run_in_line(given)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert f"  fix        did you mean {meant}?\n" in ended.stderr
