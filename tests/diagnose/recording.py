"""Recorded cases: all that ranks answered in one check, written to a file and replayed.

A `Recorder` is a session that notes what its runs and probes return. A `Replay` answers
from the file: rules and the search are tested on it in milliseconds, without torch and
without a process. A check that asks for something else raises `NotRecordedError`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ddpcheck.diagnose.probes import evidence
from ddpcheck.errors import problem
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import messages
from ddpcheck.ranks.messages import Job, Outcome
from ddpcheck.ranks.pool import Pool
from ddpcheck.report import data
from ddpcheck.run import facts, intervention, spec
from ddpcheck.run.session.session import Asked, CannotCheckError, Session
from ddpcheck.run.spec import ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.target import TargetRef

_CLASS, _TUPLE, _SET, _DICT, _ENUM = "$", "$tuple", "$set", "$dict", "$enum"
_MARKS = {_CLASS, _TUPLE, _SET, _DICT, _ENUM}
_OF_THE_SESSION = ("ref", "trace")  # arguments of jobs: paths that differ each time
# Folders of this machine in stacks, and what stands for them in a file.
_FOLDERS = (
    (sys.prefix, "/venv"),
    (sys.base_prefix, "/python"),
    (str(Path(__file__).parents[2]), "/checkout"),
)
_TIME = "seconds"  # the only answer that differs from one recording to the next
_POOL_TIMEOUT_S = 60.0
# Whose classes a recorded case holds; their names are unique.
_KINDS: dict[str, Any] = {
    name: kind
    for module in (data, evidence, facts, intervention, messages, problem, spec)
    for name, kind in vars(module).items()
    if isinstance(kind, enum.EnumMeta) or dataclasses.is_dataclass(kind)
}


class NotRecordedError(Exception):
    """The replayed check asks for a run or a probe that the file does not have."""


class Recorder(Session):
    """A session that notes what its runs and probes return, for `write`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers: dict[str, list[Any]] = {}

    def reference(self, spec: RunSpec) -> ReferenceResult:
        """Returns the session's; notes it, or that there is none."""
        key = _key("reference", spec)
        try:
            made = super().reference(spec)
        except (UsageError, CannotCheckError):
            self.answers[key] = [None]
            raise
        self.answers[key] = [dataclasses.replace(made, trace="")]
        return made

    def run(self, specs: Iterable[RunSpec], *, apart: bool = False) -> list[RunOutcome]:
        """Returns the session's; notes what the ranks answered."""
        made = super().run(specs, apart=apart)
        for outcome in made:
            said = (outcome.ranks, outcome.servers, outcome.cut_off)
            self.answers.setdefault(_key("run", outcome.spec), []).append(said)
        return made

    def end(self, asked: Asked) -> list[Outcome]:
        """Returns the session's; notes what the processes answered."""
        made = super().end(asked)
        self.answers.setdefault(_job_key(asked.job), []).append(made)
        return made


def write(recorder: Recorder, path: Path) -> None:
    """Writes what a recorder noted; the same answers give the same bytes."""
    answers = sorted(recorder.answers.items())
    plain = {key: _to_plain(values) for key, values in answers}
    text = json.dumps(plain, separators=(",", ":"))
    for folder, name in _FOLDERS:
        text = text.replace(json.dumps(folder)[1:-1], name)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


class Replay(Session):
    """A session that answers from a recorded file; it starts no process.

    Args:
        path: what `write` wrote.
        ref: the target, for names in messages.
    """

    def __init__(self, path: Path, ref: TargetRef) -> None:
        pool = SimpleNamespace(
            device="cpu",
            timeout_s=_POOL_TIMEOUT_S,
            is_given=False,
            is_in_time=True,
            bounded=lambda _: contextlib.nullcontext(),
            open=lambda *_: None,
            retire=lambda *_: None,
            retire_busy=lambda: None,
        )
        super().__init__(cast("Pool", pool), ref)
        text = gzip.decompress(path.read_bytes()).decode()
        self._name, self._answers = path.name, json.loads(text)
        self._taken: collections.Counter[str] = collections.Counter()

    def _answer(self, key: str) -> Any:
        """Returns the next answer to a question; the last one again after it."""
        if key not in self._answers:
            message = f"{self._name} has no answer to {key}"
            raise NotRecordedError(message)
        values = self._answers[key]
        place = min(self._taken[key], len(values) - 1)
        self._taken[key] += 1
        return _from_plain(values[place])

    def reference(self, spec: RunSpec) -> ReferenceResult:
        """Returns the recorded reference; raises where the recorded one raised."""
        made: ReferenceResult | None = self._answer(_key("reference", spec))
        if made is None:
            message = "the recorded single-process run did not train"
            raise CannotCheckError(message, "")
        return made

    def run(self, specs: Iterable[RunSpec], *, apart: bool = False) -> list[RunOutcome]:  # noqa: ARG002
        """Returns the recorded outcomes."""
        return [self._outcome(one) for one in specs]

    @contextlib.contextmanager
    def of_file(self, text: str) -> Iterator[Session | None]:  # noqa: ARG002
        """Yields None: runs of files are not recorded, their text may change."""
        yield None

    def _outcome(self, spec: RunSpec) -> RunOutcome:
        ranks, servers, cut_off = self._answer(_key("run", spec))
        outcome = RunOutcome(
            spec=spec,
            reference=self.reference(spec),
            ranks=ranks,
            servers=servers,
            cut_off=cut_off,
        )
        if self.on_run:
            self.on_run(outcome)
        return outcome

    def begin(self, job: Job, world_size: int) -> Asked:  # noqa: ARG002
        """Returns the job; `end` answers it."""
        return Asked(job=job)

    def end(self, asked: Asked) -> list[Outcome]:
        """Returns the recorded answers to a job."""
        key = _job_key(asked.job)
        if key not in self._answers and key.startswith("find "):
            return [Outcome(rank=0, kind="done")]  # a finding's line decides nothing
        made: list[Outcome] = self._answer(key)
        return made


def _key(kind: str, one: RunSpec) -> str:
    return f"{kind} {json.dumps(_to_plain(one))}"


def _job_key(job: Job) -> str:
    given = {k: v for k, v in job.arguments.items() if k not in _OF_THE_SESSION}
    name = job.function.rpartition(":")[2]  # modules may move
    return f"{name} {json.dumps(_to_plain(given))}"


def _to_plain(value: Any) -> Any:  # noqa: PLR0911 (one per type)
    """Returns the value for JSON, which lacks some types; without defaults."""
    if isinstance(value, enum.Enum):
        return {_ENUM: f"{type(value).__name__}.{value.name}"}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_CLASS: type(value).__name__, **dict(_fields(value))}
    if isinstance(value, dict):
        if all(isinstance(k, str) and k not in _MARKS for k in value):
            return {k: _to_plain(v) for k, v in value.items()}
        return {_DICT: [[_to_plain(k), _to_plain(v)] for k, v in value.items()]}
    if isinstance(value, list):
        return [_to_plain(v) for v in value]
    if isinstance(value, tuple):
        return {_TUPLE: [_to_plain(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {_SET: sorted(map(_to_plain, value), key=str)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    message = f"{type(value).__name__} is no plain data"
    raise TypeError(message)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(value):
        if field.name == _TIME:
            continue
        mine, default = getattr(value, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.init and (mine is None) >= (default is None) and mine == default:
            continue
        yield field.name, _to_plain(mine)


def _from_plain(value: Any) -> Any:  # noqa: PLR0911 (one per type)
    """Returns what `_to_plain` was given; sets come back frozen."""
    if isinstance(value, list):
        return [_from_plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        return tuple(map(_from_plain, value[_TUPLE]))
    if _SET in value:
        return frozenset(map(_from_plain, value[_SET]))
    if _DICT in value:
        return {_from_plain(k): _from_plain(v) for k, v in value[_DICT]}
    if _ENUM in value:
        kind, _, name = value[_ENUM].partition(".")
        return _KINDS[kind][name]
    found = {k: _from_plain(v) for k, v in value.items() if k != _CLASS}
    return _KINDS[value[_CLASS]](**found) if _CLASS in value else found
