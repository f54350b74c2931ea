"""ddpcheck: does data-parallel training equal single-process training?

    import ddpcheck

    report = ddpcheck.check(model, batch, loss, world_sizes=[2, 4])
    ddpcheck.assert_equivalent("mymodel.py")
    rows = 64 if ddpcheck.in_check() else 1_000_000  # in a script
    x, y = ddpcheck.global_batch(draw())  # in a script whose data no DataLoader gives

Importing it imports none of its modules: each name is looked up when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddpcheck.api import (
        CannotCheckError,
        DivergenceError,
        assert_equivalent,
        check,
        warm_ranks,
    )
    from ddpcheck.errors.problem import UsageError
    from ddpcheck.ranks.processes import in_check
    from ddpcheck.ranks.sharing import global_batch
    from ddpcheck.report.data import Finding, Report, Run

__all__ = [
    "CannotCheckError",
    "DivergenceError",
    "Finding",
    "Report",
    "Run",
    "UsageError",
    "assert_equivalent",
    "check",
    "global_batch",
    "in_check",
    "warm_ranks",
]
_HOMES = {
    "Finding": "report.data",
    "Report": "report.data",
    "Run": "report.data",
    "UsageError": "errors.problem",
    "global_batch": "ranks.sharing",
    "in_check": "ranks.processes",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415

    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'api')}")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
