"""A mode: one way to train a target, as plain fields and functions.

The command-line process reads them and imports no torch: code for ranks imports it
inside functions, or is named as text, "package.module:function".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ddpcheck.ranks.messages import Seat
from ddpcheck.report.data import NotCompared
from ddpcheck.run.facts import RankFacts, Sizes
from ddpcheck.run.spec import RankResult, RunSpec
from ddpcheck.target.target import Target, TargetRef

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import nn

    from ddpcheck.ranks.worker import Context
    from ddpcheck.run.steps import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class InRank:
    """The arguments of a mode's functions in a rank.

    `facts` are those that the rank returns with its result; a mode may add to them.
    `around_replica` returns the context in which a replica computes the rows (start,
    number) of the batch.
    """

    target: Target
    spec: RunSpec
    seat: Seat
    facts: RankFacts
    find_unused: bool
    around_replica: Callable[[int, int], Any]


def even(batch_size: int, world_size: int) -> tuple[int, ...]:
    """Returns the sizes of shards that differ by one sample at most."""
    base, extra = divmod(batch_size, world_size)
    return tuple(base + (rank < extra) for rank in range(world_size))


def _one_process(sizes: Sizes, _: int) -> int:
    return sizes.trained


def _same(context: Context, _: TargetRef, __: RunSpec) -> Context:
    return context


def _bare(_: InRank, model: nn.Module) -> nn.Module:
    return model


def _nothing(_: InRank, __: Training) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way to train a target.

    What users see:
    `name`: in --modes and reports; `title`: its full name. `is_choice`: --modes may
    name it. `is_default`: it runs without --modes, unless the reference has one of the
    facts of `left_out_where`, (fact, why). `unsynchronised`: listed as not compared if
    batch norm is to be synchronized and the mode cannot do it.
    `where`: ends the sentence "it needs about 3 GiB ...".

    Its processes:
    `is_ranks`: each process is a rank, with its shard and a process group; else a
    single process does all. `servers`: processes in addition to the ranks.
    `shard_sizes` of (batch size, world size). `bytes_at_work` of (sizes, world size):
    of all processes. `passes` of (world size): its time, in multiples of the
    single-process time.

    What runs in them:
    `entry_point`: of every process. `enter`: returns the context with which a rank
    continues, after which its process is used for no other run if the context is new;
    or the result of a process that is not a rank. `wrap`: returns the model to train.
    `around_training`: entered around all steps.

    Comparison, and records for the diagnosis:
    `has_replicas`: a process holds a replica of the model for each shard. A module is
    then called once per replica, scalars are gathered into a vector, and gradients of
    zeros mean None. `is_wrapped`: the target's own wrapper, or DDP, decides how
    gradients are reduced; the parameters it holds are recorded. `notes_rewrites`:
    writes to weights outside the optimizer are recorded. `cannot_run`: the reason for a
    rank that raises, if that is no fault of the target. `explained_by`: the search that
    explains a divergent run: "ranks" probes it; "replicas" first tries causes that
    ranks have too; "stand-in" searches on a DDP run that diverges equally; "server"
    tries the rules of the parameter server first, then a stand-in; "" for modes that
    are no choice.
    """

    name: str
    title: str
    entry_point: str
    is_choice: bool = False
    is_default: bool = False
    left_out_where: tuple[tuple[Literal["has_wrap", "asks_distributed"], str], ...] = ()
    unsynchronised: NotCompared | None = None
    where: str = "for {mode} at world size {world_size}"
    is_ranks: bool = False
    servers: int = 0
    shard_sizes: Callable[[int, int], tuple[int, ...]] = even
    bytes_at_work: Callable[[Sizes, int], int] = _one_process
    passes: Callable[[int], float] = lambda _: 1.0
    enter: Callable[[Context, TargetRef, RunSpec], Context | RankResult] = _same
    wrap: Callable[[InRank, nn.Module], nn.Module] = _bare
    around_training: Callable[[InRank, Training], AbstractContextManager[None]] = (
        _nothing
    )
    has_replicas: bool = False
    is_wrapped: bool = False
    notes_rewrites: bool = False
    cannot_run: str = ""
    explained_by: Literal["", "ranks", "replicas", "stand-in", "server"] = ""

    def __post_init__(self) -> None:
        """Refuses a choice of --modes whose divergences no search would explain."""
        if self.is_choice and not self.explained_by:
            raise ValueError(f"mode {self.name} is a choice and needs `explained_by`")

    def processes(self, world_size: int) -> int:
        """Returns how many processes a run has, 0 for one without a process group."""
        return world_size + self.servers if self.is_ranks else 0

    def replicas(self, world_size: int) -> int:
        """Returns how often a process calls each module for a step's batch."""
        return world_size if self.has_replicas else 1
