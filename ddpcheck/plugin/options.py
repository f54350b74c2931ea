"""The pytest plugin: the fixture `ddpcheck`, target files and scripts as tests.

It costs nothing where it is not used: of ddpcheck only this module and the table of
settings are imported before a test asks for the fixture or --ddpcheck is given.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ddpcheck.target import options

if TYPE_CHECKING:
    from ddpcheck.api import WarmRanks
    from ddpcheck.plugin.fixture import Checker

_FIXTURE = "ddpcheck"
_RANKS: pytest.StashKey[WarmRanks] = pytest.StashKey()


def pytest_addoption(
    parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager
) -> None:
    """Adds --ddpcheck, and the command's options under the same names."""
    _skip_assert_rewriting(pluginmanager)
    group = parser.getgroup(
        "ddpcheck", "data-parallel training equals single-process training"
    )
    group.addoption(
        "--ddpcheck",
        action="store_true",
        help="collect target files (model, batch, loss) as tests, one per run; "
        "a run with accepted findings only is an xfail",
    )
    group.addoption(
        "--ddpcheck-run",
        action="append",
        metavar='"train.py ARGS"',
        help="check a training script as `ddpcheck run` does, one test per world size; "
        'repeatable; a module: --ddpcheck-run="-m MODULE ARGS". Without a path, or '
        "--ddpcheck, nothing else is collected",
    )
    for one in options.SETTINGS:
        if "plugin" in one.places:
            group.addoption(
                "--ddpcheck-" + one.option[2:],
                dest=f"ddpcheck_{one.name}",
                help=one.help.replace("\n", " "),
                **one.argument(),
            )
    for name in options.DEFINITIONS:
        group.addoption(
            f"--ddpcheck-{name.replace('_', '-')}-fn",
            metavar="NAME",
            help=f"what target files call `{name}`",
        )


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker that the plugin sets on tests which start ranks."""
    text = "ddpcheck: starts data-parallel ranks; set by the plugin"
    config.addinivalue_line("markers", text)
    if _asks_for_scripts_only(config):
        config.args = []


def _asks_for_scripts_only(config: pytest.Config) -> bool:
    """Returns whether the command line has scripts and nothing else to collect.

    Scripts that the project's settings of pytest name are additional tests.
    """
    typed = any(
        argument.partition("=")[0] == "--ddpcheck-run"
        for argument in map(str, config.invocation_params.args)
    )
    has_paths = config.args_source is config.ArgsSource.ARGS
    return typed and not has_paths and not config.getoption("ddpcheck")


def _skip_assert_rewriting(pluginmanager: pytest.PytestPluginManager) -> None:
    """Spares pytest from rewriting the `assert`s of this package, as of any plugin's.

    They state invariants, not expectations; rewriting them takes a second per worker.
    pytest has no public API for it; with another private one, they are rewritten.
    """
    hook = getattr(pluginmanager, "rewrite_hook", None)
    marked = getattr(hook, "_must_rewrite", None)
    if isinstance(marked, set):
        marked.discard("ddpcheck")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, Any, Any]:
    """Collects target files under --ddpcheck, instead of pytest's own modules."""
    found = yield
    if not parent.config.getoption("ddpcheck"):
        return found
    from ddpcheck.plugin import items as pytest_items  # noqa: PLC0415

    if not pytest_items.is_target(file_path, parent):
        return found
    return [pytest_items.TargetFile.from_parent(parent, path=file_path)]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Adds the scripts to what is collected of the command line."""
    report = yield
    started = collector.config.getoption("ddpcheck_run")
    if started and isinstance(collector, pytest.Session):
        from ddpcheck.plugin import scripts  # noqa: PLC0415

        report.result = [*(report.result or ()), *scripts.files(collector, started)]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what starts ranks, so that -m can choose it."""
    for item in items:
        if _uses_fixture(item) or getattr(item, "is_of_script", False):
            item.add_marker(pytest.mark.ddpcheck)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts to import torch if this process will need it for certain."""
    config = session.config
    if config.getoption("collectonly"):
        return
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    using = sum(map(_uses_fixture, session.items))
    # Every worker of pytest-xdist collects all tests, and is given some of them.
    if using and using >= workers:
        _ranks(config)


def _uses_fixture(item: pytest.Item) -> bool:
    return _FIXTURE in getattr(item, "fixturenames", ())


def _ranks(config: pytest.Config) -> WarmRanks:
    """Returns the ranks of this process, which stay warm over its session."""
    if _RANKS not in config.stash:
        from ddpcheck.plugin.fixture import open_ranks  # noqa: PLC0415

        config.stash[_RANKS] = ranks = open_ranks()
        config.add_cleanup(ranks.close)
    return config.stash[_RANKS]


@pytest.fixture
def ddpcheck(request: pytest.FixtureRequest) -> Checker:
    """Returns `check(model, batch, loss, world_sizes=[2, 4], ...)`.

    It takes what a target file defines, or script="train.py ARGS". It raises
    DivergenceError, whose text is the terminal report, if data-parallel training
    differs from single-process training.
    """
    from ddpcheck.plugin.fixture import Checker  # noqa: PLC0415

    return Checker(_ranks(request.config), name=request.node.name)
