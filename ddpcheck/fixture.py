"""What the pytest fixture `ddpcheck` does: objects of a test module into a target."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpcheck.check import PRELOAD_MODULES, check
from ddpcheck.options import Options
from ddpcheck.ranks.pool import Pool, Preload
from ddpcheck.render import terminal
from ddpcheck.report import Report
from ddpcheck.target import Target, TargetRef


class DivergenceError(AssertionError):
    """Data-parallel training is not the training of one process."""

    def __init__(self, report: Report) -> None:
        super().__init__("\n" + terminal.to_text(report, color=False, width=80))
        self.report = report


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks a model against its data-parallel self, on warm ranks."""

    pool: Pool

    def __call__(
        self,
        model: Any,
        batch: Any,
        loss: Callable[..., Any] | None = None,
        *,
        optimizer: Callable[..., Any] | None = None,
        wrap: Callable[..., Any] | None = None,
        train_step: Callable[..., Any] | None = None,
        world_sizes: Sequence[int] | None = None,
        modes: Sequence[str] | None = None,
        noise: str = "asis",
        accept: Mapping[str, str] | None = None,
    ) -> Report:
        """Returns the report of a check that found no divergence.

        Raises:
            DivergenceError: the runs diverge, or nothing could be compared.
            UsageError: the arguments are no target.
        """
        __tracebackhide__ = True
        target = Target(
            name=getattr(model, "__name__", type(model).__name__),
            model=model,
            batch=batch,
            loss=loss,
            optimizer=optimizer,
            wrap=wrap,
            train_step=train_step,
        )
        parts = (model, batch, loss, optimizer, wrap, train_step)
        options = Options(
            world_sizes=None if world_sizes is None else tuple(world_sizes),
            modes=None if modes is None else tuple(modes),
            noise=noise,
            accept=dict(accept or {}),
        )
        report = check(self.pool, TargetRef(payload=_pickled(target, parts)), options)
        if report.exit_code != 0:
            raise DivergenceError(report)
        return report


def open_pool() -> Pool:
    """Returns a pool whose imports are done; close it."""
    pool = Pool(Preload(modules=PRELOAD_MODULES))
    try:
        pool.start()
        pool.wait_for_imports()
    except BaseException:
        pool.close()
        raise
    return pool


def _pickled(target: Target, parts: Sequence[Any]) -> bytes:
    """Returns the target pickled by value: ranks cannot import a test module."""
    import cloudpickle  # type: ignore[import-untyped]  # noqa: PLC0415

    names = {getattr(part, "__module__", None) for part in parts}
    own = [
        sys.modules[name]
        for name in names
        if name in sys.modules and not _is_installed(sys.modules[name])
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        data: bytes = cloudpickle.dumps(target)
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)
    return data


def _is_installed(module: Any) -> bool:
    path = getattr(module, "__file__", None) or ""
    return not path or "site-packages" in path or module.__name__ == "__main__"
