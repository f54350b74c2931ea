"""Parses the command line, and reports arguments that are not valid."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import sys
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ddpcheck.cli import commands
from ddpcheck.errors.problem import Problem, UsageError, cut
from ddpcheck.target.options import DEFINITIONS, SETTINGS

# Options that take a path; --report-dir is a setting.
PATHS = ("json", "junit-xml", "sarif", "baseline")
_USAGE = "ddpcheck TARGET [options]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A command other than a check of TARGET: its usage and its options."""

    usage: str
    options: tuple[str, ...] = ()
    slug: str = "option-usage"


_OF_SUITE = tuple(one.option for one in SETTINGS if "suite" in one.places)
WAYS = {
    "demo": Way(
        usage="ddpcheck --demo [--report-dir reports] [-q | -v]",
        options=("--report-dir", "--quiet", "--verbose"),
    ),
    "suite": Way(
        usage=f"ddpcheck --suite with some of {', '.join(_OF_SUITE)}, -q and -v",
        options=(*_OF_SUITE, "--quiet", "--verbose"),
        slug="option-suite",
    ),
    "rules": Way(usage="ddpcheck --rules"),
    "version": Way(usage="ddpcheck --version"),
    "init": Way(usage="ddpcheck --init [PATH]"),
    "explain": Way(usage="ddpcheck --explain SLUG"),
    "render": Way(
        usage="ddpcheck --render report.json [--format FORMAT]; --diff, -q or -v on a "
        "terminal",
        options=("--format", "--diff", "--quiet", "--verbose"),
    ),
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser; values are checked by ddpcheck.target.settings."""
    made = _Parser(prog="ddpcheck", add_help=False, allow_abbrev=False)
    made.add_argument("target", nargs="?")
    for one in SETTINGS:
        made.add_argument(one.option, dest=one.name, **one.argument())
    for name in DEFINITIONS:
        made.add_argument(f"--{name.replace('_', '-')}-fn")
    for name in PATHS:
        made.add_argument(f"--{name}")
    made.add_argument("--github", action="store_true")
    made.add_argument("--diff", action="store_true")
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
    """An argparse parser that reports errors like all other usage errors."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the arguments; allows exactly one command, with its own options."""
        given = list(sys.argv[1:] if args is None else args)
        parsed, unknown = self.parse_known_args(given, namespace)
        self._refuse_unknown(parsed, unknown, given)
        self._refuse_empty(parsed)
        if parsed.help:
            return parsed
        way = next((name for name in WAYS if self._is_given(parsed, name)), "")
        if parsed.target is None and not way:
            self.error("no TARGET was given")
        if parsed.target is not None and way:
            self.error(f"{parsed.target} was given together with another command")
        self._refuse_further(parsed, unknown)
        if parsed.format and way != "render":
            self.error("--format is an option of --render only")
        if way:
            self._refuse_idle(parsed, way)
        return parsed

    def _refuse_empty(self, parsed: argparse.Namespace) -> None:
        """Refuses an empty path: in a script it comes from an unset variable."""
        for name in (*PATHS, "report-dir"):
            if getattr(parsed, name.replace("-", "_")) == "":
                problem = _problem(
                    f"--{name} is empty",
                    expected="a path",
                    found="''",
                    fix=f"give --{name} a path, or leave it out",
                )
                raise UsageError(problem)

    def _is_given(self, parsed: argparse.Namespace, name: str) -> bool:
        return getattr(parsed, name) is not self.get_default(name)

    def _refuse_idle(self, parsed: argparse.Namespace, way: str) -> None:
        """Refuses options that would have no effect."""
        has, name = WAYS[way].options, f"--{way}"
        if way == "render" and parsed.format not in (None, "terminal"):
            has, name = ("--format",), f"--render --format {parsed.format}"
        options = {
            action.option_strings[-1]
            for action in self._actions
            if action.option_strings and self._is_given(parsed, action.dest)
        }
        idle = sorted(options - {*has, f"--{way}"})
        if not idle:
            return
        verb = "is not an option" if len(idle) == 1 else "are not options"
        problem = _problem(
            f"{cut(idle)} {verb} of {name}",
            expected=WAYS[way].usage,
            fix=f"leave {'it' if len(idle) == 1 else 'them'} out",
        )
        raise UsageError(replace(problem, slug=WAYS[way].slug))

    def _refuse_unknown(
        self, parsed: argparse.Namespace, unknown: list[str], given: list[str]
    ) -> None:
        end = given.index("--") if "--" in given else len(given)
        options = [a for a in given[:end] if a in (parsed.target, *unknown)]
        options = [a for a in options if a.startswith("-") and a != "-"]
        # argparse does not treat an argument with a space as an option.
        if blank := next((a for a in options if re.search(r"\s", a)), ""):
            self._refuse_blank(blank)
        if options:
            close = self._closest(options[0])
            fix = f"did you mean {close}?" if close else "ddpcheck --help"
            self.error(f"unknown option {options[0]}", fix=fix)

    def _refuse_further(self, parsed: argparse.Namespace, unknown: list[str]) -> None:
        """Refuses a second TARGET; an option after -- is parsed as one, too."""
        further = [a for a in unknown if a != "--"]
        if not further:
            return
        known = self._option_string_actions
        if late := next((a for a in further if a.partition("=")[0] in known), ""):
            message = f"{late} comes after --, where options are not read"
            self.error(message, fix=f"write {late} before --")
        targets = [parsed.target, *further]
        several = f"pytest --ddpcheck {shlex.join(targets)}"
        message = "one target is checked at a time"
        fix = f"run one after the other, or all in one session: {several}"
        raise UsageError(_problem(message, found=cut(targets), fix=fix))

    def _refuse_blank(self, argument: str) -> NoReturn:
        name, *value = argument.split(maxsplit=1)
        parts = [self._closest(name) or name, *value]
        self.error(
            f"{argument!r} is one argument that contains a space",
            fix=f"{'two arguments' if value else 'remove the space'}: "
            f"{shlex.join(parts)}",
        )

    def error(self, message: str, *, fix: str = "ddpcheck --help") -> NoReturn:
        """Raises a usage error.

        Raises:
            UsageError: option-usage.
        """
        raise UsageError(_problem(re.sub(r"^arguments? ", "", message), fix=fix))

    def _closest(self, option: str) -> str:
        known = list(self._option_string_actions)
        close = difflib.get_close_matches(option.partition("=")[0], known, 1, 0.7)
        return close[0] if close else ""


def _problem(
    message: str, *, fix: str, expected: str = _USAGE, found: str = ""
) -> Problem:
    return Problem(
        slug="option-usage", message=message, expected=expected, found=found, fix=fix
    )
