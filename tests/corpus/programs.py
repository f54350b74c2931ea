"""Reads the programs of the corpus: their names, and what their headers say."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ddpcheck.cli import arguments
from ddpcheck.errors.problem import UsageError
from ddpcheck.run.modes.registry import CHOICES
from ddpcheck.target import settings
from ddpcheck.target.options import SETTINGS, Options

FOLDER = Path(__file__).parent
KEYS = ("expect", "options", "needs", "slow", "shows")
STATES = {"verified": True, "failed": False, "unverified": None}
_CONTINUED = "#   "
_FINDING = re.compile(r"(unknown|[a-z]+/[a-z0-9-]+) (\w+)")
_NEEDS = re.compile(r"torch (\d+)\.(\d+): (.+)")
_DEFAULTS = {"world_sizes": "2", "modes": "ddp"}
# One for all programs: to make 600 takes a third of the time of collecting all tests.
_parser = functools.cache(arguments.parser)


class HeaderError(ValueError):
    """The header of a program cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program of the corpus.

    Attributes:
        name: its folder and its file without ".py": "loss/mean-of-a-shard".
        path: of the file.
        findings: the slugs in their order, and whether the fix of each is verified;
            none where all runs must be equivalent.
        shows: what is wrong, or why it looks wrong and is sound.
        options: of the check.
        needs: the first version of torch that can run it, and why; else "".
        slow: why it takes long, "" where it does not.
    """

    name: str
    path: Path
    findings: tuple[tuple[str, bool | None], ...]
    shows: str
    options: Options
    needs: tuple[tuple[int, int], str] = ((0, 0), "")
    slow: str = ""

    @property
    def verdict(self) -> str:
        """The verdict of the check."""
        return "divergent" if self.findings else "equivalent"

    @property
    def slugs(self) -> list[str]:
        """The slugs of its findings."""
        return [slug for slug, _ in self.findings]

    @property
    def source(self) -> str:
        """The whole file."""
        return self.path.read_text(encoding="utf-8")


@functools.cache
def programs() -> dict[str, Program]:
    """Returns all programs by name."""
    found = [read(path) for path in sorted(FOLDER.glob("*/*.py"))]
    return {program.name: program for program in found}


def source(name: str) -> str:
    """Returns the source of one program, "loss/mean-of-a-shard"."""
    return programs()[name].source


def read(path: Path) -> Program:
    """Returns the program of a file.

    Raises:
        HeaderError: the header is missing or malformed; the message says where.
    """
    name = f"{path.parent.name}/{path.stem}"
    try:
        fields = _fields(path.read_text(encoding="utf-8"))
        return Program(
            name=name,
            path=path,
            findings=_findings(fields["expect"]),
            shows=fields["shows"],
            options=_options(fields.get("options", "")),
            needs=_needs(fields["needs"]) if "needs" in fields else ((0, 0), ""),
            slow=fields.get("slow", ""),
        )
    except HeaderError as error:
        raise HeaderError(f"tests/corpus/{name}.py: {error}") from None


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if key and line.startswith(_CONTINUED):
            fields[key] += " " + line[len(_CONTINUED) :].strip()
            continue
        key, colon, value = line.removeprefix("# ").partition(": ")
        if not colon or key not in KEYS:
            raise HeaderError(f"{line!r} is none of the lines {_listed(KEYS)}")
        if key in fields:
            raise HeaderError(f'there are two lines "# {key}: "')
        fields[key] = value.strip()
    for needed in ("expect", "shows"):
        if not fields.get(needed):
            raise HeaderError(f'the line "# {needed}: " is missing at the top')
    return fields


def _listed(keys: tuple[str, ...]) -> str:
    return ", ".join(f'"# {key}: "' for key in keys)


def _findings(text: str) -> tuple[tuple[str, bool | None], ...]:
    if text == "equivalent":
        return ()
    found = []
    for part in text.split(", "):
        match = _FINDING.fullmatch(part)
        if match is None or match[2] not in STATES:
            raise HeaderError(
                f"expect: {part!r} is neither \"equivalent\" nor a slug and one of "
                + ", ".join(STATES)
            )
        found.append((match[1], STATES[match[2]]))
    return tuple(found)


def _options(text: str) -> Options:
    try:
        given = vars(_parser().parse_args(["program.py", *shlex.split(text)]))
        texts = {s.name: given[s.name] for s in SETTINGS if given[s.name] is not None}
        return settings.make({**_DEFAULTS, **texts}, {}, modes=CHOICES)
    except UsageError as error:
        raise HeaderError(f"options: {error.problem.message}") from None


def _needs(text: str) -> tuple[tuple[int, int], str]:
    match = _NEEDS.fullmatch(text)
    if match is None:
        raise HeaderError(f'needs: {text!r} is not "torch X.Y: why"')
    return (int(match[1]), int(match[2])), match[3]
