"""Places of reports that are refused before the check, and those that are not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpcheck.checking import places
from ddpcheck.cli import arguments
from ddpcheck.cli import main as cli
from ddpcheck.report import files, output
from tests.report.render import sample


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--json", "report.json"),
        ("--junit-xml", "report.xml"),
        ("--sarif", "report.sarif"),
    ],
)
def test_report_is_not_written_over_the_target(
    option: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mymodel.py"
    target.write_text("model = 1\n", encoding="utf-8")
    assert cli.main([str(target), option, str(target)]) == 2
    assert capsys.readouterr().err == (
        f"ddpcheck: {option} would write over the target [target-overwritten]\n"
        "  expected   a separate file for every report\n"
        f"  found      {target} for both\n"
        f"  fix        ddpcheck {target} {option} {name}\n"
        "  more       ddpcheck --explain target-overwritten\n"
    )
    assert target.read_text(encoding="utf-8") == "model = 1\n"


def test_two_reports_are_not_written_to_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, same = tmp_path / "mymodel.py", tmp_path / "a" / ".." / "out"
    target.touch()
    given = ["--json", str(tmp_path / "out"), "--sarif", str(same)]
    assert cli.main([str(target), *given]) == 2
    assert capsys.readouterr().err == (
        "ddpcheck: --json and --sarif would write the same file [output-path]\n"
        "  expected   a separate file for every report\n"
        f"  found      {same} for both\n"
        f"  fix        ddpcheck {target} --sarif report.sarif\n"
        "  more       ddpcheck --explain output-path\n"
    )


def test_two_reports_may_both_go_to_nowhere(tmp_path: Path) -> None:
    wanted = output.Outputs(json=os.devnull, sarif=os.devnull)
    places.check(tmp_path / "mymodel.py", wanted)


@pytest.mark.parametrize("option", ["--json", "--junit-xml", "--sarif"])
@pytest.mark.parametrize("text", ["import torch\n", '{"a": 1}', "\udcff"])
def test_report_is_not_written_over_what_is_no_report(
    option: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, path = tmp_path / "mymodel.py", tmp_path / "other.py"
    target.touch()
    data = text.encode("utf-8", "surrogateescape")
    path.write_bytes(data)
    assert cli.main([str(target), option, str(path)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(
        f"ddpcheck: {option} would write over {path} [output-not-ours]\n"
    )
    assert f"  fix        ddpcheck {target} {option} report." in printed
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("option", "form"),
    [("--json", "json"), ("--junit-xml", "junit"), ("--sarif", "sarif")],
)
def test_report_is_written_over_its_like_and_over_nothing(
    option: str, form: str, tmp_path: Path
) -> None:
    path = tmp_path / "report"
    assert output.may_write(path, option)
    path.touch()
    assert output.may_write(path, option)
    assert output.may_write(Path(os.devnull), option)
    for made in sample.ALL.values():
        assert files.write(path, output.render(made, form))
        assert output.may_write(path, option)


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Returns the error for arguments given with a target, before it is read."""
    monkeypatch.chdir(tmp_path)
    Path("adir").mkdir()
    for name in ("mymodel.py", "afile"):
        Path(name).write_text("raise SystemExit(3)\n", encoding="utf-8")

    def refused(*given: str) -> str:
        assert cli.main([*given]) == 2
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {"adir", "afile", "mymodel.py"}
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--json", "report.json"),
        ("--junit-xml", "report.xml"),
        ("--sarif", "report.sarif"),
    ],
)
def test_folder_and_path_below_a_file_are_no_place_for_a_report(
    option: str, name: str, refused: Callable[..., str]
) -> None:
    assert refused("mymodel.py", option, "adir") == (
        f"ddpcheck: {option} cannot write the file adir [output-path]\n"
        "  expected   the path of a file, in a folder\n"
        "  found      a folder\n"
        f"  fix        ddpcheck mymodel.py {option} adir/{name}\n"
        "  more       ddpcheck --explain output-path\n"
    )
    assert refused("mymodel.py", option, "afile/b/c") == (
        f"ddpcheck: {option} cannot write the file afile/b/c [output-path]\n"
        "  expected   the path of a file, in a folder\n"
        "  found      afile is a file\n"
        f"  fix        ddpcheck mymodel.py {option} {name}\n"
        "  more       ddpcheck --explain output-path\n"
    )


@pytest.mark.parametrize("path", ["afile", "afile/b", "mymodel.py"])
def test_file_is_no_folder_of_reports(path: str, refused: Callable[..., str]) -> None:
    file = path.partition("/")[0]
    for command, name in (("mymodel.py", "mymodel"), ("--demo", "demo")):
        assert refused(command, "--report-dir", path) == (
            f"ddpcheck: --report-dir cannot make the folder {path}/{name} "
            "[output-path]\n"
            "  expected   the path of a folder\n"
            f"  found      {file} is a file\n"
            f"  fix        ddpcheck {command} --report-dir ddpcheck-reports\n"
            "  more       ddpcheck --explain output-path\n"
        )


def test_file_in_place_of_the_folder_of_a_target_is_refused_if_it_was_named(
    refused: Callable[..., str],
) -> None:
    Path("adir/mymodel").touch()
    printed = refused("mymodel.py", "--report-dir", "adir")
    assert "  found      adir/mymodel is a file\n" in printed
    wanted = output.Outputs(report_dir="adir")
    places.check(Path("mymodel.py"), wanted)  # nobody asked for that of the default


@pytest.mark.parametrize(
    "path", ["new.json", "adir/new/deep.json", os.devnull, "/proc/a.json", "a" * 300]
)
def test_what_only_writing_can_tell_is_not_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = output.Outputs(json=path, report_dir=path)
    places.check(Path("mymodel.py"), wanted, has_folder=path != os.devnull)


def test_standard_output_is_no_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(output.STDOUT).write_text("notes", encoding="utf-8")
    places.check(Path("mymodel.py"), output.Outputs(json=output.STDOUT))


def test_no_option_with_a_path_writes_over_the_target(tmp_path: Path) -> None:
    target = tmp_path / "mymodel.py"
    target.write_text("model = 1\n", encoding="utf-8")
    for name in {*arguments.PATHS} - {"baseline"}:  # which is read
        assert cli.main([str(target), f"--{name}", str(target)]) == 2, name
        assert target.read_text(encoding="utf-8") == "model = 1\n"
