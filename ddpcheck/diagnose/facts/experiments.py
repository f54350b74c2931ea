"""Named experiments: variations of a divergent run that tell causes apart.

A rule runs nothing. It reads the result of an experiment from the case; where the case
has none yet, the search makes that run, once, and asks the rule again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ddpcheck.report.data import Run
from ddpcheck.run.intervention import Interventions, Substitute
from ddpcheck.run.modes.averaged import AVERAGED
from ddpcheck.run.spec import RunSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A variation of a run, compared with a reference that is varied alike.

    `name`: what varies. `changes`: fields of the run's RunSpec and their values.
    `fixes`: interventions in addition to those in force.
    """

    name: str
    changes: tuple[tuple[str, Any], ...] = ()
    fixes: Interventions = ()

    def of(self, spec: RunSpec) -> RunSpec:
        """Returns the spec of the experiment for a run of this spec."""
        return spec.but(**dict(self.changes), fixes=(*spec.fixes, *self.fixes))


class WantedError(Exception):
    """A rule asks for the result of an experiment that the case does not have."""

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment.name)
        self.experiment = experiment


def one_rank() -> Experiment:
    """Returns the run with one rank, where there is nothing to reduce."""
    return Experiment(name="one rank", changes=(("world_size", 1),))


def equal_shards(world_size: int) -> Experiment:
    """Returns the run with the same shard on every rank: all counts are equal."""
    return Experiment(name="equal shards", changes=(("tile", world_size),))


def other_order(seed: int, *fixes: Any) -> Experiment:
    """Returns one step on the same samples in a random order."""
    name = f"samples in order {seed}" + (", strided shards" if fixes else "")
    return Experiment(
        name=name, changes=(("order", seed), ("steps", 1)), fixes=tuple(fixes)
    )


def with_fixes(name: str, *fixes: Any) -> Experiment:
    """Returns the run with interventions in force."""
    return Experiment(name=name, fixes=tuple(fixes))


# The update judged separately: the run that fixes a loss gives all samples to the code
# after it, too.
GIVEN_GRADIENTS = with_fixes(
    "the single-process gradients at every update", Substitute(boundary="gradients")
)


def averaged_by_hand(name: str, *fixes: Any) -> Experiment:
    """Returns the run with interventions, its gradients averaged without DDP."""
    changes = (("mode", AVERAGED.name),)
    return Experiment(name=name, changes=changes, fixes=tuple(fixes))


def answered(
    question: Callable[[], T],
    results: dict[Experiment, Run],
    make: Callable[[Experiment], Run],
) -> T:
    """Returns what `question` returns, making the experiments that it asks for.

    Args:
        question: reads `results`; raises WantedError where one is missing.
        results: of the case, by experiment; the new ones are added.
        make: runs an experiment.
    """
    try:
        return question()
    except WantedError as wanted:
        results[wanted.experiment] = make(wanted.experiment)
    return answered(question, results, make)
