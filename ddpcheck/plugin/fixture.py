"""What the pytest fixture `ddpcheck` does: the API on ranks of the whole session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddpcheck import api
from ddpcheck.ranks import budget
from ddpcheck.report.data import Report

if TYPE_CHECKING:
    from typing_extensions import Unpack


def open_ranks() -> api.WarmRanks:
    """Returns ranks that keep to the machine's budget; they begin to import torch."""
    ranks = api.WarmRanks(budget.of_this_machine())
    ranks.start()
    return ranks


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks a model against its data-parallel self, on warm ranks."""

    ranks: api.WarmRanks
    name: str = ""  # of the test

    def __call__(
        self,
        model: Any = None,
        batch: Any = None,
        loss: Callable[..., Any] | None = None,
        **given: Unpack[api.Settings],
    ) -> Report:
        """Returns the report of a check that found no divergence.

        Takes what `ddpcheck.check` takes.

        Raises:
            DivergenceError: the runs diverge, or nothing could be compared.
            UsageError: the arguments are no target.
            CannotCheckError: the single-process run hangs or dies.
        """
        __tracebackhide__ = True
        report = self.ranks.check(model, batch, loss, name=self.name, **given)
        api.raise_unless_equivalent(report)
        return report
