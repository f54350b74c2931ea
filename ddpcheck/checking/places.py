"""Checks the paths of reports before the long work begins.

Errors that occur only on writing (a full disk, permissions) are reported after the
check, so that its verdict is not lost.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddpcheck.checking import baseline as baselines
from ddpcheck.errors.problem import UsageError, usage_error
from ddpcheck.report import output
from ddpcheck.report.output import Outputs

_SUFFIXES = {"--json": ".json", "--junit-xml": ".xml", "--sarif": ".sarif"}


def check_working_folder() -> None:
    """Refuses to start where the working directory has been deleted.

    Paths are relative to it, and ranks import what lies there.

    Raises:
        UsageError: environment-no-folder.
    """
    try:
        os.getcwd()  # noqa: PTH109 (a Path would be resolved)
    except OSError as error:
        raise usage_error(
            slug="environment-no-folder",
            message="the working directory cannot be read",
            expected="a directory that exists",
            found=error.strerror or type(error).__name__,
            fix="change to another directory, or enter this one again: cd .",
        ) from None


def check(
    target: Path, wanted: Outputs, *, baseline: str = "", has_folder: bool = False
) -> None:
    """Refuses paths where a report cannot, or must not, be written.

    Args:
        target: the file that is checked.
        wanted: the places.
        baseline: path of an earlier report, "" for none.
        has_folder: whether the user named `report_dir`. The one by default may be
            impossible: nobody asked for it.

    Raises:
        UsageError: target-overwritten, baseline-overwritten, output-path,
            output-not-ours.
    """
    files = {
        "--json": wanted.json,
        "--junit-xml": wanted.junit_xml,
        "--sarif": wanted.sarif,
    }
    files = {o: path for o, path in files.items() if path not in ("", output.STDOUT)}
    folder = output.folder_of(str(target), wanted.report_dir)
    written = {**files, "--report-dir": str(folder / "report.json")}
    if option := _writer_of(target, written):
        raise _overwritten(target, option, written[option])
    _check_distinct(target, files)
    if baseline and (option := _writer_of(Path(baseline), written)):
        raise baselines.overwritten(baseline, option)
    for option, path in files.items():
        _check_file(target, option, Path(path))
    if has_folder:
        check_folder(folder, f"ddpcheck {target}")


def check_folder(folder: Path, command: str) -> None:
    """Refuses a folder of reports that is a file, or would lie in one.

    Raises:
        UsageError: output-path.
    """
    if file := _file_in_the_way(folder):
        raise _impossible(
            f"--report-dir cannot make the folder {folder}",
            "the path of a folder",
            f"{file} is a file",
            f"{command} --report-dir ddpcheck-reports",
        )


def _check_distinct(target: Path, files: dict[str, str]) -> None:
    """Refuses one file for two reports: the later would write over the other."""
    options: dict[Path, str] = {}
    for option, path in files.items():
        other = options.setdefault(Path(path).resolve(), option)
        if other != option and not _is_device(Path(path)):
            raise _impossible(
                f"{other} and {option} would write the same file",
                "a separate file for every report",
                f"{path} for both",
                f"ddpcheck {target} {option} report{_SUFFIXES[option]}",
            )


def _is_device(path: Path) -> bool:
    """Returns whether the path is a device or a pipe, such as /dev/null."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _check_file(target: Path, option: str, path: Path) -> None:
    message = f"{option} cannot write the file {path}"
    expected = "the path of a file, in a folder"
    command = f"ddpcheck {target} {option}"
    if _is_folder(path):
        fix = f"{command} {path / 'report'}{_SUFFIXES[option]}"
        raise _impossible(message, expected, "a folder", fix)
    if file := _file_in_the_way(path.parent):
        fix = f"{command} report{_SUFFIXES[option]}"
        raise _impossible(message, expected, f"{file} is a file", fix)
    if not output.may_write(path, option):
        raise _not_ours(target, option, str(path))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # writing it reports the error


def _file_in_the_way(folder: Path) -> Path | None:
    """Returns the file that is where a folder, or one above it, would have to be."""
    try:
        there = next((p for p in (folder, *folder.parents) if p.exists()), None)
    except OSError:
        return None  # writing there reports the error
    return there if there and not _is_folder(there) else None


def _writer_of(path: Path, written: dict[str, str]) -> str:
    """Returns the option that writes this file, "" if none does."""
    same = (o for o, p in written.items() if Path(p).resolve() == path.resolve())
    return next(same, "")


def _impossible(message: str, expected: str, found: str, fix: str) -> UsageError:
    return usage_error(
        slug="output-path", message=message, expected=expected, found=found, fix=fix
    )


def _overwritten(target: Path, option: str, path: str) -> UsageError:
    return usage_error(
        slug="target-overwritten",
        message=f"{option} would write over the target",
        expected="a separate file for every report",
        found=f"{path} for both",
        fix=f"ddpcheck {target} {option} report{_SUFFIXES.get(option, '')}",
    )


def _not_ours(target: Path, option: str, path: str) -> UsageError:
    return usage_error(
        slug="output-not-ours",
        message=f"{option} would write over {path}",
        expected="a new file, or one that this option wrote",
        found="a file that is not such a report",
        fix=f"ddpcheck {target} {option} report{_SUFFIXES[option]}",
    )
