"""The Python API: `check` returns a Report, `assert_equivalent` raises.

The public names are in `ddpcheck.__all__`. The pytest fixture is this API on ranks
that stay warm over a session.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ddpcheck.checking import checking, opening, scripts
from ddpcheck.errors.problem import UsageError, visible
from ddpcheck.ranks.budget import Budget
from ddpcheck.ranks.pool import Pool, Preload, PreloadError
from ddpcheck.report.data import Fault, Report
from ddpcheck.report.render import status, terminal, wording
from ddpcheck.report.render.terminal import one_line
from ddpcheck.run.modes.registry import CHOICES
from ddpcheck.run.session.session import CannotCheckError, Session
from ddpcheck.target import script as target_scripts
from ddpcheck.target import settings, shipping
from ddpcheck.target.options import DEFINITIONS, SETTINGS, Options
from ddpcheck.target.target import Target, TargetRef

if TYPE_CHECKING:
    from typing_extensions import Unpack


__all__ = [
    "CannotCheckError",
    "DivergenceError",
    "assert_equivalent",
    "check",
    "warm_ranks",
]


class DivergenceError(AssertionError):
    """Data-parallel and single-process training differ, or nothing was compared.

    Its text is the terminal report and fixed.py; `report` is the report itself.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(_failure_text(report))
        self.report = report


class Settings(TypedDict, total=False):
    """The keyword arguments of `check`, which describes them."""

    script: str | Sequence[str] | None
    collate: Callable[..., Any] | None
    optimizer: Callable[..., Any] | None
    wrap: Callable[..., Any] | None
    train_step: Callable[..., Any] | None
    world_sizes: Sequence[int] | None
    modes: Sequence[str] | None
    ps_reduce: str | None
    simulate: Sequence[int] | None
    batch_norm: Sequence[str]
    noise: str
    steps: int
    dtype: str
    device: str
    tolerance: float | None
    accept: Mapping[str, str] | Sequence[str] | None
    fix: bool
    timeout_s: float | None
    deadline_s: float | None
    max_memory: float | None
    seed: int
    allow_writes: bool
    cuda_as_cpu: bool
    resume_at: int | None
    resume_args: str | None


_UNPACK = "ddpcheck.target.target:unpack"
_TARGET = ("model", "batch", "loss")
_PARTS = ("collate", "optimizer", "wrap", "train_step")
_OF_SCRIPTS = tuple(one.name for one in SETTINGS if one.of == "scripts")
_NOT_OF_SCRIPTS = (*_PARTS, *(one.name for one in SETTINGS if one.of == "targets"))


class WarmRanks:
    """Ranks that have imported torch and stay for the next check. Close it.

    Checks of several threads take turns.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget
        self._pool: Pool | None = None
        self._count = 0
        self._surroundings: tuple[dict[str, str], list[str]] = {}, []
        self._libraries: set[str] = set()  # packages that the pool's ranks have
        self._unfit: set[str] = set()  # packages that make forking unsafe once imported
        self._turn = threading.RLock()

    def start(self) -> None:
        """Begins to import torch, in the background.

        Again if the environment or sys.path has changed (pytest's monkeypatch), because
        ranks have those of their start, or if the caller has imported another library
        since.
        """
        now = _surroundings()
        package = shipping.package
        modules = tuple(
            m for m in shipping.used_libraries() if package(m) not in self._unfit
        )
        packages = set(map(package, modules))
        if now != self._surroundings or not packages <= self._libraries:
            self._close_pool()
        if self._pool is None:
            self._surroundings, self._libraries = now, packages
            what = Preload(modules=opening.PRELOAD_MODULES, libraries=modules)
            self._pool = Pool(what)
            self._pool.start()

    def open(self, timeout_s: float) -> Pool:
        """Returns the pool once it has done its imports.

        Libraries that start threads or open a GPU are left out, as no rank can be
        forked after that; all are left out if one of them ends the process.
        """
        self.start()
        assert self._pool is not None
        self._pool.timeout_s = timeout_s
        try:
            self._pool.wait_for_imports()
        except PreloadError:
            if not self._libraries:
                raise
        else:
            if not self._pool.unfit:
                return self._pool
        unfit = shipping.package(self._pool.unfit)
        self._unfit |= {unfit} if unfit else self._libraries
        self._close_pool()
        return self.open(timeout_s)

    def check(
        self,
        model: Any = None,
        batch: Any = None,
        loss: Callable[..., Any] | None = None,
        *,
        name: str = "",
        **given: Unpack[Settings],
    ) -> Report:
        """Returns the report of a check; as the function `check`.

        Args:
            model: as in a target file, or the path of one.
            batch: as in a target file.
            loss: as in a target file.
            name: of the target in the report.
            given: other names that a target file may define, and settings.
        """
        __tracebackhide__ = True
        with self._turn:
            if given.get("script") is not None:
                return _check_script((model, batch, loss), given, self._budget)
            return self._check(model, batch, loss, name, given)

    def _check(
        self, model: Any, batch: Any, loss: Any, name: str, given: Mapping[str, Any]
    ) -> Report:
        __tracebackhide__ = True
        options = options_of(given)
        try:
            pool = self.open(options.limit_s)
            with (
                self._ref(pool, model, batch, loss, given) as ref,
                contextlib.closing(Session(pool, ref, budget=self._budget)) as session,
            ):
                report = checking.check(pool, ref, options, session=session)
        except (UsageError, CannotCheckError) as error:
            # A test's traceback should end at the user's own line; the message has
            # the cause.
            raise error.with_traceback(None) from None
        except BaseException:
            self.close()  # in an unknown state; the next check starts anew
            raise
        if ref.path is None:
            name = name or getattr(model, "__name__", type(model).__name__)
            target = dataclasses.replace(report.target, name=name)
            report = dataclasses.replace(report, target=target)
        return report

    @contextlib.contextmanager
    def _ref(
        self, pool: Pool, model: Any, batch: Any, loss: Any, given: Mapping[str, Any]
    ) -> Iterator[TargetRef]:
        if isinstance(model, str | Path):
            yield TargetRef(path=str(Path(model).absolute()))
            return
        target = Target(
            name=getattr(model, "__name__", type(model).__name__),
            model=model,
            batch=batch,
            loss=loss,
            collate=given.get("collate"),
            optimizer=given.get("optimizer"),
            wrap=given.get("wrap"),
            train_step=given.get("train_step"),
        )
        self._count += 1
        path = pool.folder / f"target{self._count}.pickle"
        try:
            shipping.pack(target, path)
            parts = {key: getattr(target, key) for key in DEFINITIONS}
            source, names = shipping.source_of(parts)
            yield TargetRef(
                factory=_UNPACK,
                arguments=(("path", str(path)),),
                source=source,
                names=names,
            )
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the ranks; a later check starts new ones."""
        self._close_pool()
        if self._budget is not None:
            self._budget.close()

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None


def _surroundings() -> tuple[dict[str, str], list[str]]:
    # pytest keeps the name of the running test in a variable.
    own = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return own, list(sys.path)


_warm: WarmRanks | None = None
# Starting a process changes os.environ for a moment, which all threads share.
_turn = threading.RLock()


@contextlib.contextmanager
def warm_ranks() -> Iterator[None]:
    """Lets all checks inside the context share processes that have imported torch.

    Without it every check starts its own, which takes as long as importing torch.
    """
    global _warm  # noqa: PLW0603 (what the context is for)
    before, _warm = _warm, WarmRanks()
    try:
        yield
    finally:
        _warm.close()
        _warm = before


def check(
    model: Any = None,
    batch: Any = None,
    loss: Callable[..., Any] | None = None,
    **given: Unpack[Settings],
) -> Report:
    """Returns the report that compares data-parallel and single-process training.

    Args:
        model: a function that returns an nn.Module, an nn.Module, or the path of a
            target file; a file needs no other part.
        batch: the global batch, (inputs, targets), or a function that returns it.
        loss: a function (output, target) -> scalar tensor.
        given: other names that a target file may define, and settings, as the options
            of the command (ddpcheck --help). None means not given.

            script       a training script and its arguments, "train.py --lr 1" or
                         ["-m", "package.train"], in place of model, batch and loss;
                         checked as `ddpcheck run` does
            collate      a function (samples) -> (inputs, targets), for a batch that
                         is a list of samples: every rank collates its own
            optimizer    a function (params) -> Optimizer
            wrap         a function (model) -> the module that a rank trains
            train_step   a function (model, optimizer, batch)
            world_sizes  numbers of ranks, [2, 4, 8]
            modes        some of ["dp", "ddp", "ps"]; the first two
            ps_reduce    "mean" or "sum": what a parameter server makes of gradients
            simulate     world sizes beyond the machine, [256, 1024]
            batch_norm   some of ["asis", "local", "sync", "frozen"]
            noise        "asis", or "sample": dropout depends on the sample only
            steps        training steps of every run, 3
            dtype        "auto", "float64", "float32", "bfloat16" or "float16"
            device       "auto", "cpu" or "cuda"
            tolerance    relative, from 1e-15 to 0.1; 1e-9 in float64
            accept       slugs that do not fail, {"norm/local-batch-stats": "why"}
            fix          False: causes are not confirmed by a run (--no-fix)
            timeout_s    seconds, of the import and of every run; by default 60, and
                         more for ranks that are slow
            deadline_s   seconds, of the whole check: the runs made by then are
                         reported, and equal ones are "not-checked"
            max_memory   GiB; what is free
            seed         of every run, 0
            allow_writes  True: the script may change files that existed before
            cuda_as_cpu  True: a script that asks for CUDA runs on the CPU
            resume_at    a script is stopped after this update and started again
            resume_args  its further arguments then, "--resume last.pt"

    Raises:
        UsageError: an argument is wrong; a ValueError.
        CannotCheckError: the single-process run hangs or dies.
    """
    __tracebackhide__ = True
    options = options_of(given)
    try:
        with _turn:
            if given.get("script") is not None:
                return _check_script((model, batch, loss), given, None)
            if _warm is not None:
                return _warm.check(model, batch, loss, **given)
            if isinstance(model, str | Path):  # one import of the file, for all ranks
                ref = TargetRef(path=str(Path(model).absolute()))
                return checking.check_file(ref, options)
            with warm_ranks():
                assert _warm is not None
                return _warm.check(model, batch, loss, **given)
    except (UsageError, CannotCheckError) as error:
        raise error.with_traceback(None) from None


def _check_script(
    parts: tuple[Any, ...], given: Mapping[str, Any], budget: Budget | None
) -> Report:
    """Returns the report on a script.

    Args:
        parts: model, batch and loss, which must not be given.
        given: the keyword arguments.
        budget: of the machine.

    Raises:
        TypeError: there is something that only a target has.
    """
    __tracebackhide__ = True
    named = [
        *(n for n, v in zip(_TARGET, parts, strict=True) if v is not None),
        *(n for n in _NOT_OF_SCRIPTS if given.get(n) is not None),
    ]
    if named:
        raise TypeError(f"script= is given, which decides {', '.join(named)} itself")
    started = given["script"]
    if isinstance(started, str):
        started = shlex.split(started)
    options = options_of(given)
    try:
        script = target_scripts.parsed([str(argument) for argument in started])
        return scripts.check_script(script, options, budget=budget)
    except (UsageError, CannotCheckError) as error:
        raise error.with_traceback(None) from None


def assert_equivalent(
    model: Any = None,
    batch: Any = None,
    loss: Callable[..., Any] | None = None,
    **given: Unpack[Settings],
) -> None:
    """Checks as `check` does, and raises unless the report's verdict is equivalent.

    Takes what `check` takes.

    Raises:
        DivergenceError: training differs, or nothing was compared.
        UsageError: an argument is wrong.
        CannotCheckError: the single-process run hangs or dies.
    """
    __tracebackhide__ = True
    raise_unless_equivalent(check(model, batch, loss, **given))


def raise_unless_equivalent(report: Report) -> None:
    """Raises DivergenceError unless the verdict is equivalent."""
    __tracebackhide__ = True
    if report.exit_code != 0:
        raise DivergenceError(report)


def options_of(given: Mapping[str, Any]) -> Options:
    """Returns the options among keyword arguments; None is an option not given.

    Raises:
        TypeError: there is no such argument.
        UsageError: option-value.
    """
    __tracebackhide__ = True
    for key in given:
        if key not in Settings.__annotations__:
            raise TypeError(_unknown(key))
    needless = [name for name in _OF_SCRIPTS if given.get(name) is not None]
    if needless and given.get("script") is None:
        raise TypeError(f"{needless[0]}= is given, but no script=")
    try:
        values = {
            key: settings.read(
                key,
                _plain(value),
                origin=f"{key}=",
                fix=f"correct {key}=",
                modes=CHOICES,
            )
            for key, value in given.items()
            if key not in (*_PARTS, "script") and value is not None
        }
    except UsageError as error:
        raise error.with_traceback(None) from None
    return Options(**values)


def _unknown(key: str) -> str:
    if key == "no_fix":
        return "there is no argument 'no_fix'; it is fix=False"
    known = list(Settings.__annotations__)
    close = difflib.get_close_matches(key.lower().replace("-", "_"), known, n=1)
    meant = f"did you mean {close[0]!r}? There are" if close else "there are"
    return f"there is no argument {key!r}; {meant} {', '.join(known)}"


def _plain(value: Any) -> Any:
    """Returns any sequence or mapping as the list or dict that settings know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return list(value)
    return value


_MAX_LINES = 12  # of a stack: the innermost frames
_MAX_STACKS = 8
_NOTHING = "nothing was compared"


def _failure_text(report: Report) -> str:
    """Returns the terminal report, where ranks failed, and fixed.py: no file has it.

    The first line is all that pytest's summary shows of a test.
    """
    text = terminal.to_text(report, color=False, width=80)
    text = f"{_headline(report)}\n\n{text}"
    stacks = [
        _stack(label, fault)
        for label, run in zip(wording.run_labels(report), report.runs, strict=True)
        for fault in run.faults
        if fault.stack
    ]
    fixed = [f"fixed.py:\n\n{visible(report.fixed)}"] if report.fixed else []
    return "\n".join([text, *stacks[:_MAX_STACKS], *fixed])


def _headline(report: Report) -> str:
    """Returns verdict and causes: "divergent: loss/sum-reduction"."""
    causes = [f.slug for f in report.findings if f.accepted is None]
    causes += [
        status.run_why(report, index)
        for index in range(len(report.runs))
        if status.run_why(report, index) and not causes
    ]
    word = status.WORDS[status.report_status(report)]
    unknown = report.verdict == "divergent"
    nothing = "cause unknown" if unknown else report.ended or _NOTHING
    reasons = ", ".join(dict.fromkeys(causes)) or nothing
    return one_line(f"{word}: {reasons}")


def _stack(label: str, fault: Fault) -> str:
    lines = fault.stack.strip().splitlines()
    # faulthandler shows the innermost frame first, tracebacks show it last.
    is_reversed = "most recent call first" in fault.stack
    shown = lines[:_MAX_LINES] if is_reversed else lines[-_MAX_LINES:]
    head = f"{label}, {wording.fault_line(fault)}"
    return "\n".join(visible(line) for line in [head, *shown]) + "\n"
