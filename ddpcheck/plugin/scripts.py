"""Training scripts as pytest tests: one item per world size.

What --ddpcheck-run names is checked as `ddpcheck run` does. Collecting imports neither
torch nor the script.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.api import DivergenceError
from ddpcheck.checking import scripts
from ddpcheck.errors.problem import UsageError
from ddpcheck.plugin.items import CheckItem, options_of
from ddpcheck.ranks import budget
from ddpcheck.report.render import status
from ddpcheck.target import script as target_scripts
from ddpcheck.target.options import SETTINGS, Options
from ddpcheck.target.script import Script

_OF_TARGETS = [one.name for one in SETTINGS if one.of == "targets"]


def files(session: pytest.Session, started: list[str]) -> list[ScriptFile]:
    """Returns the scripts that are started by these texts.

    Raises:
        pytest.UsageError: a script is wrong.
    """
    try:
        return [_file(session, text) for text in dict.fromkeys(started)]
    except (UsageError, ValueError) as error:
        raise pytest.UsageError(str(error)) from None


def _file(session: pytest.Session, text: str) -> ScriptFile:
    script = target_scripts.parsed(shlex.split(text))
    path = Path(script.path or f"{script.folder}/{script.module}")
    made: ScriptFile = ScriptFile.from_parent(session, path=path, script=script)
    return made


class ScriptFile(pytest.File):
    """One script with its arguments."""

    def __init__(self, *, script: Script, **rest: Any) -> None:
        super().__init__(**rest)
        self.script = script

    def collect(self) -> Iterator[pytest.Item]:
        """Yields an item per world size."""
        try:
            options = options_of(self.config, self.path, without=_OF_TARGETS)
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        started = shlex.join(self.script.arguments)
        for size in options.world_sizes or scripts.DEFAULT_WORLD_SIZES:
            name = f"ddp-W{size}" + (f"[{started}]" if started else "")
            own = replace(options, world_sizes=(size,))
            yield ScriptItem.from_parent(self, name=name, options=own)


class ScriptItem(CheckItem):
    """One script at one world size."""

    is_of_script = True

    def __init__(self, *, options: Options, **rest: Any) -> None:
        super().__init__(**rest)
        self.options = options

    def runtest(self) -> None:
        """Checks the script, and judges it."""
        assert isinstance(self.parent, ScriptFile)
        machine = budget.of_this_machine()
        report = scripts.check_script(self.parent.script, self.options, budget=machine)
        self.attach(report)
        if report.exit_code != 0:
            raise DivergenceError(report)
        if status.report_status(report) == "accepted":
            pytest.xfail("; ".join(f"{f.slug}: {f.accepted}" for f in report.findings))
