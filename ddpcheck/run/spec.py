"""Specification and results of a run: plain data that crosses processes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ddpcheck.errors.problem import Problem
from ddpcheck.ranks.messages import Outcome, Raised
from ddpcheck.report.data import Quantity
from ddpcheck.run.facts import Digest, HeldOtherwise, RankFacts, ReferenceFacts
from ddpcheck.run.intervention import Interventions

NATIVE = "native"  # RunSpec.constants: no tensor of the target is cast
FINE_RTOL = 1e-9  # that of float64; at it rounding in float32 is a difference
SAMPLES = "samples"  # the countable that is the size of a shard
CUT_OFF = "it did not end within --timeout-s"  # of a run that may be no hang
EMULATED = "under which DataParallel is emulated on one device"  # torch lacks it
ONE_SIDED = "only one side returns it"  # why an output is not compared
IDLE = -2  # for the number of the DDP object, of a forward under no_grad


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run of a target.

    `mode` "averaged" is data parallelism without DDP's reducer: every rank computes its
    local gradients, then all gradients are averaged explicitly, with any wrapper. DDP
    should give the same result. "sim" is DDP with all ranks played by one process, "ps"
    a parameter server with workers (ddpcheck/run/modes/).

    `fixes` are interventions (see ddpcheck/run/intervention.py).
    `permute` reorders the batch and rescales the backward pass: the same mathematics
    with other rounding, the measure of a run's own noise. 0: no; 1: samples at random;
    W: the W shards, last one first. `jitter` changes the batch, and weights before the
    first step and after each, at random by this fraction of their size: the effect of
    one rounding on the computation. `reround`, with `permute`: results computed in
    float32 are rounded differently.
    """

    mode: str
    world_size: int = 1
    batch_norm: str = "asis"
    loss: str = "asis"
    noise: str = "asis"
    dtype: str = "float64"
    # dtype of the tensors that the model makes on its way (torch.get_default_dtype):
    # float64 for precision, float32 for models that cannot take it. "native": the
    # target's tensors are not cast at all.
    constants: str = "float64"
    device: str = "cpu"
    steps: int = 3
    seed: int = 0
    permute: int = 0
    jitter: float = 0.0
    reround: bool = False
    # The samples in another order, in the reference too: other shards, same batch.
    shuffle: bool = False
    # Seed of a random order of the samples, in the reference too; 0: as they are.
    order: int = 0
    # The first samples alone; 0: the batch as it is.
    rows: int = 0
    # Names of modules that hand on their input, in the reference too (nn.Identity).
    without: tuple[str, ...] = ()
    # Number of shards that become copies of the first: faults of layout stay, those of
    # counts go. 0: the batch as it is.
    tile: int = 0
    fixes: Interventions = ()
    # Records which samples are trained on, in the reference too: see RowsSeen.
    watch: bool = False
    # Of a parameter server: "mean" or "sum" of the gradients, and what multiplies its
    # learning rates.
    ps_reduce: str = "mean"
    ps_lr: float = 1.0
    rtol: float = FINE_RTOL
    # (name, rtol) of weights and buffers with an individual rtol.
    floors: tuple[tuple[str, float], ...] = ()

    def but(self, **changes: Any) -> RunSpec:
        """Returns the spec with some fields changed."""
        return replace(self, **changes)


class RefusedError(Exception):
    """The mode does not support this target; this is no fault of the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The results of one rank after one step.

    `compared`: the tensors that the rank compared, by quantity; they differ between
    ranks if each optimizer has its own share of the parameters. `digests`: set if a
    quantity differs from the reference; ranks are then compared by them (see
    summing.digest).
    """

    step: int
    loss: float | None
    quantities: dict[str, Quantity]
    compared: dict[str, frozenset[str]] = field(default_factory=dict)
    digests: dict[str, tuple[float, ...]] = field(default_factory=dict)
    # Relative size of the smallest single-process update of a weight; set if gradients
    # differ and weights do not.
    least_move: float = 0.0
    # Per update, digests of weights that were updated by wrong gradients: right after
    # the update, and at the end of the step.
    parted: tuple[tuple[Digest, Digest], ...] = ()
    # Whether every such update communicated the gradients of all ranks itself.
    reduces_in_update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCount:
    """Progress: the rank is about to enter the target's n-th collective (1, 2, ...).

    `shape` and `dtype` are of the tensor that it passes, where it passes one; `where`
    is "file.py:12" of the calling code. `of_all`: all ranks take part, no group.
    """

    count: int
    name: str
    step: int = 0
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    where: str = ""
    of_all: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveEnd:
    """Progress: the n-th collective has returned, and was none that runs on."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """A collective that returned something else than it was asked for.

    `what` names it: "all_reduce(AVG) of float64 [3] by gloo". `rel_diff` is max |found
    - right| over max |right|, `ratio` the least-squares factor found / right.
    `is_dense`: the tensor fills its memory; a view with gaps does not.
    """

    what: str
    rel_diff: float
    ratio: float
    is_dense: bool = True
    in_reducer: bool = False  # what DDP's reducer calls, not the user


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegin:
    """The reference begins a step; one that does so again has another dtype."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardCount:
    """Progress: the rank is about to begin its n-th backward (1, 2, ...)."""

    count: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCount:
    """Progress: the rank begins its n-th forward through DDP of a step (2, 3, ...).

    `trains`: gradients are recorded, so that a backward may follow.
    """

    count: int
    step: int
    trains: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSeen:
    """Progress: the model was called, with gradients; a number for each sample.

    Reported if the target has its own step, which may select samples itself.
    """

    step: int
    rows: tuple[int, ...]


FEW = 16  # numbers of external state: a scale, or a weight per task


@dataclass(frozen=True, slots=True, kw_only=True)
class StateApart:
    """A key of an optimizer's state, when a rank's value first differs.

    `update`: the number of updates before that, in `step`.
    `names`: the parameters whose state differs, some of `count`, the worst first.
    `rel_diff`: the largest difference over the key's largest value. `mine` and `one`:
    the rank's number and the single-process one, for a key of single numbers.
    `only_on`: "rank" or "single-process run", where the other side has no such state.
    """

    optimizer: str = ""
    key: str = ""
    update: int = 0
    step: int = 0
    names: tuple[str, ...] = ()
    count: int = 0
    rel_diff: float = 0.0
    mine: float | None = None
    one: float | None = None
    only_on: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedOver:
    """A DDP object that reduces over these ranks alone, and its parameters."""

    ranks: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """Differences of a rank's optimizers and wrappers from the single-process run."""

    states: tuple[StateApart, ...] = ()
    held: HeldOtherwise | None = None
    reduced_over: tuple[ReducedOver, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """The results of one rank after a whole run."""

    rank: int
    steps: tuple[StepResult, ...] = ()
    raised: Raised | None = None
    problem: Problem | None = None
    dtype: str = "float64"
    facts: RankFacts = field(default_factory=RankFacts)
    unlike: Unlike = field(default_factory=Unlike)
    seconds: float = 0.0
    is_clean: bool = True  # the process may be used again

    @property
    def failed(self) -> bool:
        """Whether this rank gave up, so that others may wait for it in vain."""
        return self.raised is not None or self.problem is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """The results of the reference: facts of the target, and the path of its trace."""

    trace: str = ""
    problem: Problem | None = None
    spec: RunSpec | None = None  # with the dtype that worked
    warnings: tuple[str, ...] = ()
    losses: tuple[float | None, ...] = ()
    facts: ReferenceFacts = field(default_factory=ReferenceFacts)
    seconds: float = 0.0
    is_clean: bool = True


@dataclass(slots=True)
class RunOutcome:
    """The results of all ranks of one run."""

    spec: RunSpec
    reference: ReferenceResult
    ranks: list[Outcome] = field(default_factory=list)
    servers: list[Outcome] = field(
        default_factory=list
    )  # processes in addition to the ranks
    seconds: float = 0.0
    cut_off: str = ""  # why missing the time limit proves nothing
    crew_index: int = 0  # of its crew among those of its world size

    def results(self) -> list[RankResult | None]:
        """Returns each rank's result, None if it has none."""
        return list(map(result_of, self.ranks))

    def steps(self, rank: int) -> list[StepResult]:
        """Returns the results of the steps of this rank."""
        return [s for s in self.ranks[rank].progress if isinstance(s, StepResult)]

    def facts(self, rank: int = 0) -> RankFacts:
        """Returns the rank's facts, empty without a result."""
        result = self.results()[rank] if rank < len(self.ranks) else None
        return result.facts if result else {}

    def facts_of_ranks(self) -> list[RankFacts]:
        """Returns every rank's facts."""
        return [self.facts(rank) for rank in range(len(self.ranks))]


def result_of(outcome: Outcome) -> RankResult | None:
    """Returns the result of a process, None if it has none."""
    return outcome.value if isinstance(outcome.value, RankResult) else None
