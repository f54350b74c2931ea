"""Reads the value of a setting, and merges the values of several sources.

The settings are those of the table in options.py. A wrong value gives the same message
wherever it was written. Precedence: option, target file, pyproject.toml.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddpcheck.errors.problem import UsageError, cut, usage_error
from ddpcheck.report.pages import pages
from ddpcheck.target.options import SETTINGS, Options, Setting, UnknownSlugError

_BY_NAME = {setting.name: setting for setting in SETTINGS}


def read(
    name: str,
    value: Any,
    *,
    origin: str,
    fix: str = "",
    modes: tuple[str, ...] = (),
) -> Any:
    """Returns the value of a setting, from text or from a TOML or Python value.

    Args:
        name: of the setting, as in `Options`.
        value: what was written.
        origin: where, for the message: "--steps", "pyproject.toml: steps".
        fix: what to write instead; the option with its example by default.
        modes: what `modes` may name; needed for that setting only.

    Raises:
        UsageError: option-value.
    """
    setting = _BY_NAME[name].of_modes(modes)
    try:
        return setting.read(value)
    except UnknownSlugError as error:
        raise usage_error(
            slug="option-value",
            message=f"{origin} names no known cause: {_short(error.slug)}",
            expected=setting.allowed,
            found=_short(value),
            fix=pages.suggestion(error.slug),
        ) from None
    except ValueError:
        raise usage_error(
            slug="option-value",
            message=f"{origin} cannot be {_short(value)}",
            expected=setting.allowed,
            found=_short(value),
            fix=fix or f"{setting.option} {_closest(value, setting)}",
        ) from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004


def _closest(value: Any, setting: Setting) -> str:
    """Returns the choice that was probably meant, else the example."""
    choices = [w.strip(",") for w in setting.allowed.split() if w.strip(",").isalnum()]
    choices = [word for word in choices if not word.isdigit()]
    close = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.7)
    return close[0] if close else setting.example


def make(
    given: Mapping[str, Any], project: Mapping[str, Any], *, modes: tuple[str, ...]
) -> Options:
    """Returns the options of a check.

    Args:
        given: texts and values from the command line, by the names of `Options`.
        project: what `from_project` returned.
        modes: what --modes may name.

    Raises:
        UsageError: option-value.
    """
    chosen = {
        name: read(name, value, origin=_BY_NAME[name].option, modes=modes)
        for name, value in given.items()
    }
    accept = {**project.get("accept", {}), **chosen.get("accept", {})}
    # The target file takes precedence over pyproject.toml; acceptances add up.
    later = {k for k in project if k != "accept" and "target" in _BY_NAME[k].places}
    values = {
        **{k: v for k, v in project.items() if k not in later},
        **chosen,
        "accept": accept,
        "project": {k: v for k, v in project.items() if k in later},
    }
    values.pop("report_dir", None)
    return Options(**values)


def from_project(near: Path, *, modes: tuple[str, ...]) -> dict[str, Any]:
    """Returns the settings of the first pyproject.toml with a [tool.ddpcheck] table.

    Looked for in the folder of `near` and above it. Keys may have - for _. `modes` are
    what --modes may name.

    Raises:
        UsageError: settings-file, settings-unknown, option-value.
    """
    for folder in near.absolute().parents:
        path = folder / "pyproject.toml"
        if path.is_file() and (table := _table(path)) is not None:
            return _checked(path, table, modes)
    return {}


def _table(path: Path) -> Any:
    # Most files of this name have no table for us; reading them all as TOML would
    # make every broken one our user's problem, and costs an import.
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if "ddpcheck" not in text:
        return None
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415
    else:
        import tomli as tomllib  # noqa: PLC0415
    try:
        return tomllib.loads(text).get("tool", {}).get("ddpcheck")
    except tomllib.TOMLDecodeError as error:
        raise usage_error(
            slug="settings-file",
            message=f"{path} cannot be read",
            expected="a file in TOML",
            found=str(error),
            fix="correct the line that is named",
        ) from None


def _checked(path: Path, table: Any, modes: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(table, dict):
        table = {"ddpcheck": table}
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _BY_NAME:
            raise _unknown(path, key)
        origin = f"{key} in [tool.ddpcheck] of {path.name}"
        fix = f"correct {path}"
        values[name] = read(name, value, origin=origin, fix=fix, modes=modes)
    return values


def _unknown(path: Path, key: str) -> UsageError:
    close = difflib.get_close_matches(key.replace("-", "_"), _BY_NAME, n=1)
    fix = f"did you mean {close[0]}?" if close else f"remove {key} from {path}"
    return usage_error(
        slug="settings-unknown",
        message=f"[tool.ddpcheck] has no setting {key!r}",
        expected=cut(sorted(_BY_NAME), limit=len(_BY_NAME)),
        found=f"{key!r} in {path}",
        fix=fix,
    )
