"""Arguments: the help, and the errors for wrong ones."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ddpcheck.checking import exits
from ddpcheck.cli import arguments
from ddpcheck.cli import main as cli
from ddpcheck.report.data import EXIT_CODES
from ddpcheck.run.session.session import CannotCheckError


def test_help_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (cli.HELP, "")
    assert max(map(len, cli.HELP.splitlines())) <= 80
    assert cli.HELP.isascii()


def test_help_names_every_option_and_no_other() -> None:
    options = set(arguments.parser()._option_string_actions)  # noqa: SLF001 (no public list of options)
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", cli.HELP))
    assert named == options | {"-m"}  # with which a script begins: see run_command


def test_help_has_the_exit_codes() -> None:
    codes = dict(re.findall(r"^  (\d)  ([a-z ]+?):", cli.HELP, re.MULTILINE))
    assert codes == {
        "0": "equivalent",
        "1": "divergent",
        "2": "usage error",
        "3": "could not check",
    }
    assert [EXIT_CODES[name] for name in ("equivalent", "divergent")] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "first", "fix"),
    [
        ([], "no TARGET was given", "ddpcheck --help"),
        (
            ["x.py", "--world-size", "2"],
            "unknown option --world-size",
            "--world-sizes?",
        ),
        (["x.py", "--zzz"], "unknown option --zzz", "ddpcheck --help"),
        (["x.py", "--steps"], "--steps: expected one argument", "ddpcheck --help"),
        (["x.py", "-q", "-v"], "not allowed with argument", "ddpcheck --help"),
        (["x.py", "--demo"], "x.py was given together with another command", "--help"),
        (["x.py", "--format", "html"], "an option of --render only", "--help"),
        (["--demo", "--rules"], "not allowed with argument", "ddpcheck --help"),
        (["--explain"], "--explain: expected one argument", "ddpcheck --help"),
        (
            ["--render", "r.json", "--format", "pdf"],
            "--format: invalid choice",
            "--help",
        ),
    ],
)
def test_wrong_arguments_exit_2(
    arguments: list[str], first: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[0].startswith("ddpcheck: ")
    assert first in lines[0]
    assert lines[0].endswith(" [option-usage]")
    assert lines[1] == "  expected   ddpcheck TARGET [options]"
    assert fix in lines[2]
    assert len(lines) == 4


def test_render_of_no_report_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    path.write_text('{"format": 2}', encoding="utf-8")
    assert cli.main(["--render", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"ddpcheck: {path} is not a ddpcheck report [render-file]\n"
        "  expected   report.json, or a file that --json wrote\n"
        "  found      expected a report of format 1, found 2\n"
        "  fix        ddpcheck TARGET --json report.json\n"
        "  more       ddpcheck --explain render-file\n"
    )


def test_model_named_twice_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([f"{tmp_path}/x.py:Net", "--model-fn", "Other"]) == 2
    assert "the model is named twice" in capsys.readouterr().err


def test_missing_file_exits_2_and_keeps_the_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["no/such.py:Net"]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "ddpcheck: no/such.py is no file [target-missing-file]"


def _raise(error: BaseException) -> int:
    raise error


def test_internal_error_leaves_a_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exits.guarded(lambda: _raise(ZeroDivisionError("in a rule"))) == 3
    path = tmp_path / "ddpcheck-traceback.txt"
    assert capsys.readouterr().err == (
        "ddpcheck: not checked: internal error of ddpcheck: ZeroDivisionError: "
        "in a rule\n"
        "  this is a bug of ddpcheck, not of the target\n"
        f"  please report it, with {path}\n"
    )
    assert "in _raise" in path.read_text(encoding="utf-8")


def test_internal_error_shows_its_traceback_when_verbose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert exits.guarded(lambda: _raise(KeyError("x")), verbose=True) == 3
    assert "in _raise" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_failure_of_our_own_imports_is_reported_and_is_no_divergence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(
        sys.modules, "ddpcheck.run.session.session", None
    )  # as if it were broken
    assert exits.guarded(lambda: _raise(AttributeError("no seed"))) == 3
    line = capsys.readouterr().err.splitlines()[0]
    assert line == (
        "ddpcheck: not checked: internal error of ddpcheck: AttributeError: no seed"
    )


def test_github_gets_the_first_line_of_what_was_not_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = CannotCheckError("one process was killed by SIGSEGV", "last words\n")
    assert exits.guarded(lambda: _raise(error), github=True) == 3
    printed = capsys.readouterr()
    assert printed.err == (
        "ddpcheck: not checked: one process was killed by SIGSEGV\n"
        "  last output:\n"
        "    last words\n"
    )
    assert printed.out == (
        "::error title=ddpcheck::not checked: one process was killed by SIGSEGV\n"
    )


def test_traceback_is_called_one() -> None:
    detail = "Traceback (most recent call last):\nValueError: a\n"
    assert exits.cannot_check_text("why", detail) == (
        "ddpcheck: not checked: why\n"
        "  traceback:\n"
        "    Traceback (most recent call last):\n"
        "    ValueError: a\n"
    )


def test_long_output_is_cut_at_its_beginning() -> None:
    detail = "\n".join(f"line {n}" for n in range(30))
    text = exits.cannot_check_text("why", detail)
    assert text.splitlines()[1] == "  last output (12 of 30 lines, all with -v):"
    assert text.splitlines()[-1] == "    line 29"
    assert len(exits.cannot_check_text("why", detail, verbose=True).splitlines()) == 32


def test_working_directory_that_is_gone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["mymodel.py"]) == 2
    printed = capsys.readouterr()
    assert printed.err == (
        "ddpcheck: the working directory cannot be read [environment-no-folder]\n"
        "  expected   a directory that exists\n"
        "  found      No such file or directory\n"
        "  fix        change to another directory, or enter this one again: cd .\n"
        "  more       ddpcheck --explain environment-no-folder\n"
    )
    assert cli.main(["--explain", "environment-no-folder"]) == 0  # needs none


def test_acceptance_of_an_unknown_slug_ends_with_2_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mymodel.py"
    target.write_text("raise SystemExit(5)", encoding="utf-8")
    assert cli.main([str(target), "--accept", "loss/sum-reductoin=x"]) == 2
    assert capsys.readouterr().err == (
        "ddpcheck: --accept names no known cause: 'loss/sum-reductoin' [option-value]\n"
        "  expected   slugs of --rules (family/name), each with or without a reason\n"
        "  found      ['loss/sum-reductoin=x']\n"
        "  fix        did you mean loss/sum-reduction?\n"
        "  more       ddpcheck --explain option-value\n"
    )
