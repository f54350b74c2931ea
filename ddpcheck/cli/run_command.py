"""`ddpcheck run [options] [-m MODULE | train.py] ARGS`: a training script as it is."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddpcheck.checking import baseline as baselines
from ddpcheck.checking import places
from ddpcheck.cli import arguments, commands
from ddpcheck.errors.problem import usage_error
from ddpcheck.report.output import Outputs
from ddpcheck.target import script as scripts
from ddpcheck.target import settings
from ddpcheck.target.options import SETTINGS
from ddpcheck.target.script import Script

NAME = "run"
USAGE = scripts.USAGE
# What only a target file has, or what a script decides itself.
_OF_TARGETS = {one.name: one.option for one in SETTINGS if one.of == "targets"}


def divided(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments after `run`, divided before the script.

    The first part has ddpcheck's options; the second begins with the script's path, or
    with "-m".

    >>> divided(["--steps", "2", "train.py", "--steps", "9"])
    (['--steps', '2'], ['train.py', '--steps', '9'])
    """
    takes_value = {
        option: action.nargs != 0
        for action in arguments.parser()._actions  # noqa: SLF001 (no other way)
        for option in action.option_strings
    }
    position = 0
    while position < len(given):
        argument = given[position]
        if argument == "-m" or not argument.startswith("-"):
            break
        position += 1
        if takes_value.get(argument):
            position += 1
    return list(given[:position]), list(given[position:])


def main(given: Sequence[str], wanted_of: Any, *, command: str) -> int:
    """Checks a script; returns the exit code.

    Args:
        given: what follows `run`.
        wanted_of: makes the places of the report of the parsed options.
        command: the whole command line.

    Raises:
        UsageError: an option or the script is wrong.
        CannotCheckError: the script cannot be run at all.
    """
    own, rest = divided(given)
    if not rest:
        raise _no_script(own)
    args = arguments.parser().parse_args([*own, "script"])
    _refuse(args)
    return _check(scripts.parsed(rest), args, wanted_of(args), command)


def _check(
    script: Script, args: argparse.Namespace, wanted: Outputs, command: str
) -> int:
    from ddpcheck.checking.scripts import check_script  # noqa: PLC0415 (--help needs none of it)
    from ddpcheck.run.modes.registry import CHOICES  # noqa: PLC0415
    from ddpcheck.target.target import TargetRef  # noqa: PLC0415

    path = Path(script.path or script.module)
    project = settings.from_project(path, modes=CHOICES)
    project = {k: v for k, v in project.items() if k not in _OF_TARGETS}
    options = settings.make(commands.given(args), project, modes=CHOICES)
    folder = wanted.report_dir or project.get("report_dir", "")
    wanted = dataclasses.replace(wanted, report_dir=folder or "reports")
    wanted.alone()
    places.check(path, wanted, baseline=args.baseline or "", has_folder=bool(folder))
    known = baselines.load(args.baseline) if args.baseline else None
    called = commands.Called(path, command, known, args.baseline or "")

    def check_file(_: TargetRef, options: Any, **kwargs: Any) -> Any:
        return check_script(script, options, **kwargs)

    ref = TargetRef(path=script.path or script.module)
    return commands.checked(check_file, ref, options, wanted, called)


def _refuse(args: argparse.Namespace) -> None:
    """Refuses options that a script has no use for."""
    given = commands.given(args)
    idle = [option for name, option in _OF_TARGETS.items() if name in given]
    idle += [f"--{name.replace('_', '-')}-fn" for name in commands.names(args)]
    if not idle:
        return
    raise usage_error(
        slug="option-usage",
        message=f"{idle[0]} is not an option of ddpcheck run",
        expected=USAGE,
        found=", ".join(idle),
        fix="leave it out: the script decides that; options of the script come after "
        "its name",
    )


def _no_script(own: list[str]) -> Exception:
    return usage_error(
        slug="script-missing-file",
        message="ddpcheck run was given no script",
        expected=USAGE,
        found=f"options only: {' '.join(own)}" if own else "nothing after run",
        fix="ddpcheck run train.py ARGS, as after torchrun",
    )
