"""Writes a report to terminal, files and GitHub; a failed write is a warning."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ddpcheck.errors.problem import cut, usage_error, visible
from ddpcheck.report import data as reports
from ddpcheck.report import files, streams
from ddpcheck.report.data import Report

STDOUT = "-"
MACHINE_FORMS = ("json", "junit", "sarif")
FIELDS = {"json": "json", "junit": "junit_xml", "sarif": "sarif"}  # of Outputs
FILES = ("report.html", "report.json", "reproduce.py", "fixed.py")
# In every fixed.py: one without it is the user's own, and is not replaced.
MARK = "Written by ddpcheck, and checked as it is"
# Text that a report of each kind contains, of any version, and hardly any other file.
_MARKS = {
    "--json": ('"exit_code":', '"findings":', '"format":'),
    "--junit-xml": ("<testsuite",),
    "--sarif": ('"runs":', '"version":'),
}
_NO_DIFF = "no diff: the fix is not known to be one change of the target's file\n"
_DEFAULT_WIDTH = 80
_LEAST_WIDTH = 40
_MOST_WIDTH = 1000  # of COLUMNS; no terminal has more


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What the user wants to see, and where. Paths as given, "" for none."""

    json: str = ""
    junit_xml: str = ""
    sarif: str = ""
    github: bool = False
    report_dir: str = "reports"
    diff: bool = False
    quiet: bool = False
    verbose: bool = False

    def alone(self) -> str:
        """Returns the form that has standard output to itself, "" for the terminal's.

        Raises:
            UsageError: option-usage, for more than one.
        """
        found = [
            form for form in MACHINE_FORMS if getattr(self, FIELDS[form]) == STDOUT
        ]
        if len(found) > 1:
            raise usage_error(
                slug="option-usage",
                message="two reports cannot share standard output",
                expected="- for one of --json, --junit-xml and --sarif",
                found=f"- for {cut(found)}",
                fix="give a path to the others",
            )
        return found[0] if found else ""


@contextlib.contextmanager
def _random_kept() -> Iterator[None]:
    """Keeps Python's random state: rich draws from it when imported and in use."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@_random_kept()
def show(report: Report, wanted: Outputs) -> bool:
    """Writes the report to every place that is wanted.

    The verdict is printed whatever happens to the files. Returns whether all files
    and standard output that options name were written.
    """
    folder = folder_of(report.target.path or report.target.name, wanted.report_dir)
    path = write_report(report, folder)
    written = _write_files(report, wanted)
    form_alone = wanted.alone()
    text = _rendered(report, form_alone) if form_alone else ""
    if not form_alone:
        text = _or_verdict(lambda: terminal(report, wanted, path), report)
    written.append((bool(text) and streams.write(text)) or not form_alone)
    if wanted.github:
        # Both streams are read for commands; what is for machines must stay so.
        marks = _rendered(report, "github")
        streams.write(marks, sys.stderr if form_alone else None)
        _write_summary(report)
    return all(written)


def update(report: Report, wanted: Outputs) -> bool:
    """Writes the files of a report that was shown; returns whether all were written."""
    folder = folder_of(report.target.path or report.target.name, wanted.report_dir)
    write_report(report, folder)
    return all(_write_files(report, wanted))


def show_machines(report: Report, wanted: Outputs) -> None:
    """Writes the machine-readable forms of the report only."""
    _write_files(report, wanted)
    if form_alone := wanted.alone():
        streams.write(_rendered(report, form_alone))


def _write_files(report: Report, wanted: Outputs) -> list[bool]:
    """Writes the files for machines; returns of each whether it was written."""
    places = {form: getattr(wanted, FIELDS[form]) for form in MACHINE_FORMS}
    return [
        bool(text := _rendered(report, form)) and files.write(Path(place), text)
        for form, place in places.items()
        if place and place != STDOUT
    ]


def folder_of(target: str, report_dir: str) -> Path:
    """Returns the folder that holds the files of a target: reports/mymodel.

    Where the report of a target of the same name lies there, the folder that the
    target is in makes the name unique: reports/mymodel-vision.
    """
    path = Path(target)
    plain = Path(report_dir) / (path.stem or "target")
    names = [f"-{part}" for part in reversed(path.absolute().parent.parts[1:])]
    for count in range(len(names) + 1):
        folder = plain.with_name(plain.name + "".join(names[:count]))
        earlier = _target_in(folder)
        # A report whose target does not exist any more may be replaced.
        if not earlier or _is_same(earlier, target) or not Path(earlier).exists():
            return folder
    return plain


def may_write(path: Path, option: str) -> bool:
    """Returns whether an option's file is new, empty, or a report of that kind.

    Only a readable file with other content is protected: no pipe, no folder.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError:
        return False
    except (OSError, ValueError):
        return True  # writing it reports the error
    return not text.strip() or all(mark in text for mark in _MARKS[option])


def _target_in(folder: Path) -> str:
    """Returns the path of the target of the report in this folder, "" for none."""
    try:
        text = (folder / "report.json").read_text(encoding="utf-8")
        return reports.from_json(text).target.path
    except (OSError, ValueError):
        return ""  # no report of ours: someone else's files stay


def _is_same(path: str, other: str) -> bool:
    try:
        return Path(path).resolve() == Path(other).resolve()
    except (OSError, ValueError):  # a name that this locale cannot write
        return path == other


def write_report(report: Report, folder: Path) -> str:
    """Writes the files of a divergence; returns the path of report.html or "".

    Also of a check that ended early: its terminal report is all there is otherwise.
    The files of an earlier divergence of the same target go when it is equivalent.
    """
    if report.verdict == "equivalent":
        _remove_stale(report, folder)
    if report.verdict != "divergent" and not (report.ended and report.runs):
        return ""
    texts = {
        "report.json": reports.to_json(report),
        "report.html": _rendered(report, "html"),
        "reproduce.py": report.reproduce,
        "fixed.py": report.fixed,
    }
    if not _may_replace(folder / "fixed.py") and texts.pop("fixed.py"):
        streams.warn(f"{folder / 'fixed.py'} is not ddpcheck's, so it stays")
    written = {
        name: files.write(folder / name, text) for name, text in texts.items() if text
    }
    for name, text in texts.items():
        if not text:
            files.remove(folder / name)  # of an earlier check
    return str(folder / "report.html") if written.get("report.html") else ""


def _may_replace(path: Path) -> bool:
    """Returns whether a fixed.py is none of the user's own files."""
    try:
        return MARK in path.read_text(encoding="utf-8") if path.exists() else True
    except (OSError, ValueError):
        return False


def _remove_stale(report: Report, folder: Path) -> None:
    earlier = _target_in(folder)
    if not earlier or not _is_same(earlier, report.target.path):
        return
    for name in FILES:
        if name != "fixed.py" or _may_replace(folder / name):
            files.remove(folder / name)
    with contextlib.suppress(OSError):
        folder.rmdir()  # if nothing else is in it


def _rendered(report: Report, form: str) -> str:
    """Returns the report in one form, "" where ddpcheck itself fails: it is warned of.

    The verdict is known: no form of it may be in the way of the others.
    """
    try:
        return render(report, form)
    except Exception as error:  # noqa: BLE001 (ours)
        _warn_of(error, f"no {form} report")
        return ""


def _or_verdict(text: Callable[[], str], report: Report) -> str:
    """Returns the text, or the verdict alone where ddpcheck itself fails."""
    try:
        return text()
    except Exception as error:  # noqa: BLE001 (ours)
        _warn_of(error, "no text of the report")
        from ddpcheck.report.render import wording  # noqa: PLC0415

        return f"{visible(wording.verdict_line(report))}\n"


def _warn_of(error: Exception, what: str) -> None:
    words = f"{type(error).__name__}: {error}".splitlines()[0]
    streams.warn(f"internal error of ddpcheck, please report it: {what}: {words}")


def render(report: Report, form: str, wanted: Outputs | None = None) -> str:
    """Returns the report in one form: terminal, json, sarif, html, junit or github.

    Raises:
        ValueError: there is no such form.
    """
    if form == "json":
        return reports.to_json(report)
    if form == "sarif":
        from ddpcheck.report.render import sarif  # noqa: PLC0415

        return sarif.to_sarif(report, pages=_pages(report))
    if form == "html":
        from ddpcheck.report.render import html  # noqa: PLC0415 (jinja2: only on demand)

        return html.to_html(report, pages=_pages(report))
    if form == "junit":
        from ddpcheck.report.render import junit  # noqa: PLC0415

        return junit.to_junit(report)
    if form == "github":
        from ddpcheck.report.render import github  # noqa: PLC0415

        return github.to_annotations(report)
    if form == "terminal":
        return terminal(report, wanted or Outputs(), "")
    raise ValueError(f"no form of a report: {form!r}")


def _pages(report: Report) -> Mapping[str, str]:
    from ddpcheck.report.pages import pages  # noqa: PLC0415

    return pages.rule_pages({finding.slug for finding in report.findings})


@_random_kept()
def terminal(report: Report, wanted: Outputs, path: str) -> str:
    """Returns what the terminal shows; `path` is that of report.html, or ""."""
    from ddpcheck.report.render import terminal as text  # noqa: PLC0415 (rich: on demand)

    diff = f"{visible(report.diff) or _NO_DIFF}\n" if wanted.diff else ""
    if report.verdict != "divergent":
        diff = ""
    if wanted.quiet:
        return f"{diff}{text.verdict_line(report)}\n"
    return diff + text.to_text(
        report,
        color=_is_colored(sys.stdout),
        width=_width(sys.stdout),
        verbose=wanted.verbose,
        report_path=path,
    )


def _is_colored(stream: TextIO) -> bool:
    # no-color.org and force-color.org: any value that is not empty.
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _width(stream: TextIO) -> int:
    """Returns the width of a terminal; for other streams COLUMNS, if it is plausible.

    On a terminal COLUMNS is asked first, as every program does.
    """
    if stream.isatty():
        return max(_LEAST_WIDTH, shutil.get_terminal_size().columns)
    columns = os.environ.get("COLUMNS", "")
    is_width = columns.isdecimal() and _LEAST_WIDTH <= int(columns) <= _MOST_WIDTH
    return int(columns) if is_width else _DEFAULT_WIDTH


def _write_summary(report: Report) -> None:
    """Appends to the job summary; steps of a job share one file."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    from ddpcheck.report.render import github  # noqa: PLC0415

    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(github.to_summary(report))
    except OSError as error:
        streams.warn(f"cannot write {path}: {files.reason(error)}")


@contextlib.contextmanager
def importing_ahead(wanted: Outputs) -> Iterator[None]:
    """Imports renderers in a thread, while another process is importing torch."""
    names = ["ddpcheck.report.render.html"]
    if not wanted.alone():
        names.insert(0, "ddpcheck.report.render.terminal")
    with _random_kept():
        thread = threading.Thread(target=_import, args=(names,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def _import(names: list[str]) -> None:
    import importlib  # noqa: PLC0415

    for name in names:
        with contextlib.suppress(Exception):  # reported by the import that needs it
            importlib.import_module(name)
