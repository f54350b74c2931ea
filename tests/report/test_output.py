"""Report files: whole or not at all, and what happens where they cannot be written."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ddpcheck.report import files, output
from ddpcheck.report.data import Report
from ddpcheck.report.output import Outputs
from ddpcheck.report.render import html, sarif, terminal
from tests.report.render import sample


def _divergent(path: str = "mymodel.py", reproduce: str = "import torch\n") -> Report:
    report = sample.divergent()
    target = dataclasses.replace(report.target, name="mymodel.py", path=path)
    return dataclasses.replace(report, target=target, reproduce=reproduce)


def _equivalent(path: str = "mymodel.py") -> Report:
    report = sample.equivalent()
    target = dataclasses.replace(report.target, name="mymodel.py", path=path)
    return dataclasses.replace(report, target=target)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_divergence_leaves_four_files(tmp_path: Path) -> None:
    report = dataclasses.replace(_divergent(), fixed=f"# {output.MARK}\n")
    path = output.write_report(report, tmp_path / "a" / "mymodel")
    assert path == str(tmp_path / "a/mymodel/report.html")
    assert _names(tmp_path / "a/mymodel") == sorted(output.FILES)


def test_no_reproduction_leaves_none_of_an_earlier_run(tmp_path: Path) -> None:
    output.write_report(_divergent(), tmp_path)
    output.write_report(_divergent(reproduce=""), tmp_path)
    assert _names(tmp_path) == ["report.html", "report.json"]


def test_equivalence_removes_the_files_of_the_same_target_only(tmp_path: Path) -> None:
    folder = tmp_path / "mymodel"
    output.write_report(_divergent("b/mymodel.py"), folder)
    assert output.write_report(_equivalent("mymodel.py"), folder) == ""
    assert len(_names(folder)) == 3
    (folder / "notes.txt").touch()
    output.write_report(_equivalent("b/mymodel.py"), folder)
    assert _names(folder) == ["notes.txt"]


def test_targets_of_one_name_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second report takes the first one's place, and a clean check both."""
    monkeypatch.chdir(tmp_path)
    for name in ("vision", "audio", "a/audio"):
        Path(name).mkdir(parents=True)
        Path(name, "mymodel.py").touch()
    tmp_path = tmp_path / "reports"
    output.show(_divergent("vision/mymodel.py"), Outputs(report_dir=str(tmp_path)))
    output.show(_divergent("audio/mymodel.py"), Outputs(report_dir=str(tmp_path)))
    assert _names(tmp_path) == ["mymodel", "mymodel-audio"]
    output.show(_equivalent("audio/mymodel.py"), Outputs(report_dir=str(tmp_path)))
    assert _names(tmp_path) == ["mymodel"]
    again = output.folder_of("vision/mymodel.py", str(tmp_path))
    assert again == tmp_path / "mymodel"
    output.show(_divergent("audio/mymodel.py"), Outputs(report_dir=str(tmp_path)))
    third = output.folder_of("a/audio/mymodel.py", str(tmp_path))
    assert third == tmp_path / "mymodel-audio-a"
    Path("vision/mymodel.py").unlink()  # its report is nobody's then
    assert output.folder_of("a/audio/mymodel.py", str(tmp_path)) == again


def test_show_returns_whether_all_that_was_asked_for_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    good, bad = str(tmp_path / "out.json"), str(tmp_path / "file" / "out.json")
    assert output.show(_equivalent(), Outputs(json=good, junit_xml=good, quiet=True))
    assert not output.show(_equivalent(), Outputs(json=good, sarif=bad, quiet=True))


def test_files_of_others_stay(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"mine": 1}', encoding="utf-8")
    output.write_report(_equivalent(), tmp_path)
    assert _names(tmp_path) == ["report.json"]


def test_folder_that_cannot_be_made_is_a_warning_and_the_verdict_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reports").write_text("in the way", encoding="utf-8")
    wanted = Outputs(report_dir=str(tmp_path / "reports"), quiet=True)
    output.show(_divergent(), wanted)
    printed = capsys.readouterr()
    assert printed.out.startswith("DIVERGENT: ")
    assert printed.err.splitlines() == [
        f"ddpcheck: warning: cannot write {tmp_path}/reports/mymodel/{name}: "
        "Not a directory"
        for name in ("report.json", "report.html", "reproduce.py")
    ]


def _ran(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a program in a Python of its own, in this folder."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_form_that_cannot_be_made_is_a_warning_and_the_verdict_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise KeyError("ours")

    for module, name in ((html, "to_html"), (sarif, "to_sarif"), (terminal, "to_text")):
        monkeypatch.setattr(module, name, fail)
    wanted = Outputs(
        report_dir=str(tmp_path / "reports"),
        sarif=str(tmp_path / "a.sarif"),
        json=str(tmp_path / "a.json"),
    )
    assert not output.show(_divergent(), wanted)
    printed = capsys.readouterr()
    assert printed.out.startswith("DIVERGENT: ")
    assert printed.err.splitlines() == [
        f"ddpcheck: warning: internal error of ddpcheck, please report it: {what}: "
        "KeyError: 'ours'"
        for what in ("no html report", "no sarif report", "no text of the report")
    ]
    assert _names(tmp_path) == ["a.json", "reports"]


def test_full_disk_leaves_no_half_file(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    # /dev takes the part file on most systems, and is never a place for reports.
    assert not files.write(Path("/proc/report.json"), "text")
    assert capsys.readouterr().err.startswith(
        "ddpcheck: warning: cannot write /proc/report.json: "
    )


def test_disk_that_fills_leaves_no_half_file_and_the_verdict(tmp_path: Path) -> None:
    # A limit of the process stands for the disk: what is written beyond it fails.
    program = (
        "import resource\n"
        "from ddpcheck.report import output\n"
        "from tests.report.render import sample\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "wanted = output.Outputs(report_dir='reports', json='out.json', quiet=True)\n"
        "output.show(sample.divergent(), wanted)\n"
    )
    done = _ran(program, tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("DIVERGENT: ")
    assert done.stderr.splitlines() == [
        f"ddpcheck: warning: cannot write {path}: File too large"
        for path in (
            "reports/mymodel/report.json",
            "reports/mymodel/report.html",
            "out.json",
        )
    ]
    assert not list(tmp_path.iterdir())  # no folder that was made for a file, either


def test_folders_that_were_there_stay_where_a_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    name = "n" * 300  # longer than a name may be
    assert not files.write(tmp_path / "there" / "new" / "newer" / name, "text")
    assert _names(tmp_path) == ["there"]
    assert not _names(tmp_path / "there")
    assert "File name too long" in capsys.readouterr().err


def test_folder_with_another_file_stays_where_one_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert files.write(tmp_path / "new" / "a", "text")
    assert not files.write(tmp_path / "new" / ("n" * 300), "text")
    assert _names(tmp_path / "new") == ["a"]
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "is_colored"),
    [
        ({}, False),
        ({"FORCE_COLOR": ""}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, True),  # any value that is not empty
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
    ],
    ids=str,
)
def test_force_color_colours_what_is_no_terminal_and_no_color_wins(
    variables: dict[str, str],
    *,
    is_colored: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    output.show(_divergent(), Outputs(report_dir=str(tmp_path)))
    assert ("\x1b[" in capsys.readouterr().out) is is_colored


def test_folder_that_takes_no_files_is_a_warning_and_the_verdict_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Read-only for every user, where a mode would not stop root.
    output.show(_divergent(), Outputs(report_dir="/proc/self", quiet=True))
    printed = capsys.readouterr()
    assert printed.out.startswith("DIVERGENT: ")
    assert len(printed.err.splitlines()) == 3
    assert printed.err.startswith(
        "ddpcheck: warning: cannot write /proc/self/mymodel/report.json: "
    )


def test_kill_before_the_file_is_whole_leaves_nothing(tmp_path: Path) -> None:
    if not hasattr(os, "O_TMPFILE"):
        pytest.skip("needs files without a name")
    program = (
        "import os, signal\n"
        "from pathlib import Path\n"
        "from ddpcheck.report import files\n"
        "os.link = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write(Path('report.json'), 'text' * 100_000)\n"
    )
    done = _ran(program, tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert _names(tmp_path) == []


@pytest.mark.parametrize("missing", ["open", "link"])
def test_file_system_without_unnamed_files_gets_the_same_file(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    assert files.write(path, "first \ud800")
    called = []

    def refused(*_: object, **__: object) -> int:
        called.append(missing)
        raise OSError(errno.EOPNOTSUPP, "not here")

    with monkeypatch.context() as patch:
        patch.setattr(os, missing, refused)
        written = files._write_unnamed(path.with_name("part"), b"")  # noqa: SLF001
    assert (written, called) == (False, [missing])
    before = path.read_bytes(), path.stat().st_mode
    monkeypatch.setattr(files, "_write_unnamed", lambda *_: False)
    assert files.write(path, "first \ud800")
    assert (path.read_bytes(), path.stat().st_mode) == before
    assert (before[0], _names(tmp_path)) == (b"first \\ud800", ["report.json"])


def test_failing_rename_removes_the_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").mkdir()
    assert not files.write(tmp_path / "report.json", "text")
    assert _names(tmp_path) == ["report.json"]
    assert "Is a directory" in capsys.readouterr().err


def test_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "report.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert files.write(pipe, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert _names(tmp_path) == ["report.json"]


def test_device_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "report.json"
    full.symlink_to("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    assert not files.write(full, "text")
    assert capsys.readouterr().err == (
        f"ddpcheck: warning: cannot write {full}: No space left on device\n"
    )
    assert Path("/dev/full").is_char_device()
    assert full.is_symlink()


def test_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("folder/report.json")
    (tmp_path / "folder").mkdir()
    for text in ("first", "second"):
        assert files.write(tmp_path / "link.json", text)
        assert (tmp_path / "folder/report.json").read_text(encoding="utf-8") == text
    assert (tmp_path / "link.json").is_symlink()
    assert _names(tmp_path / "folder") == ["report.json"]


def test_permissions_of_an_earlier_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("first", encoding="utf-8")
    path.chmod(0o600)
    assert files.write(path, "second")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text(encoding="utf-8") == "second"


def test_name_that_cannot_be_resolved_is_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: object, **__: object) -> Path:
        raise UnicodeEncodeError("ascii", "\xfc", 0, 1, "not in this locale")

    monkeypatch.setattr(Path, "resolve", refused)
    assert output._is_same("m\xfc.py", "m\xfc.py")  # noqa: SLF001
    assert not output._is_same("m\xfc.py", "other.py")  # noqa: SLF001


def test_json_and_annotations_do_not_mix(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    wanted = Outputs(json="-", github=True, report_dir=str(tmp_path))
    output.show(_divergent(), wanted)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "divergent"
    assert printed.err.startswith("::error ")
    summary = (tmp_path / "summary").read_text(encoding="utf-8")
    assert summary.startswith("## ddpcheck: ")


@pytest.mark.parametrize(
    ("columns", "width"),
    [("", 80), ("120", 120), ("40", 40), ("39", 80), ("0", 80), ("-9", 80), ("x", 80)],
)
@pytest.mark.usefixtures("capsys")  # standard output is no terminal
def test_text_that_is_piped_is_as_wide_as_columns(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    expected = terminal.to_text(_divergent(), color=False, width=width)
    assert output.terminal(_divergent(), Outputs(), "") == expected


def test_form_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no form of a report: 'markdown'"):
        output.render(_equivalent(), "markdown")
