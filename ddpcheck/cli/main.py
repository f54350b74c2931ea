"""The command line: arguments in, exit code out; no logic."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddpcheck.checking import exits, places
from ddpcheck.cli import arguments, commands, run_command
from ddpcheck.errors.problem import usage_error
from ddpcheck.ranks import messages
from ddpcheck.report import output, streams
from ddpcheck.report.data import EXIT_USAGE
from ddpcheck.target.options import DEFINITIONS, SETTINGS

if TYPE_CHECKING:
    from ddpcheck.cli.nodes import Member

_HELP = """\
usage: ddpcheck run [options] [-m MODULE | train.py] ARGS...
       ddpcheck TARGET [options]
       ddpcheck --demo | --suite | --init [PATH] | --explain SLUG | --rules
       ddpcheck --render report.json [--format FORMAT]

Does data-parallel training of this model equal single-process training on the
global batch? If not: what is the cause, and does the fix remove it?

`run` checks a training script as it is, started as by torchrun. What follows
its name is the script's own; {{world_size}} and {{rank}} are replaced in it.

TARGET is a Python file that defines `model`, `batch` and `loss`; --init writes
one. file.py:Net picks the model.

runs:
{runs}
verdict:
{compared}  --baseline report.json  fail only on findings that are not in that report
{causes}
names in the target file, if they differ from these:
{definitions}
output:
  --json PATH             JSON report; - writes it to standard output
  --junit-xml PATH        JUnit XML, one test case per run
  --sarif PATH            SARIF, one result per finding, for code scanning
  --github                GitHub annotations and job summary
  --diff                  print the fix as a change of the target's file, too
{written}  -q, --quiet             print the verdict only
  -v, --verbose           print everything, with stacks

of `run` alone:
{scripts}
other commands:
  --demo                  check a broken model and the fixed one
  --suite                 run the conformance matrix on this machine
  --init [PATH]           write a target template (mymodel.py); - prints it
  --explain SLUG          print the page of a finding or an error
  --rules                 list all slugs, one line each
  --render report.json    print a stored report
  --format FORMAT         of --render: terminal, html, junit, github or sarif
  --version
  -h, --help

Under torchrun, on one machine or several, the processes of its group are the
ranks, and rank 0 reports. Details, SLURM: ddpcheck --explain group-world-size

Settings can also be set in the target file (world_sizes, simulate, tolerance,
accept) and in [tool.ddpcheck] of pyproject.toml. Options take precedence, then
the target file.

examples:
  ddpcheck run train.py data/small.yaml
  ddpcheck run --world-sizes 2,4 -m package.train
  ddpcheck mymodel.py
  ddpcheck mymodel.py:Net --world-sizes 3 --modes ddp
  ddpcheck mymodel.py --accept norm/local-batch-stats="frozen after warm-up"
  ddpcheck mymodel.py --json - | jq .verdict

exit codes:
  0  equivalent: every comparison is within the tolerance
  1  divergent: the report gives the cause, if one is known
  2  usage error: the target file or an option is wrong
  3  could not check: hang, crash, deadline, a run that is not judged; of equal
     runs: a file that an option names cannot be written
  130, 143  interrupted, terminated; the report has the finished runs
"""


def _help() -> str:
    """Returns the text of --help, with a line for every setting of the table."""
    lines = {one.section: "" for one in SETTINGS}
    for one in SETTINGS:
        lines[one.section] += _line(f"{one.option} {one.metavar}", one.help)
    definitions = (
        _line(f"--{name.replace('_', '-')}-fn NAME", form)
        for name, form in DEFINITIONS.items()
    )
    return _HELP.format(**lines, definitions="".join(definitions))


def _line(option: str, text: str) -> str:
    return f"  {option:<22}  " + text.replace("\n", "\n" + " " * 26) + "\n"


HELP = _help()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    streams.open_closed_streams()
    given = list(sys.argv[1:] if argv is None else argv)
    member = _member()
    speaks = member is None or member.is_leader
    run = _run_script if given[:1] == [run_command.NAME] else _run
    code = exits.guarded(
        lambda: member.run(lambda: run(given, member)) if member else run(given),
        verbose="-v" in given or "--verbose" in given,
        github=speaks and "--github" in given,
    )
    return member.leave(code) if member else code


def _member() -> Member | None:
    if messages.launched_group(os.environ) is None:
        if found := messages.unusable_group(os.environ):
            streams.warn(f"{found}: ddpcheck joins no group and starts its own ranks")
        return None
    from ddpcheck.cli import nodes  # noqa: PLC0415 (only where there is a group)

    return nodes.member()


def _run(given: list[str], member: Member | None = None) -> int:  # noqa: PLR0911 (one per command)
    args = arguments.parser().parse_args(given)
    if member is not None and (args.target is None or args.help) and member.is_idle():
        return 0  # --help, --demo and the like are rank 0's
    wanted = _wanted(args)
    _refuse_of_scripts(args, given)
    if args.help:
        streams.write(HELP)
        return 0
    if args.version:
        return commands.version()
    if args.explain is not None:
        return commands.explain(args.explain)
    if args.rules:
        return commands.rules()
    places.check_working_folder()
    if args.demo:
        return commands.demo(wanted)
    if args.init is not None:
        return commands.init(args.init)
    if args.render is not None:
        return commands.render(args.render, args.format or "terminal", wanted)
    if args.suite:
        return commands.suite(commands.given(args), wanted)
    command = shlex.join(["ddpcheck", *given])
    return commands.check(
        args.target,
        commands.names(args),
        commands.given(args),
        wanted,
        command=command,
        baseline=args.baseline or "",
        member=member,
    )


def _refuse_of_scripts(args: argparse.Namespace, given: list[str]) -> None:
    """Refuses options that only `run` has."""
    has = commands.given(args)
    named = [one.option for one in SETTINGS if one.of == "scripts" and one.name in has]
    if named:
        raise usage_error(
            slug="option-usage",
            message=f"{named[0]} is an option of ddpcheck run",
            expected=run_command.USAGE,
            found=shlex.join(["ddpcheck", *given]),
            fix=f"leave it out, or check the script: ddpcheck run {named[0]} train.py",
        )


def _run_script(given: list[str], member: Member | None = None) -> int:
    if {"-h", "--help"} & set(run_command.divided(given[1:])[0]):
        streams.write(HELP)
        return 0
    if member is not None:
        if member.is_idle():
            return EXIT_USAGE
        raise usage_error(
            slug="option-usage",
            message="ddpcheck run was started by torchrun, and starts ranks itself",
            expected=run_command.USAGE,
            found="the variables of a launcher's group: RANK, WORLD_SIZE, ...",
            fix="start it without torchrun: " + shlex.join(["ddpcheck", *given]),
        )
    places.check_working_folder()
    command = shlex.join(["ddpcheck", *given])
    return run_command.main(given[1:], _wanted, command=command)


def _wanted(args: argparse.Namespace) -> output.Outputs:
    return output.Outputs(
        json=args.json or "",
        junit_xml=args.junit_xml or "",
        sarif=args.sarif or "",
        github=args.github,
        report_dir=args.report_dir or "",
        diff=args.diff,
        quiet=args.quiet,
        verbose=args.verbose,
    )
