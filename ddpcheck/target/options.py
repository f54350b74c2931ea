"""The settings of a check: one table of them, and their values as one frozen object.

The command line, --help, `[tool.ddpcheck]` in pyproject.toml, the target file, the
pytest plugin and the Python API all take their settings from `SETTINGS`. The plugin
imports this module in every pytest session: it imports nothing else of ddpcheck at its
top. The modes are registered in a higher layer (run/modes/registry.py): whoever reads
settings passes their names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

REDUCTIONS = ("mean", "sum")
BATCH_NORM_MODES = ("asis", "local", "sync", "frozen")
LOSSES = ("asis", "mean", "sum", "masked", "iou")
NOISE_MODES = ("asis", "sample")
DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
_MOST_SEED = 2**31 - 1  # numpy takes 32 bits; ranks add their number to it


# Where a setting may be given in addition to the command line and pyproject.toml.
Place = Literal["target", "plugin", "api", "suite"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: its name in `Options`, its texts, and how a value is read.

    Attributes:
        name: in `Options`, pyproject.toml, the target file and Python.
        section: of --help: what "runs", what it is "compared" with, "causes", what is
            "written", or what only "scripts" have.
        help: what --help prints, one or two lines.
        metavar: what --help prints as the value; "" for an option without a value.
        expected: the allowed values, in the message for a wrong one; a function
            where another module knows them.
        example: text that the message for a wrong value suggests.
        python: the value in TOML and Python, as on the page option-value.
        places: where else it may be set.
        of: what has the setting: only "targets" (files of a model, a batch and a loss),
            only "scripts" (of `ddpcheck run`), or "both".
        is_repeatable: whether the option may be given more than once.
        switch: what an option without a value sets.
        names_modes: whether the values are names of modes; see `of_modes`.
        read: takes text (an option) or a TOML or Python value; raises ValueError.
    """

    name: str
    section: Literal["runs", "compared", "causes", "written", "scripts"] = "runs"
    help: str
    metavar: str
    expected: str | Callable[[], str]
    example: str
    python: str
    places: tuple[Place, ...] = ()
    of: Literal["both", "targets", "scripts"] = "both"
    is_repeatable: bool = False
    switch: bool = False
    names_modes: bool = False
    read: Callable[[Any], Any]

    @property
    def option(self) -> str:
        """The option on the command line: "--world-sizes"."""
        return "--no-fix" if self.name == "fix" else "--" + self.name.replace("_", "-")

    def on_command_line(self, value: Any) -> list[str]:
        """Returns the arguments that set this value, as `read` has returned it."""
        if not self.metavar:
            return [self.option]
        if isinstance(value, dict):
            return [f"{self.option}={key}={text}" for key, text in value.items()]
        items = value if isinstance(value, tuple) else (value,)
        return [f"{self.option}={','.join(map(str, items))}"]

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        return self.expected if isinstance(self.expected, str) else self.expected()

    def of_modes(self, modes: tuple[str, ...]) -> Setting:
        """Returns the setting with these modes as the allowed values, if it has any."""
        if not self.names_modes:
            return self
        return replace(self, expected=_some(modes), read=_some_of(modes))

    def argument(self) -> dict[str, Any]:
        """Returns the keyword arguments of argparse's `add_argument`, but `dest`.

        The value is text or, of an option without a value, what `read` takes.
        """
        if not self.metavar:
            return {"action": "store_const", "const": self.switch}
        action = "append" if self.is_repeatable else "store"
        return {"action": action, "metavar": self.metavar}


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
    from ddpcheck.compare.tolerance import COARSEST_RTOL, FINEST_RTOL  # noqa: PLC0415

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


class UnknownSlugError(ValueError):
    """`accept` names a slug that no report can contain."""

    def __init__(self, slug: str) -> None:
        super().__init__(slug)
        self.slug = slug


def _accept(value: Any) -> dict[str, str]:
    """Returns slug -> reason of {"slug": "reason"}, ["slug=reason"] or a slug."""
    from ddpcheck.report.pages import pages  # noqa: PLC0415

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
            raise UnknownSlugError(slug.strip())
        accepted[slug.strip()] = reason.strip() or "accepted without a reason"
    return accepted


def _or(choices: tuple[str, ...]) -> str:
    return ", ".join(choices[:-1]) + " or " + choices[-1]


def _some(choices: tuple[str, ...]) -> str:
    return f"some of {_or(choices)}, separated by commas"


def _limits() -> str:
    from ddpcheck.compare.tolerance import COARSEST_RTOL, FINEST_RTOL  # noqa: PLC0415

    return (
        f"a relative difference from {FINEST_RTOL:g} (less is float64's own rounding) "
        f"to {COARSEST_RTOL:g} (more lets faults pass)"
    )


SETTINGS = (
    Setting(
        name="world_sizes",
        help="numbers of ranks; those of 2,4,8 that divide the batch",
        metavar="2,4,8",
        expected="whole numbers from 1, separated by commas",
        example="2,4,8",
        python="[2, 4, 8]",
        places=("target", "plugin", "api", "suite"),
        read=_world_sizes,
    ),
    Setting(
        name="modes",
        help="DataParallel, DistributedDataParallel; also: ps",
        metavar="dp,ddp",
        expected="names of modes, separated by commas",
        example="dp,ddp",
        python='["dp", "ddp", "ps"]',
        places=("plugin", "api", "suite"),
        of="targets",
        names_modes=True,
        read=lambda value: tuple(map(_text, _items(value))),
    ),
    Setting(
        name="ps_reduce",
        help="mean or sum of gradients, in a parameter server (ps)",
        metavar="mean",
        expected=_or(REDUCTIONS),
        example="sum",
        python='"mean" or "sum"',
        places=("plugin", "api", "suite"),
        of="targets",
        read=_one_of(REDUCTIONS),
    ),
    Setting(
        name="simulate",
        help="large world sizes of DDP, simulated in one process",
        metavar="256,1024",
        expected="whole numbers from 1, separated by commas",
        example="256,1024,4096",
        python="[256, 1024]",
        places=("target", "plugin", "api"),
        of="targets",
        read=_world_sizes,
    ),
    Setting(
        name="batch_norm",
        help="asis, local, sync, frozen",
        metavar="asis,sync",
        expected=_some(BATCH_NORM_MODES),
        example="asis,sync",
        python='["asis", "local", "sync", "frozen"]',
        places=("plugin", "api", "suite"),
        of="targets",
        read=_some_of(BATCH_NORM_MODES),
    ),
    Setting(
        name="loss",
        help="asis, or built-in: mean, sum, masked, iou",
        metavar="asis",
        expected=_some(LOSSES),
        example="mean,masked",
        python='["asis", "mean", "sum", "masked", "iou"]',
        places=("plugin", "suite"),  # in Python, `loss` is the function
        of="targets",
        read=_some_of(LOSSES),
    ),
    Setting(
        name="noise",
        help="asis, or sample: dropout depends on the sample only",
        metavar="asis",
        expected="asis or sample",
        example="sample",
        python='"asis" or "sample"',
        places=("plugin", "api"),
        of="targets",
        read=_one_of(NOISE_MODES),
    ),
    Setting(
        name="steps",
        help="training steps of every run",
        metavar="3",
        expected="a whole number from 1",
        example="3",
        python="3",
        places=("plugin", "api"),
        read=lambda value: _whole(value, 1),
    ),
    Setting(
        name="dtype",
        help="auto, float64, float32, bfloat16, float16",
        metavar="auto",
        expected=_or(DTYPES),
        example="float64",
        python='"auto", "float64", "float32", "bfloat16" or "float16"',
        places=("plugin", "api", "suite"),
        read=_one_of(DTYPES),
    ),
    Setting(
        name="device",
        help="auto, cpu, cuda",
        metavar="auto",
        expected=_or(DEVICES),
        example="cpu",
        python='"auto", "cpu" or "cuda"',
        places=("plugin", "api", "suite"),
        read=_one_of(DEVICES),
    ),
    Setting(
        name="tolerance",
        section="compared",
        help="relative tolerance; default 1e-9 in float64",
        metavar="RTOL",
        expected=_limits,
        example="1e-6",
        python="1e-9, relative; from 1e-15 to 0.1",
        places=("target", "plugin", "api", "suite"),
        read=_tolerance,
    ),
    Setting(
        name="accept",
        section="compared",
        help="do not fail on this finding; repeatable",
        metavar="SLUG[=REASON]",
        expected="slugs of --rules (family/name), each with or without a reason",
        example="norm/local-batch-stats=known",
        python='{"norm/local-batch-stats" = "why this is fine"}',
        places=("target", "plugin", "api"),
        is_repeatable=True,
        read=_accept,
    ),
    Setting(
        name="fix",
        section="causes",
        help="do not confirm causes by intervention runs; if\n"
        "something is accepted, they are made all the same",
        metavar="",
        expected="true or false",
        example="false",
        python="true or false",
        places=("plugin", "api"),
        read=_yes_or_no,
    ),
    Setting(
        name="timeout_s",
        help="time limit of the import and of every run; if it is\n"
        "not given, slow ranks get more",
        metavar="60",
        expected="seconds, above 0",
        example="60",
        python="60",
        places=("plugin", "api", "suite"),
        read=_positive,
    ),
    Setting(
        name="deadline_s",
        help="time limit of the whole check; the runs made by then\n"
        "are reported, and equal ones exit with 3",
        metavar="600",
        expected="seconds, above 0",
        example="600",
        python="600",
        places=("plugin", "api"),
        read=_positive,
    ),
    Setting(
        name="max_memory",
        help="refuse runs that need more; default: free memory",
        metavar="GIB",
        expected="GiB, above 0",
        example="16",
        python="16, GiB",
        places=("plugin", "api"),
        read=_positive,
    ),
    Setting(
        name="seed",
        help="seed of every run",
        metavar="0",
        expected="a whole number from 0 to 2147483647",
        example="0",
        python="0",
        places=("plugin", "api"),
        read=lambda value: _whole(value, 0, _MOST_SEED),
    ),
    Setting(
        name="report_dir",
        section="written",
        help="on divergence: report.html, reproduce.py, fixed.py",
        metavar="reports",
        expected="a folder",
        example="reports",
        python='"reports"',
        read=_text,
    ),
    Setting(
        name="allow_writes",
        section="scripts",
        help="let the script change files that existed before",
        metavar="",
        expected="true or false",
        example="true",
        python="true or false",
        places=("plugin", "api"),
        of="scripts",
        switch=True,
        read=_yes_or_no,
    ),
    Setting(
        name="cuda_as_cpu",
        section="scripts",
        help="run a script that asks for CUDA on the CPU",
        metavar="",
        expected="true or false",
        example="true",
        python="true or false",
        places=("plugin", "api"),
        of="scripts",
        switch=True,
        read=_yes_or_no,
    ),
    Setting(
        name="resume_at",
        section="scripts",
        help="stop after update K, start the script again, and\n"
        "compare it with the run that went on",
        metavar="K",
        expected="a whole number from 1",
        example="2",
        python="2",
        places=("plugin", "api"),
        of="scripts",
        read=lambda value: _whole(value, 1),
    ),
    Setting(
        name="resume_args",
        section="scripts",
        help="further arguments of the script when it resumes",
        metavar="ARGS",
        expected="text",
        example='"--resume last.pt"',
        python='"--resume last.pt"',
        places=("plugin", "api"),
        of="scripts",
        read=_text,
    ),
)

# What a target file defines, and its form as --help prints it.
DEFINITIONS = {
    "model": "model() -> nn.Module",
    "batch": "batch() -> (inputs, targets)",
    "collate": "collate(samples) -> (inputs, targets)",
    "loss": "loss(output, target) -> scalar",
    "optimizer": "optimizer(params) -> Optimizer",
    "wrap": "wrap(model) -> the module that a rank trains",
    "train_step": "train_step(model, optimizer, batch)",
}


DEFAULT_WORLD_SIZES = (2, 4, 8)
DEFAULT_STEPS = 3  # some faults show in the third step only: DDP rebuilds its buckets
DEFAULT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a check. None means: not chosen, find the default.

    `accept` maps slugs to the user's reasons. `tolerance` is an rtol. `project` holds
    world_sizes, simulate and tolerance of pyproject.toml, which come after the target's
    own. `ps_reduce` is what a parameter server makes of the workers' gradients: "mean",
    the default, or "sum". `simulate` has world sizes of DDP that one process simulates.
    `max_memory` in GiB. `timeout_s` is the bound of every run where it was chosen: a
    run that needs more gets more only by default. `deadline_s` is that of the whole
    check. `allow_writes`: a script may change
    files that existed before. `cuda_as_cpu`: it runs on the CPU where it asks for CUDA.
    `resume_at`: it is stopped after this update and started again, with `resume_args`.
    """

    world_sizes: tuple[int, ...] | None = None
    modes: tuple[str, ...] | None = None
    ps_reduce: str | None = None
    simulate: tuple[int, ...] | None = None
    batch_norm: tuple[str, ...] = ("asis",)
    loss: tuple[str, ...] = ("asis",)
    noise: str = "asis"
    steps: int = DEFAULT_STEPS
    dtype: str = "auto"
    device: str = "auto"
    tolerance: float | None = None
    accept: dict[str, str] = field(default_factory=dict)
    fix: bool = True
    timeout_s: float | None = None
    deadline_s: float | None = None
    max_memory: float | None = None
    seed: int = 0
    allow_writes: bool = False
    cuda_as_cpu: bool = False
    resume_at: int | None = None
    resume_args: str | None = None
    project: dict[str, Any] = field(default_factory=dict)

    @property
    def limit_s(self) -> float:
        """The deadline of the import, and of a run where it needs no more."""
        return DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    @property
    def run_device(self) -> str:
        """The device of the runs: the CPU by default, where results are exact."""
        return "cpu" if self.device == "auto" else self.device

    def arguments(self, names: Iterable[str]) -> list[str]:
        """Returns what sets these settings on a command line, if they are not default.

        Args:
            names: of settings, in the order of the command line.
        """
        settings = {setting.name: setting for setting in SETTINGS}
        given: list[str] = []
        for name in names:
            value = getattr(self, name)
            if value != getattr(_DEFAULTS, name):
                given += settings[name].on_command_line(value)
        return given


_DEFAULTS = Options()
