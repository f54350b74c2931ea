"""What fixes give a rank of one process's: the global batch's, and what it recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ddpcheck.compare import tree
from ddpcheck.compare.trace import Reader
from ddpcheck.run import intervention
from ddpcheck.run.intervention import GlobalLoss, GlobalLossOfOutputs
from ddpcheck.run.interventions import apply as fixes
from ddpcheck.run.interventions import (
    given_addends,
    given_state,
    given_writes,
    global_loss,
    orders,
)
from ddpcheck.run.model import model as models
from ddpcheck.run.model.names import Names
from ddpcheck.run.observe import schedule
from ddpcheck.run.record.facts import reference_start
from ddpcheck.run.spec import RunSpec
from ddpcheck.run.steps import split
from ddpcheck.run.surroundings import loss_function
from ddpcheck.target.target import Target

Loss = Callable[[Any, Any], Any]


def _as_given(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Stands at every place of a rank's run where a fix may give something.

    `bare` is the model inside its wrapper, `batches` the global ones, `rows` this
    rank's (first, number, of all), `step` asks for the current one, from 0.
    """

    target: Target
    spec: RunSpec
    reader: Reader
    bare: nn.Module
    batches: list[Any]
    rows: tuple[int, int, int]
    step: Callable[[], int]
    is_rank: bool  # has a shard; else the global batch

    def around_model(self, wrapped: nn.Module, names: Names) -> nn.Module:
        """Returns the model to train, which may begin as another or see all rows."""
        chosen = self.spec.fixes
        asks = intervention.substituted(chosen, "start") is not None
        initial = reference_start(self.reader, names) if asks else {}
        wrapped = fixes.after_wrap(wrapped, chosen, initial)
        what = intervention.found(chosen, GlobalLoss)
        if what is None:
            return wrapped
        given = wrapped, self.bare, what, self.rows[:2], self._collated
        return global_loss.global_loss(*given)

    def _collated(self) -> global_loss.Own | None:
        """Returns what the model is called with for all samples, and for the rank's."""
        batch = self.batches[self.step()]
        if not isinstance(batch, tree.Collated) or self.target.train_step is not None:
            return None
        start, rows, total = self.rows
        own = batch.rows(slice(start, start + rows))
        whole, mine = (
            models.call(_as_given, split(self.target, each)[0]) for each in (batch, own)
        )
        return whole, mine, total

    def loss(self) -> Loss | None:
        """Returns the loss to train with, None where the target's own step has it."""
        loss, chosen = loss_function(self.target, self.spec), self.spec.fixes
        some = [fix for fix in chosen if isinstance(fix, GlobalLossOfOutputs)]
        if loss is not None and some:
            rows, targets = self.rows[1], self._global_targets
            return global_loss.partly_global(loss, some, rows, targets)
        if loss is None or intervention.found(chosen, GlobalLoss) is None:
            return loss
        return global_loss.without_sight_of_ranks(loss)

    def _global_targets(self) -> Any:
        return split(self.target, self.batches[self.step()])[1]

    @contextlib.contextmanager
    def around_steps(
        self, model: nn.Module, parameters: Callable[[], Mapping[str, Tensor]]
    ) -> Iterator[None]:
        """Gives what one process recorded of its steps, as long as it is entered.

        `parameters` gives what is trained, by name.
        """
        chosen, facts = self.spec.fixes, self.reader.index.facts
        numbers = intervention.addends(chosen)
        with contextlib.ExitStack() as stack:
            if intervention.substituted(chosen, "schedule") is not None:
                numbered, grouped = facts["schedule"], facts["members"]
                stack.enter_context(schedule.enforced(numbered, grouped, parameters))
            if intervention.substituted(chosen, "orders") is not None:
                stack.enter_context(orders.repeated(facts["orders"], self.step))
            if numbers and self.is_rank:
                addends = given_addends.given(
                    (model, self.bare),
                    self.bare,
                    self.reader,
                    self.step,
                    numbers,
                    self.rows,
                    self.spec.world_size,
                )
                stack.enter_context(addends)
            written = intervention.substituted(chosen, "writes")
            if written:
                given = given_writes.given(self.bare, self.reader, self.step, written)
                stack.enter_context(given)
            yield

    def after_step(self, model: nn.Module, names: Names) -> None:
        """Overwrites what is not trained, where that is asked for."""
        modules = intervention.substituted(self.spec.fixes, "state")
        if modules:
            given_state.give(model, names, self.reader, self.step(), modules)
