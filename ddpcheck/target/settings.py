"""What each setting may be, and where its value comes from.

One table for the command line, `[tool.ddpcheck]` in pyproject.toml, the target file and
Python, so that a wrong value reads the same wherever it was written. Precedence:
option, target file (it has some of the settings), pyproject.toml.
"""

from __future__ import annotations

import difflib
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpcheck.compare.tolerance import COARSEST_RTOL, FINEST_RTOL
from ddpcheck.errors.problem import Problem, UsageError, cut
from ddpcheck.report.pages import pages
from ddpcheck.target.options import Options

REDUCTIONS = ("mean", "sum")
BATCH_NORM_MODES = ("asis", "local", "sync", "frozen")
LOSSES = ("asis", "mean", "sum", "masked", "iou")
NOISE_MODES = ("asis", "sample")
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
_MOST_SEED = 2**31 - 1  # numpy takes 32 bits; ranks add their number to it

# Also settable in the target file; pyproject.toml comes after it.
_OF_TARGETS = ("world_sizes", "simulate", "tolerance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its name in `Options`, what it may be, and how it is read.

    `read` takes text (an option) or a TOML or Python value, raises ValueError.
    """

    name: str
    expected: str | Callable[[], str]
    example: str
    read: Callable[[Any], Any]

    @property
    def option(self) -> str:
        """The option on the command line: "--world-sizes"."""
        return "--no-fix" if self.name == "fix" else "--" + self.name.replace("_", "-")

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        return self.expected if isinstance(self.expected, str) else self.expected()


def _whole(value: Any, least: int, most: float = math.inf) -> int:
    is_text = isinstance(value, str)
    if not is_text and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError
    number = int(value)
    if not least <= number <= most:
        raise ValueError
    return number


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError
    return number


def _tolerance(value: Any) -> float:
    number = _positive(value)
    if not FINEST_RTOL <= number <= COARSEST_RTOL:
        raise ValueError
    return number


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        value = value.split(",")
    found = list(value) if isinstance(value, list | tuple) else [value]
    found = [item.strip() if isinstance(item, str) else item for item in found]
    if not found:
        raise ValueError
    return list(dict.fromkeys(found))


def _world_sizes(value: Any) -> tuple[int, ...]:
    return tuple(_whole(item, 1) for item in _items(value))


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return read


def _some_of(choices: tuple[str, ...]) -> Callable[[Any], tuple[str, ...]]:
    one = _one_of(choices)

    def read(value: Any) -> tuple[str, ...]:
        return tuple(one(item) for item in _items(value))

    return read


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


class _UnknownSlugError(ValueError):
    """An acceptance of what no report can find."""

    def __init__(self, slug: str) -> None:
        super().__init__(slug)
        self.slug = slug


def _accept(value: Any) -> dict[str, str]:
    """Returns slug -> reason of {"slug": "reason"}, ["slug=reason"] or a slug."""
    if isinstance(value, dict):
        pairs = list(value.items())
    else:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list | tuple):
            raise ValueError
        pairs = [_text(item).partition("=")[::2] for item in found]
    accepted = {}
    for slug, reason in pairs:
        if not isinstance(slug, str) or not isinstance(reason, str) or "/" not in slug:
            raise ValueError
        if slug.strip() not in pages.slugs():
            raise _UnknownSlugError(slug.strip())
        accepted[slug.strip()] = reason.strip() or "accepted without a reason"
    return accepted


def _or(choices: tuple[str, ...]) -> str:
    return ", ".join(choices[:-1]) + " or " + choices[-1]


def _modes() -> tuple[str, ...]:
    """Returns what --modes may name; the modes are listed in a higher layer."""
    module = importlib.import_module("ddpcheck.run.modes.registry")
    names: tuple[str, ...] = module.CHOICES
    return names


SETTINGS = (
    Setting(
        name="world_sizes",
        expected="whole numbers from 1, separated by commas",
        example="2,4,8",
        read=_world_sizes,
    ),
    Setting(
        name="modes",
        expected=lambda: f"some of {_or(_modes())}, separated by commas",
        example="dp,ddp",
        read=lambda value: tuple(map(_one_of(_modes()), _items(value))),
    ),
    Setting(
        name="ps_reduce",
        expected=_or(REDUCTIONS),
        example="sum",
        read=_one_of(REDUCTIONS),
    ),
    Setting(
        name="simulate",
        expected="whole numbers from 1, separated by commas",
        example="256,1024,4096",
        read=_world_sizes,
    ),
    Setting(
        name="batch_norm",
        expected=f"some of {_or(BATCH_NORM_MODES)}, separated by commas",
        example="asis,sync",
        read=_some_of(BATCH_NORM_MODES),
    ),
    Setting(
        name="loss",
        expected=f"some of {_or(LOSSES)}, separated by commas",
        example="mean,masked",
        read=_some_of(LOSSES),
    ),
    Setting(
        name="noise",
        expected="asis or sample",
        example="sample",
        read=_one_of(NOISE_MODES),
    ),
    Setting(
        name="steps",
        expected="a whole number from 1",
        example="3",
        read=lambda value: _whole(value, 1),
    ),
    Setting(
        name="dtype", expected=_or(DTYPES), example="float64", read=_one_of(DTYPES)
    ),
    Setting(name="device", expected=_or(DEVICES), example="cpu", read=_one_of(DEVICES)),
    Setting(
        name="tolerance",
        expected=f"a relative difference from {FINEST_RTOL:g} (less is float64's own "
        f"rounding) to {COARSEST_RTOL:g} (more lets faults pass)",
        example="1e-6",
        read=_tolerance,
    ),
    Setting(
        name="accept",
        expected="slugs of --rules (family/name), each with or without a reason",
        example="norm/local-batch-stats=known",
        read=_accept,
    ),
    Setting(name="fix", expected="true or false", example="false", read=_yes_or_no),
    Setting(
        name="timeout_s",
        expected="seconds, above 0",
        example="60",
        read=_positive,
    ),
    Setting(
        name="max_memory",
        expected="GiB, above 0",
        example="16",
        read=_positive,
    ),
    Setting(
        name="seed",
        expected="a whole number from 0 to 2147483647",
        example="0",
        read=lambda value: _whole(value, 0, _MOST_SEED),
    ),
    Setting(name="report_dir", expected="a folder", example="reports", read=_text),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def read(name: str, value: Any, *, origin: str, fix: str = "") -> Any:
    """Returns the value of a setting, from text or from a TOML or Python value.

    Args:
        name: of the setting, as in `Options`.
        value: what was written.
        origin: where, for the message: "--steps", "pyproject.toml: steps".
        fix: what to write instead; the option with its example by default.

    Raises:
        UsageError: option-value.
    """
    setting = _BY_NAME[name]
    try:
        return setting.read(value)
    except _UnknownSlugError as error:
        raise UsageError(
            Problem(
                slug="option-value",
                message=f"{origin} names no cause: {_short(error.slug)}",
                expected=setting.allowed,
                found=_short(value),
                fix=pages.suggestion(error.slug),
            )
        ) from None
    except ValueError:
        raise UsageError(
            Problem(
                slug="option-value",
                message=f"{origin} cannot be {_short(value)}",
                expected=setting.allowed,
                found=_short(value),
                fix=fix or f"{setting.option} {_closest(value, setting)}",
            )
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


def make(given: Mapping[str, Any], project: Mapping[str, Any]) -> Options:
    """Returns the options of a check.

    Args:
        given: texts and values from the command line, by the names of `Options`.
        project: what `from_project` returned.

    Raises:
        UsageError: option-value.
    """
    chosen = {
        name: read(name, value, origin=_BY_NAME[name].option)
        for name, value in given.items()
    }
    accept = {**project.get("accept", {}), **chosen.get("accept", {})}
    values = {
        **{k: v for k, v in project.items() if k not in _OF_TARGETS},
        **chosen,
        "accept": accept,
        "project": {k: project[k] for k in _OF_TARGETS if k in project},
    }
    values.pop("report_dir", None)
    return Options(**values)


def from_project(near: Path) -> dict[str, Any]:
    """Returns the settings of the first pyproject.toml with a [tool.ddpcheck] table.

    Looked for in the folder of `near` and above it. Keys may have - for _.

    Raises:
        UsageError: settings-file, settings-unknown, option-value.
    """
    for folder in near.absolute().parents:
        path = folder / "pyproject.toml"
        if path.is_file() and (table := _table(path)) is not None:
            return _checked(path, table)
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
        raise UsageError(
            Problem(
                slug="settings-file",
                message=f"{path} cannot be read",
                expected="a file in TOML",
                found=str(error),
                fix="correct the line that is named",
            )
        ) from None


def _checked(path: Path, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        table = {"ddpcheck": table}
    values = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in _BY_NAME:
            raise _unknown(path, key)
        origin = f"{key} in [tool.ddpcheck] of {path.name}"
        values[name] = read(name, value, origin=origin, fix=f"correct {path}")
    return values


def _unknown(path: Path, key: str) -> UsageError:
    close = difflib.get_close_matches(key.replace("-", "_"), _BY_NAME, n=1)
    fix = f"did you mean {close[0]}?" if close else f"remove {key} from {path}"
    return UsageError(
        Problem(
            slug="settings-unknown",
            message=f"[tool.ddpcheck] has no setting {key!r}",
            expected=cut(sorted(_BY_NAME), limit=len(_BY_NAME)),
            found=f"{key!r} in {path}",
            fix=fix,
        )
    )
