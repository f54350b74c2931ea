"""What a check found, as plain data: no torch, no process, no rendering.

Every renderer is a pure function of `Report`, and `report.json` is `Report` and
nothing else, so a number is computed once and reads the same everywhere.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args, get_type_hints

FORMAT = 1

EXIT_EQUIVALENT = 0
EXIT_DIVERGENT = 1
EXIT_USAGE = 2
EXIT_NOT_CHECKED = 3
EXIT_SIGNAL = 128  # and the signal's number, as shells have it

Verdict = Literal["equivalent", "divergent", "not-checked"]
EXIT_CODES: dict[str, int] = {
    "equivalent": EXIT_EQUIVALENT,
    "divergent": EXIT_DIVERGENT,
    "not-checked": EXIT_NOT_CHECKED,
}
# What makes a run divergent. Losses and outputs are shown, but training that has
# equal gradients, weights and buffers is equal training.
JUDGED = ("gradients", "weights", "buffers")
# What ran to prove a fix: a file written for the target, an intervention in the ranks
# that does what the fix says, or one that shows where the cause is and no more.
Proof = Literal["file", "intervention", "located"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One tensor of the candidate against the same tensor of the reference.

    `excess` is the criterion: max over elements of
    |candidate - reference| / (atol + rtol * |reference|); <= 1 passes.
    `rel_diff` is max |candidate - reference| over max |reference|.
    `ratio` is the least-squares factor candidate / reference, None without one.
    `step` counts from 0. `rank` is None where there is only one.
    """

    name: str
    step: int
    rank: int | None = None
    abs_diff: float
    rel_diff: float
    excess: float
    ratio: float | None = None
    why: str | None = None  # e.g. "missing in the candidate", "shape", "nan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """All tensors of one kind (gradients, weights, ...) of one run."""

    compared: int = 0
    mismatched: int = 0
    worst: Difference | None = None
    # Worst first, at most 50 rows: what the report's tensor table shows.
    tensors: tuple[Difference, ...] = ()
    # Worst excess of each step, step 0 first: how the difference grows.
    excess_by_step: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A rank that raised, died or hung: facts, no interpretation."""

    kind: Literal["raised", "died", "hung"]
    rank: int
    step: int | None
    summary: str  # one line: "RuntimeError: ...", "killed by SIGABRT"
    stack: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One cell of the matrix: a mode at a world size, against the reference.

    `reduce` is what a parameter server makes of the workers' gradients, "mean" or
    "sum"; "" in modes without one.
    """

    mode: str
    world_size: int
    reduce: str = ""
    batch_norm: str = "asis"
    loss: str = "asis"
    noise: str = "asis"
    dtype: str = "float64"
    verdict: Verdict
    why: str = ""  # for not-checked: the reason, one sentence
    shard_sizes: tuple[int, ...] = ()
    rtol: float = 0.0
    gradients: Quantity = field(default_factory=Quantity)
    weights: Quantity = field(default_factory=Quantity)
    buffers: Quantity = field(default_factory=Quantity)
    outputs: Quantity = field(default_factory=Quantity)
    losses: Quantity = field(default_factory=Quantity)
    ranks_agree: bool = True
    faults: tuple[Fault, ...] = ()
    seconds: float = 0.0

    @property
    def worst(self) -> Difference | None:
        """The worst tensor of the first judged quantity that differs, if any does."""
        judged: list[Quantity] = [getattr(self, name) for name in JUDGED]
        return next((q.worst for q in judged if q.mismatched and q.worst), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What to do, and what a run with an intervention showed.

    `verified` is whether the run with the intervention is within tolerance. It is None
    where no run was made (--no-fix, or nothing to run), or where the fix of another
    cause removes this one too: `excess_before` is then at most 1. `proof` is what ran
    where that made the runs equal, else None. `intervention` is a sentence on what ran,
    and `file` is the file that ran ("fixed.py"). `code` is an example that did not
    run, unless `proof` is "file". `safe`: single-process training is unchanged.
    `changes` is a sentence on what the file changes of it, measured.
    """

    text: str
    code: str = ""
    safe: bool = True
    changes: str = ""
    verified: bool | None = None
    proof: Proof | None = None
    file: str | None = None
    intervention: str = ""
    excess_before: float | None = None
    excess_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Another candidate's intervention, run as a control."""

    slug: str
    excess_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where an unknown difference starts: the first that was seen.

    `text` says all of it in a sentence. `quantity`: "samples", "outputs", "gradients",
    "weights", "buffers", "optimizer state", or "initial weights", of `step` (from 0).
    `module`: whose output it is; `parameters`: some of those that differ. `optimizer`
    and `key`: whose state, and which part of it. `group`: the ranks over which rank 0's
    wrapper reduces, where these are not all.
    """

    text: str
    quantity: str
    step: int
    module: str | None = None
    parameters: tuple[str, ...] = ()
    optimizer: str | None = None
    key: str | None = None
    group: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """A link, or the fix of a cause, that is not why runs differ; `why` says how known.

    `excess`: what is left with the fix, for a fix that was tried.
    """

    what: str
    why: str
    excess: float | None = None


class ModuleRow(TypedDict):
    """One module of the picture that shows where a difference starts."""

    name: str
    rel_diff: float  # of its output, given the single-process inputs
    diverges: bool


class Ratios(TypedDict, total=False):
    """Factors of loss gradients over the single-process ones, for their picture."""

    ranks: list[float]  # of each rank, or of each micro-batch
    places: list[list[int]]  # [rank, micro-batch] of each
    residuals: list[float]  # relative, of what the factor does not explain
    expected: float


class RankRow(TypedDict):
    """What a rank did last, for the table of a fault."""

    rank: int
    step: int  # from 1
    outcome: str  # how it ended
    frame: str | None  # the last one of the user's code
    collective: str | None  # the last that the target entered
    backwards: int  # begun so far
    stderr: str  # its last lines


class Evidence(TypedDict, total=False):
    """The numbers behind the facts of a finding; each has some of them.

    A report that was read from a file may hold anything: renderers check it.
    """

    modules: list[ModuleRow]  # in the order of calls
    ratios: Ratios
    fitted_ratios: Ratios  # of ranks that have no single factor: not drawn
    direct_ratios: list[float]  # by rank, of what the loss gives parameters directly
    factor: float  # of all wrong gradients
    # Faults
    ranks: list[RankRow] | list[int]  # of samples: how many each rank trains on
    differs: list[int]  # ranks that did something else than the others
    where: str | None  # "mymodel.py:41"
    collective: int  # number of the call, from 1
    # Samples of a step
    step: int
    one_process: int  # that the single-process run trains on
    repeated: int  # more often than there
    missing: int
    foreign: int  # that it has in no step
    # Samples of a pass: `repeated` and `missing` of this many
    loader: int  # of the script, in the order of their first use
    of_pass: int
    # Parameter server
    ratio: float  # of the gradients over the single-process ones
    lr_factor: float | None  # of the learning rate that makes up for it
    reduce: str  # "mean" or "sum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause (or an honest unknown): facts, cause, fix."""

    slug: str
    link: str
    runs: tuple[int, ...]  # indices into Report.runs
    summary: str  # the cause in one sentence
    facts: tuple[str, ...] = ()
    where: str | None = None  # "mymodel.py:41"
    magnitude: str | None = None
    evidence: Evidence = field(default_factory=Evidence)
    fix: Fix | None = None
    controls: tuple[Control, ...] = ()
    # Of an unknown: where it starts, and what is not its cause.
    start: Start | None = None
    ruled_out: tuple[RuledOut, ...] = ()
    # Those of `runs` that equal the single-process run with the fixes of all findings.
    proven_runs: tuple[int, ...] = ()
    accepted: str | None = None  # the user's reason
    benign: bool = False  # the training itself needs no change


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """Something that this report has no number for."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """What was checked."""

    name: str
    path: str
    sha256: str = ""
    model: str = ""
    num_parameters: int = 0
    num_tensors: int = 0
    batch_size: int = 0
    loss: str = ""
    optimizer: str = ""
    steps: int = 3
    backwards: int = 1  # of each update, as the target's step makes them


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which parts of a training program the verdict covers, and which it does not.

    Both are empty where nothing was trained, or in a report of an earlier version.
    """

    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of a script's training, as one process has it and as ranks have it.

    `at_8`: what it would be with 8 ranks, None where it follows no power of their
    number. `effect` is a sentence on what the difference, or its absence, does.
    """

    what: str
    single: float
    ranks: float
    world_size: int
    at_8: float | None = None
    effect: str


DATA = "data"  # the mode of the run that stands for what a script's ranks drew
RESUME = "resume"  # of the run that stands for a script that was started again
PartName = Literal["gradient", "update", "data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The verdict on one part of a script's training at one world size.

    Whether a finding is accepted does not matter here. `why` is for "not-checked".
    """

    what: PartName
    world_size: int
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Where the criterion comes from."""

    rtol: float
    origin: str  # "float64 default", "32 x the measured noise floor 5e-08"
    noise_floor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One check of one target.

    `ended` is why the check ended before it was complete, "" where it is complete: the
    runs are then those that were made, and `exit_code` is that of a signal.
    """

    verdict: Verdict
    exit_code: int
    target: TargetInfo
    tolerance: Tolerance
    environment: dict[str, str] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_compared: tuple[NotCompared, ...] = ()
    warnings: tuple[str, ...] = ()
    scope: Scope = field(default_factory=Scope)
    facts: tuple[Row, ...] = ()  # of a script, as functions of the world size
    parts: tuple[Part, ...] = ()  # of a script: its three verdicts
    command: str = ""
    seconds: float = 0.0
    ended: str = ""
    reproduce: str = ""  # the text of reproduce.py, "" without a divergence
    fixed: str = ""  # the text of fixed.py, "" where none was verified
    diff: str = ""  # fixed.py as a change of the user's file, where that is equal, too
    format: int = FORMAT


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Returns findings in the order of every report: what is sure to be wrong first.

    Accepted ones are last, benign ones before them, and a cause that a run has proven
    is before the others; causes of random numbers are behind those like them, for with
    other noise the mean over many updates is the same. Else they keep the order of the
    chain.
    """
    return sorted(findings, key=_place)


def _place(finding: Finding) -> tuple[bool, bool, bool, bool]:
    is_proven = finding.fix is not None and finding.fix.proof is not None
    is_of_noise = finding.slug.startswith(_NOISE)
    return finding.accepted is not None, finding.benign, not is_proven, is_of_noise


_NOISE = "rng/"  # the family of causes of random numbers


def to_json(report: Report) -> str:
    """Returns the report as JSON: keys sorted, floats exact.

    NaN and infinities become the strings "nan", "inf" and "-inf".
    """
    plain = _to_plain(report)
    return json.dumps(plain, indent=1, sort_keys=True, allow_nan=False) + "\n"


def from_json(text: str) -> Report:
    """Returns the report that `to_json` wrote.

    Raises:
        ValueError: the text is no report, or one of another format.
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        found = plain.get("format") if isinstance(plain, dict) else type(plain).__name__
        raise ValueError(f"expected a report of format {FORMAT}, found {found!r}")
    try:
        report: Report = _from_plain(Report, plain)
    except (TypeError, KeyError, AttributeError) as error:
        message = f"a report of format {FORMAT} with wrong fields: {error}"
        raise ValueError(message) from error
    return report


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _from_plain(kind: Any, value: Any) -> Any:
    """Rebuilds dataclasses, tuples and non-finite floats from their plain form."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        known = {f.name for f in dataclasses.fields(kind)}
        unknown = set(value) - known
        if unknown:
            raise TypeError(f"{kind.__name__} has no {min(unknown)!r}")
        return kind(**{key: _from_plain(hints[key], value[key]) for key in value})
    args = get_args(kind)
    if value is None:
        return None
    if isinstance(value, list):
        item = args[0] if args else Any
        return tuple(_from_plain(item, v) for v in value)
    if kind is float or float in args:
        return float(value) if not isinstance(value, bool) else value
    for option in args:
        if dataclasses.is_dataclass(option) and isinstance(value, dict):
            return _from_plain(option, value)
    return value
