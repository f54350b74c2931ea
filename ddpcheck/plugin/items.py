"""Target files as pytest tests: one item per run of the matrix.

Collecting imports neither torch nor the target: the matrix is that of the options,
the target's own `world_sizes` and `simulate` are read from its source. A run that
turns out not to be in the target's matrix is skipped with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from ddpcheck.api import DivergenceError
from ddpcheck.checking import checking, exits, opening, plan
from ddpcheck.checking.plan import Cell
from ddpcheck.errors.problem import UsageError
from ddpcheck.ranks import budget
from ddpcheck.ranks.pool import Pool
from ddpcheck.report.data import Report
from ddpcheck.report.render import numbers, status, terminal
from ddpcheck.run.modes.ddp import DDP
from ddpcheck.run.modes.registry import CHOICES, mode_of
from ddpcheck.run.session import acceptance
from ddpcheck.run.session.assemble import worst_excess
from ddpcheck.run.session.session import CannotCheckError, Session
from ddpcheck.target import settings
from ddpcheck.target.options import SETTINGS, Options
from ddpcheck.target.target import NAMES, TargetRef

WHOLE = "matrix"  # the single item of a target, if its source does not show the matrix
_UNREADABLE = object()
_SIZES = ("world_sizes", "simulate")


def is_target(path: Path, parent: pytest.Collector) -> bool:
    """Returns whether --ddpcheck takes a file for a target.

    A Python file given on the command line; in folders, a file that defines model
    and batch. A file that is named as a test module is a target if it defines them and
    no test.
    """
    if path.suffix != ".py" or path.name == "conftest.py":
        return False
    patterns = parent.config.getini("python_files")
    is_given = parent.session.isinitpath(path)
    named_test = any(fnmatch(path.name, pattern) for pattern in patterns)
    if named_test and not is_given:
        return False
    if is_given and not named_test:
        return True
    names = {"model", "batch"}
    for key in names.copy():
        chosen = parent.config.getoption(f"ddpcheck_{key}_fn")
        names = names - {key} | {chosen or key}
    source = _source(path)
    return names <= _defined(source) and not (named_test and _has_tests(source))


def _source(path: Path) -> ast.Module:
    """Returns the syntax tree; an empty one where there is none to read."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _defined(source: ast.Module) -> set[str]:
    """Returns the names that a module's top level binds."""
    found: set[str] = set()
    for node in source.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {n.id for n in ast.walk(node) if _is_bound(n)}  # type: ignore[attr-defined]
    return found


def _has_tests(source: ast.Module) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(
        isinstance(node, kinds) and node.name.lower().startswith("test")
        for node in source.body
    )


def _is_bound(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _own_sizes(source: ast.Module, setting: str) -> Any:
    """Returns the target's own world sizes, None without any."""
    value: Any = None
    for node in ast.walk(source):
        if isinstance(node, ast.Name) and node.id == setting and _is_bound(node):
            value = _UNREADABLE
    for node in source.body:
        named = isinstance(node, ast.Assign) and [
            t.id for t in node.targets if isinstance(t, ast.Name)
        ] == [setting]
        if named:
            try:
                value = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            except ValueError:
                return _UNREADABLE
    return value


class TargetFile(pytest.File):
    """One target."""

    def collect(self) -> Iterator[RunItem]:
        """Yields an item per run that the options ask for."""
        try:
            options = options_of(self.config, self.path)
            cells = self._cells(options)
        except UsageError as error:
            raise self.CollectError(str(error)) from None
        for cell in cells:
            name = WHOLE if cell is None else str(cell)
            yield RunItem.from_parent(self, name=name, cell=cell, options=options)

    def _cells(self, options: Options) -> list[Cell | None]:
        chosen = {name: self._sizes(options, name) for name in _SIZES}
        if any(sizes is _UNREADABLE for sizes in chosen.values()):
            return [None]
        return [*plan.cells(replace(options, **chosen))]

    def _sizes(self, options: Options, setting: str) -> Any:
        sizes = getattr(options, setting)
        if sizes is None:
            sizes = _own_sizes(_source(self.path), setting)
            if sizes is _UNREADABLE:
                return sizes
            sizes = sizes or options.project.get(setting)
        if sizes is None:
            return None
        origin = f"`{setting}` in {self.path.name}"
        return settings.read(setting, sizes, origin=origin)

    def ref(self) -> TargetRef:
        """Returns the target, with the names that the options give."""
        chosen = {name: _option(self.config, f"{name}_fn") for name in NAMES}
        names = tuple(sorted((k, v) for k, v in chosen.items() if v is not None))
        return TargetRef(path=str(self.path), names=names)


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"ddpcheck_{name}")


def options_of(
    config: pytest.Config, path: Path, without: Collection[str] = ()
) -> Options:
    """Returns the options of a check, of the command line and of the project.

    Args:
        config: of the session.
        path: of what is checked.
        without: settings that it does not have.

    Raises:
        UsageError: option-value, or about pyproject.toml.
    """
    names = {one.name for one in SETTINGS if "plugin" in one.places} - {*without}
    given = {n: value for n in names if (value := _option(config, n)) is not None}
    project = settings.from_project(path, modes=CHOICES)
    project = {n: value for n, value in project.items() if n not in without}
    return settings.make(given, project, modes=CHOICES)


class CheckItem(pytest.Item):
    """A check that fails with its report."""

    def attach(self, report: Report) -> None:
        """Adds the numbers to --junit-xml and the report to -rA."""
        for run in report.runs[:1]:
            self.user_properties += [
                ("compared", status.compared(run)),
                ("worst_excess", numbers.excess(worst_excess(run))),
            ]
        text = terminal.to_text(report, color=False, width=80)
        if report.exit_code == 0:  # otherwise it is the failure's own text
            self.add_report_section("call", "ddpcheck", text)

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], *_: Any
    ) -> Any:
        """Returns the report; a traceback through this file would be no help."""
        error = excinfo.value
        if isinstance(error, CannotCheckError):
            return exits.cannot_check_text(error.message, error.detail)
        if isinstance(error, DivergenceError | UsageError):
            return str(error).strip("\n")
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Returns the place of the item, for the names in pytest's output."""
        return self.path, None, f"{self.path.name}: {self.name}"


class RunItem(CheckItem):
    """One run of a target's matrix, or all of them."""

    def __init__(self, *, cell: Cell | None, options: Options, **rest: Any) -> None:
        super().__init__(**rest)
        self.cell, self.options = cell, options

    def runtest(self) -> None:
        """Makes the run on the ranks of this process, and judges it."""
        assert isinstance(self.parent, TargetFile)
        bench = _bench(self.config)
        report = bench.check(self.parent.ref(), self.options, self.cell)
        self.attach(report)
        if self.cell is None:
            if report.exit_code != 0:
                raise DivergenceError(report)
        else:
            self._judge(report, self.cell)

    def _judge(self, report: Report, cell: Cell) -> None:
        """Passes, skips or fails as the first run of the report did."""
        if not report.runs:
            why = {item.what: item.why for item in report.not_compared}
            pytest.skip(why[str(cell)])
        if report.ended:  # what else differs in the run was not looked for
            raise DivergenceError(report)
        state = status.run_status(report, 0)
        if state == "accepted":
            pytest.xfail(_reason(report))
        is_left = acceptance.is_left_to_others(report.runs[0])
        if state == "not-checked" and is_left and self.options.modes is None:
            # As in the whole matrix, where DistributedDataParallel decides.
            pytest.skip(status.run_why(report, 0))
        if state != "equivalent":
            raise DivergenceError(report)


def _reason(report: Report) -> str:
    found = [f for f in report.findings if 0 in f.runs]
    return "; ".join(f"{f.slug}: {f.accepted}" for f in found)


def _without_unused_acceptances(report: Report) -> Report:
    """Drops the warnings on what is accepted in other runs: this report has one run."""
    warnings = [text for text in report.warnings if acceptance.NOT_FOUND not in text]
    return replace(report, warnings=tuple(warnings))


class Bench:
    """The ranks of one target at a time, and the references made on them.

    A target's ranks have imported it once; they stay until another target's run.
    """

    def __init__(self) -> None:
        self._budget = budget.of_this_machine()
        self._key: tuple[TargetRef, Options] | None = None
        self._pool: Pool | None = None
        self._session: Session | None = None
        # Errors before any run: the other items raise them again at once, and do not
        # each wait for the same hang.
        self._errors: dict[tuple[str, str] | None, Exception] = {}

    def check(self, ref: TargetRef, options: Options, cell: Cell | None) -> Report:
        """Returns the report of a run, or of all; the run's is its first.

        Raises:
            UsageError: the target or an option is wrong.
            CannotCheckError: the target cannot be run at all.
        """
        if self._key != (ref, options):
            self.close()
            self._key = (ref, options)
        kind = None if cell is None else (cell.batch_norm, cell.loss)
        for known in (None, kind):
            if known in self._errors:
                raise self._errors[known]
        try:
            session = self._opened(ref, options)
        except (UsageError, CannotCheckError) as error:
            self._errors[None] = error
            raise
        try:
            return self._check(session, options, cell)
        except (UsageError, CannotCheckError) as error:
            self._errors[kind] = error
            raise
        except BaseException:
            self.close()  # in an unknown state; the next run starts anew
            raise

    def _check(self, session: Session, options: Options, cell: Cell | None) -> Report:
        def check(*only: Cell) -> Report:
            return checking.check(
                session.pool, session.ref, options, session=session, only=only or None
            )

        if cell is None:
            return check()
        report = check(cell)
        by_replicas = mode_of(cell.mode).explained_by == "replicas"
        if by_replicas and any(run.verdict == "divergent" for run in report.runs):
            # What breaks both is diagnosed under DDP, where each rank can be probed.
            report = check(cell, replace(cell, mode=DDP.name))
        return _without_unused_acceptances(report)

    def _opened(self, ref: TargetRef, options: Options) -> Session:
        if self._session is None:
            self._pool = opening.pool_for(ref, options)
            self._pool.start()
            opening.wait_for_imports(self._pool, ref)
            self._session = Session(self._pool, ref, budget=self._budget)
        return self._session

    def close(self) -> None:
        """Ends the ranks."""
        if self._pool is not None:
            self._pool.close()
        self._pool = self._session = self._key = None
        self._errors = {}
        if self._budget is not None:
            self._budget.close()


_BENCH: pytest.StashKey[Bench] = pytest.StashKey()


def _bench(config: pytest.Config) -> Bench:
    """Returns the bench of this process, closed when its session ends."""
    if _BENCH not in config.stash:
        config.stash[_BENCH] = bench = Bench()
        config.add_cleanup(bench.close)
    return config.stash[_BENCH]
