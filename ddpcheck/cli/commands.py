"""The commands of the command line: one function each, which returns the exit code."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpcheck.checking import baseline as baselines
from ddpcheck.checking import places
from ddpcheck.errors.problem import SignalError, UsageError, usage_error
from ddpcheck.report import output, streams
from ddpcheck.report.data import EXIT_NOT_CHECKED, EXIT_SIGNAL, EXIT_USAGE, Report
from ddpcheck.report.output import Outputs
from ddpcheck.report.progress import Progress
from ddpcheck.target import settings
from ddpcheck.target.options import DEFINITIONS, SETTINGS

if TYPE_CHECKING:
    from ddpcheck.cli.nodes import Member
    from ddpcheck.target.options import Options
    from ddpcheck.target.target import TargetRef

RENDER_FORMATS = ("terminal", "html", "junit", "github", "sarif")


def check(
    target: str,
    names: Mapping[str, str],
    given: Mapping[str, Any],
    wanted: Outputs,
    *,
    command: str,
    baseline: str = "",
    member: Member | None = None,
) -> int:
    """Checks one target file and writes its report everywhere it is wanted.

    Args:
        target: path, or path:NAME where NAME is the model.
        names: what the file calls the contract's names: {"loss": "criterion"}.
        given: settings from the command line, as text, by the names of `Options`.
        wanted: where the report goes.
        command: the command line, for the report's provenance.
        baseline: path of an earlier report, whose findings do not fail; "" for none.
        member: this process's part in a group that a launcher started.

    Raises:
        UsageError: the target or a setting is wrong.
        CannotCheckError: the target cannot be run at all.
    """
    # --help needs none of it.
    from ddpcheck.checking import checking  # noqa: PLC0415
    from ddpcheck.run.modes.registry import CHOICES  # noqa: PLC0415
    from ddpcheck.target import importing  # noqa: PLC0415
    from ddpcheck.target import target as targets  # noqa: PLC0415

    path, names = _split(target, names)
    importing.check_file(path)
    project = settings.from_project(path, modes=CHOICES)
    options = settings.make(given, project, modes=CHOICES)
    folder = wanted.report_dir or project.get("report_dir", "")
    wanted = dataclasses.replace(wanted, report_dir=folder or "reports")
    wanted.alone()
    # Absolute: the file may change the working directory while it is imported.
    absolute = os.path.abspath(path)  # noqa: PTH100 (resolve() would follow links)
    ref = targets.TargetRef(path=absolute, names=tuple(sorted(names.items())))
    check_file: Any = checking.check_file
    if member is not None:
        from ddpcheck.cli import nodes  # noqa: PLC0415 (only where there is a group)

        options = nodes.for_group(options, member)
        if not isinstance(member, nodes.Leader):
            return member.follow(ref, options)  # rank 0 does the rest
        check_file = member.check_file
    places.check(path, wanted, baseline=baseline, has_folder=bool(folder))
    known = baselines.load(baseline) if baseline else None
    called = Called(path, command, known, baseline)
    return checked(check_file, ref, options, wanted, called)


@dataclass(frozen=True, slots=True)
class Called:
    """The parts of the command line that a report records."""

    path: Path
    command: str
    known: Report | None
    baseline: str

    def named(self, report: Report) -> Report:
        """Returns the report with the target's path as it was given, and the command.

        The check itself has neither.
        """
        target = dataclasses.replace(report.target, path=str(self.path))
        return dataclasses.replace(report, command=self.command, target=target)

    def judged(self, report: Report) -> Report:
        """Returns the report, compared with the baseline if there is one."""
        report = self.named(report)
        if self.known is None:
            return report
        return baselines.apply(report, self.known, self.baseline)


def checked(
    check_file: Any,
    ref: TargetRef,
    options: Options,
    wanted: Outputs,
    called: Called,
) -> int:
    """Checks with `check_file`, and shows the verdict as soon as it is known.

    Returns the exit code: no success where a file that an option names is missing.
    """
    from ddpcheck.checking import reporting  # noqa: PLC0415 (--help needs none of it)
    from ddpcheck.run.session import session  # noqa: PLC0415 (--help needs none of it)

    progress = Progress(sys.stderr, wanted=not wanted.quiet)
    written: list[bool] = []
    shown: list[Report] = []

    def on_verdict(report: Report) -> None:
        # What has standard output to itself is written there once, complete.
        if not wanted.alone():
            written.append(False)
            with progress.hidden():
                shown.append(called.judged(report))
                written[0] = output.show(shown[0], wanted)

    try:
        with output.importing_ahead(wanted), progress:
            report: Report = check_file(
                ref, options, progress=progress, on_verdict=on_verdict
            )
    except (session.CannotCheckError, UsageError) as error:
        # Readers of the files must not take an earlier report for this one.
        code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_NOT_CHECKED
        why = str(error).removeprefix("ddpcheck: ")
        unchecked = reporting.unchecked(ref, why, code)
        output.show_machines(called.named(unchecked), wanted)
        raise
    except SignalError as error:
        if not (error.again or written):
            error.doing = progress.doing
            why = f"{error} while {error.doing}" if error.doing else str(error)
            code = EXIT_SIGNAL + error.number
            unchecked = reporting.unchecked(ref, why, code, ended=why)
            output.show_machines(called.named(unchecked), wanted)
        raise
    report = called.judged(report)
    if not written:
        written.append(output.show(report, wanted))
    elif all(written) and report != shown[0]:
        # A file that could not be written has been warned of.
        written.append(output.update(report, wanted))
    if report.exit_code or all(written):
        return report.exit_code
    streams.warn("the exit code is 3: what an option asks for could not be written")
    return EXIT_NOT_CHECKED


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that were given, by the names of `Options`."""
    found = {one.name: getattr(args, one.name) for one in SETTINGS}
    return {name: value for name, value in found.items() if value is not None}


def names(args: argparse.Namespace) -> dict[str, str]:
    """Returns the names in the target file that were given."""
    chosen = {name: getattr(args, f"{name}_fn") for name in DEFINITIONS}
    return {key: value for key, value in chosen.items() if value is not None}


def _split(target: str, names: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """Returns path and names of "file.py:Name"; a path may hold colons itself."""
    head, _, name = target.rpartition(":")
    if not head or not name.isidentifier() or Path(target).exists():
        return Path(target), dict(names)
    if "model" in names:
        raise usage_error(
            slug="option-usage",
            message="the model is named twice",
            expected="file.py:NAME, or --model-fn NAME",
            found=f"{target} and --model-fn {names['model']}",
            fix="leave one of them out",
        )
    return Path(head), {**names, "model": name}


def suite(given: Mapping[str, Any], wanted: Outputs) -> int:
    """Runs the conformance matrix on this machine.

    Raises:
        UsageError: option-suite.
    """
    from ddpcheck.run.modes.registry import CHOICES  # noqa: PLC0415
    from ddpcheck.suite import main as suites  # noqa: PLC0415

    options = settings.make(given, {}, modes=CHOICES)
    exit_code: int = suites.main(options, is_quiet=wanted.quiet)
    return exit_code


def demo(wanted: Outputs) -> int:
    """Checks a broken target and the fixed one, and explains the result."""
    from ddpcheck.cli import demo as demos  # noqa: PLC0415

    return demos.main(wanted)


def init(path: str) -> int:
    """Writes a target template to a path where nothing is yet, or prints it for "-"."""
    from ddpcheck.cli import template  # noqa: PLC0415

    if path == "-":
        streams.write(template.TEXT.format(name="mymodel.py"))
        return 0
    template.write(Path(path))
    streams.write(f"wrote {path}; now run: ddpcheck {path}\n")
    return 0


def explain(slug: str) -> int:
    """Prints the page of a rule or of a usage error."""
    from ddpcheck.report.pages import pages  # noqa: PLC0415

    text = pages.page(slug)
    streams.write(f"{slug}\n\n{text}\n")
    return 0


def rules() -> int:
    """Prints a line per rule and per usage error."""
    from ddpcheck.report.pages import pages  # noqa: PLC0415

    streams.write(pages.table())
    return 0


def render(path: str, form: str, wanted: Outputs) -> int:
    """Prints a stored report in another form; 0 whatever its verdict.

    Raises:
        UsageError: render-file.
    """
    from ddpcheck.report import data as reports  # noqa: PLC0415

    try:
        report = reports.from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    except ValueError as error:
        raise _unreadable(path, str(error)) from None
    streams.write(output.render(report, form, wanted))
    return 0


def _unreadable(path: str, found: str) -> UsageError:
    return usage_error(
        slug="render-file",
        message=f"{path} is not a ddpcheck report",
        expected="report.json, or a file that --json wrote",
        found=found,
        fix="ddpcheck TARGET --json report.json",
    )


def version() -> int:
    """Prints the version."""
    from importlib import metadata  # noqa: PLC0415

    streams.write(f"ddpcheck {metadata.version('ddpcheck')}\n")
    return 0
