"""The command line: arguments in, exit code out; no logic."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ddpcheck import commands, exits, launch, output
from ddpcheck.errors import Problem, UsageError

if TYPE_CHECKING:
    from ddpcheck.nodes import Member

HELP = """\
usage: ddpcheck TARGET [options]
       ddpcheck --demo | --suite | --init [PATH] | --explain SLUG | --rules
       ddpcheck --render report.json [--format FORMAT]

Is data-parallel training of this model the same as one process on the global
batch? If not: what is the cause, and does the fix remove it?

TARGET is a Python file that defines `model`, `batch` and `loss`; --init writes
one. file.py:Net picks the model.

what runs:
  --world-sizes 2,4,8     numbers of ranks; those of 2,4,8 that divide the batch
  --modes dp,ddp          DataParallel, DistributedDataParallel
  --simulate 256,1024     DDP at world sizes beyond the machine, in one process
  --batch-norm asis,sync  asis, local, sync, frozen
  --loss asis             asis, or built-in: mean, sum, masked, iou
  --noise asis            asis, or sample: dropout follows the global sample
  --steps 3               training steps of every run
  --dtype auto            auto, float64, float32, bfloat16, float16
  --device auto           auto, cpu, cuda
  --timeout-s 60          deadline of the import and of every run
  --max-memory GIB        refuse what needs more; default: what is free
  --seed 0                seed of every run

what it is compared with:
  --tolerance RTOL        relative tolerance; default 1e-9 in float64
  --accept SLUG[=REASON]  do not fail because of this finding; repeatable
  --baseline report.json  fail only on what is not in that report
  --no-fix                do not verify causes by running their fixes

names in the file, where they are other than these:
  --model-fn NAME         model() -> nn.Module
  --batch-fn NAME         batch() -> (inputs, targets)
  --loss-fn NAME          loss(output, target) -> scalar
  --optimizer-fn NAME     optimizer(params) -> Optimizer
  --wrap-fn NAME          wrap(model) -> what a rank trains
  --train-step-fn NAME    train_step(model, optimizer, batch)

what is written:
  --json PATH             the report as JSON; - for standard output, alone there
  --junit-xml PATH        a test case per run
  --sarif PATH            a result per finding, for code scanning
  --github                annotations, and the job summary
  --report-dir reports    on divergence: report.html, report.json, reproduce.py
  -q, --quiet             the verdict only
  -v, --verbose           everything, with stacks

other ways in:
  --demo                  a broken model and its fixed twin, explained
  --suite                 the conformance matrix on this machine
  --init [PATH]           write a target template (mymodel.py)
  --explain SLUG          the page of a finding or of an error
  --rules                 all slugs, one line each
  --render report.json    a stored report again
  --format FORMAT         terminal, html, junit, github or sarif, of --render
  --version
  -h, --help

Under torchrun, on one machine or several, the ranks are those of its group and
rank 0 reports. How, and under SLURM: ddpcheck --explain group-world-size

Settings may also stand in the target file (world_sizes, simulate, tolerance,
accept) and in [tool.ddpcheck] of pyproject.toml; options win, then the target
file.

examples:
  ddpcheck mymodel.py
  ddpcheck mymodel.py:Net --world-sizes 3 --modes ddp
  ddpcheck mymodel.py --accept norm/local-batch-stats="frozen after warm-up"
  ddpcheck mymodel.py --json - | jq .verdict

exit codes:
  0  equivalent: every comparison is within the tolerance
  1  divergent: the cause is in the report, where one is known
  2  usage error: the target file or an option is wrong
  3  could not check: hang, crash, nothing compared; a file cannot be written
  130, 143  interrupted, terminated
"""

_NAMES = ("model", "batch", "loss", "optimizer", "wrap", "train-step")
_SETTINGS = (
    "world-sizes",
    "modes",
    "simulate",
    "batch-norm",
    "loss",
    "noise",
    "steps",
    "dtype",
    "device",
    "tolerance",
    "timeout-s",
    "max-memory",
    "seed",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    output.open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    member = _member()
    speaks = member is None or member.is_leader
    code = exits.guarded(
        lambda: (
            member.run(lambda: _run(arguments, member)) if member else _run(arguments)
        ),
        verbose="-v" in arguments or "--verbose" in arguments,
        github=speaks and "--github" in arguments,
    )
    return member.leave(code) if member else code


def _member() -> Member | None:
    if launch.given(os.environ) is None:
        if found := launch.unusable(os.environ):
            output.warn(
                f"{found}: no group is joined, ddpcheck starts ranks of its own"
            )
        return None
    from ddpcheck import nodes  # noqa: PLC0415 (only where there is a group)

    return nodes.member()


def _run(arguments: list[str], member: Member | None = None) -> int:  # noqa: PLR0911 (one per way in)
    args = parser().parse_args(arguments)
    if member is not None and (args.target is None or args.help) and member.is_idle():
        return 0  # --help, --demo and the like are rank 0's
    wanted = output.Outputs(
        json=args.json or "",
        junit_xml=args.junit_xml or "",
        sarif=args.sarif or "",
        github=args.github,
        report_dir=args.report_dir or "",
        quiet=args.quiet,
        verbose=args.verbose,
    )
    if args.help:
        output.say(HELP)
        return 0
    if args.version:
        return commands.version()
    if args.demo:
        return commands.demo(wanted)
    if args.init is not None:
        return commands.init(args.init)
    if args.explain is not None:
        return commands.explain(args.explain)
    if args.rules:
        return commands.rules()
    if args.render is not None:
        return commands.render(args.render, args.format or "terminal", wanted)
    if args.suite:
        return commands.suite(_given(args), wanted)
    command = shlex.join(["ddpcheck", *arguments])
    return commands.check(
        args.target,
        _names(args),
        _given(args),
        wanted,
        command=command,
        baseline=args.baseline or "",
        member=member,
    )


def _given(args: argparse.Namespace) -> dict[str, Any]:
    keys = [name.replace("-", "_") for name in _SETTINGS]
    given = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    if args.accept:
        given["accept"] = args.accept
    if args.no_fix:
        given["fix"] = False
    return given


def _names(args: argparse.Namespace) -> dict[str, str]:
    keys = [name.replace("-", "_") for name in _NAMES]
    chosen = {key: getattr(args, f"{key}_fn") for key in keys}
    return {key: value for key, value in chosen.items() if value is not None}


def parser() -> argparse.ArgumentParser:
    """Returns the parser; values are checked by ddpcheck.settings."""
    made = _Parser(prog="ddpcheck", add_help=False, allow_abbrev=False)
    made.add_argument("target", nargs="?")
    for name in _SETTINGS:
        made.add_argument(f"--{name}")
    made.add_argument("--accept", action="append")
    made.add_argument("--no-fix", action="store_true")
    for name in _NAMES:
        made.add_argument(f"--{name}-fn")
    for name in ("json", "junit-xml", "sarif", "report-dir", "baseline"):
        made.add_argument(f"--{name}")
    made.add_argument("--github", action="store_true")
    volume = made.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true")
    volume.add_argument("-v", "--verbose", action="store_true")
    _add_ways_in(made)
    return made


def _add_ways_in(made: argparse.ArgumentParser) -> None:
    ways = made.add_mutually_exclusive_group()
    for name in ("demo", "suite", "rules", "version"):
        ways.add_argument(f"--{name}", action="store_true")
    ways.add_argument("--init", nargs="?", const="mymodel.py")
    ways.add_argument("--explain")
    ways.add_argument("--render")
    made.add_argument("-h", "--help", action="store_true")
    made.add_argument("--format", choices=commands.RENDER_FORMATS)


class _Parser(argparse.ArgumentParser):
    """argparse's words in the shape of all other usage errors."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses, and asks for exactly one thing to do."""
        parsed = super().parse_args(args, namespace)
        ways = ("demo", "suite", "rules", "version", "help")
        way = any(getattr(parsed, name) for name in ways) or any(
            getattr(parsed, name) is not None for name in ("init", "explain", "render")
        )
        if parsed.target is None and not way:
            self.error("no TARGET was given")
        if parsed.target is not None and way and not parsed.help:
            self.error(f"{parsed.target} was given beside another way in")
        if parsed.format and parsed.render is None:
            self.error("--format is an option of --render alone")
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raises a usage error.

        Raises:
            UsageError: option-usage.
        """
        message = re.sub(r"^arguments? ", "", message)
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        raise UsageError(
            Problem(
                slug="option-usage",
                message=f"unknown option {unknown[1]}" if unknown else message,
                expected="ddpcheck TARGET [options]",
                fix=self._fix(unknown[1] if unknown else ""),
            )
        )

    def _fix(self, option: str) -> str:
        known = list(self._option_string_actions)
        close = difflib.get_close_matches(option.partition("=")[0], known, 1, 0.7)
        return f"did you mean {close[0]}?" if close else "ddpcheck --help"
