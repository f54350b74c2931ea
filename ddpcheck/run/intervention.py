"""Interventions: the changes of a run that prove or disprove a cause.

Each is an object with its description (`describe`), place and kind. A `RunSpec` and a
rule's proposal hold them as `fixes`. The ranks apply them to the run, never to the
user's file: see ddpcheck/run/interventions.

To add one without parameters, add a member to `Switch`; one with parameters is a class
of its own. Then apply it in ddpcheck/run/interventions/apply.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique
from typing import ClassVar, Literal, TypeVar

Kind = Literal["fix", "gather", "substitution"]
Place = Literal[
    "data",
    "model",
    "wrapper",
    "replicas",
    "loss",
    "backward",
    "optimizer",
    "collectives",
    "state",
    "compiler",
]

_ONE = "the single-process run"
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The description that all interventions of one sort share.

    `effect`: what it does, in words that follow "with". It may contain "{factor}" and
    "{names}"; `of_none` replaces the names if there are none. `place`: where it acts.
    `kind`: "fix" does what a fix of the file would do. "substitution" gives a rank
    single-process values or removes what differs, and "gather" gives it the samples of
    all ranks: these repair almost anything, so they show where a cause is. A "gather"
    is also a fix if the fix is to gather. `in_reference`: the single-process run has it
    too.
    """

    effect: str
    place: Place
    kind: Kind = "fix"
    of_none: str = "all parameters"
    in_reference: bool = False


def _fix(place: Place, effect: str) -> Meaning:
    return Meaning(effect=effect, place=place)


def _given(place: Place, effect: str, *, in_reference: bool = False) -> Meaning:
    return Meaning(
        effect=effect,
        place=place,
        kind="substitution",
        of_none="the model",
        in_reference=in_reference,
    )


def _gathered(place: Place, effect: str) -> Meaning:
    return Meaning(effect=effect, place=place, kind="gather", of_none="the model")


def _in_all(place: Place, effect: str) -> Meaning:
    return Meaning(effect=effect, place=place, in_reference=True)


class Intervention:
    """The interface of all interventions."""

    __slots__ = ()

    @property
    def meaning(self) -> Meaning:
        """Its description, which does not depend on parameters."""
        raise NotImplementedError

    @property
    def listed(self) -> tuple[str, ...]:
        """The names that its sentence lists."""
        found: tuple[str, ...] = getattr(self, "names", ())
        return found

    @property
    def place(self) -> Place:
        """Where it acts."""
        return self.meaning.place

    @property
    def kind(self) -> Kind:
        """Whether it does what a fix would do."""
        return self.meaning.kind

    @property
    def in_reference(self) -> bool:
        """Whether the single-process run has it too."""
        return self.meaning.in_reference


@unique
class Switch(Intervention, Enum):
    """The interventions without parameters."""

    # The model's forward sees no process group, as a replica of DataParallel's.
    MODEL_WITHOUT_GROUP = _fix(
        "model", "the process group hidden from the model's forward"
    )
    BACKWARD_WITHOUT_GROUP = _fix(
        "model",
        "the process group hidden from the backward of the model's own functions",
    )
    FROZEN_NORMS = _in_all("model", "torch's batch norms frozen in all processes")
    NONREENTRANT_CHECKPOINT = _fix(
        "model", "torch.utils.checkpoint with use_reentrant=False"
    )
    # What samples are reduced to without gradient is that of all ranks.
    STATISTICS_OF_ALL_RANKS = _fix(
        "model",
        "statistics without gradient computed over the samples of all ranks",
    )
    CONSTANT_DRAWS = _given(
        "model",
        "constants in place of random numbers in all processes",
        in_reference=True,
    )

    # In addition to GlobalLoss: steps see no other rank until backward.
    LOSS_WITHOUT_RANKS = _gathered(
        "loss", "the other ranks hidden from the step until backward"
    )

    # DDP is built again with one setting changed.
    FIND_UNUSED = _fix("wrapper", "DDP built with find_unused_parameters=True")
    # The same, with requires_grad=True while it is built.
    REWRAP_TRAINABLE = _fix(
        "wrapper", "DDP built again while all parameters require gradients"
    )
    REWRAP = _fix("wrapper", "DDP built again on the model as it is now")
    STATIC_GRAPH_OFF = _fix("wrapper", "DDP built with static_graph=False")
    STATIC_GRAPH_ON = _fix("wrapper", "DDP built with static_graph=True")
    BUFFER_BROADCAST_OFF = _fix("wrapper", "DDP built with broadcast_buffers=False")
    BUFFER_BROADCAST_ON = _fix("wrapper", "DDP built with broadcast_buffers=True")
    BUCKET_VIEW_OFF = _fix("wrapper", "DDP built with gradient_as_bucket_view=False")
    NO_COMM_HOOKS = _fix("wrapper", "DDP built without its communication hooks")
    COMM_HOOKS_ON_MEANS = _fix(
        "wrapper", "communication hooks applied to the mean of the ranks' gradients"
    )
    # DDP has the attributes of the model inside.
    CALLS_THROUGH_DDP = _fix(
        "wrapper", "methods of the model inside called through DDP's forward"
    )
    PLAIN_OUTPUT = _fix("wrapper", "the output's tensors passed to DDP as a tuple")
    # no_sync does nothing.
    ALWAYS_SYNC = _fix("wrapper", "every backward reduced, within no_sync as well")
    BROADCAST_BEFORE_STEP = _fix(
        "wrapper", "weights and buffers broadcast from rank 0 before every step"
    )
    BROADCAST_AFTER_STEP = _fix(
        "wrapper", "weights and buffers broadcast from rank 0 after every step"
    )
    JOIN_DIVIDES_BY_ALL = _fix("wrapper", "join() that divides by all ranks")
    JOIN_DIVIDES_BY_LEFT = _fix(
        "wrapper", "join() that divides by the ranks that have data left"
    )

    MEAN_OF_SCALARS = _fix("replicas", "the replicas' scalars gathered to their mean")
    KEPT_REPLICA_STATE = _fix("replicas", "what each replica assigns to itself kept")
    SAME_THREAD = _fix("replicas", "the replicas run in the caller's thread")
    OWN_OBJECTS = _fix("replicas", "lists and dicts of its own for each replica")
    SPLIT_SAMPLES_ALONE = _fix(
        "replicas", "only samples, and lists of them, split over replicas"
    )
    PADDED_GATHER = _fix("replicas", "outputs padded to the longest before the gather")
    REPLICA_PARAMETERS = _fix("replicas", "parameters() of the replicas filled")

    FILLED_GRADIENTS = _fix(
        "backward", "gradients of zeros where another rank has a gradient"
    )
    CONTIGUOUS_GRADIENTS = _fix("backward", "gradients that are contiguous in memory")
    AVERAGED_AUTOGRAD_GRAD = _fix(
        "backward", "the results of torch.autograd.grad averaged over ranks"
    )
    COPIED_SAVED_TENSORS = _fix(
        "backward",
        "copies of the tensors that backward needs and that are overwritten",
    )
    # Post-accumulate hooks run when backward, and DDP, are done.
    HOOKS_AFTER_BACKWARD = _fix(
        "backward", "parameters' hooks run after backward is done"
    )
    PARAMETERS_UNHOOKED = _given(
        "backward",
        "the hooks on parameters removed in all processes",
        in_reference=True,
    )
    # Autograd functions that return their input also pass its gradient on unchanged.
    ALL_UNHOOKED = _given(
        "backward",
        "the hooks on tensors and modules removed in all processes",
        in_reference=True,
    )
    KEPT_SUMS = _given(
        "backward",
        "gradients left as they are between two backwards in all processes",
        in_reference=True,
    )

    # No backward is reduced.
    AVERAGED_AT_UPDATE = _fix(
        "optimizer",
        "gradients averaged over ranks once, when the optimizer steps",
    )
    CLIPPED_AT_UPDATE = _in_all(
        "optimizer",
        "gradients clipped once in all processes, when the optimizer steps",
    )
    GRADIENTS_AS_LEFT = _given(
        "optimizer",
        "gradients left in all processes as backward makes them",
        in_reference=True,
    )

    COLLECTIVES_WITH_GRADIENT = _fix("collectives", "collectives that carry gradients")
    COLLECTIVES_ATTACHED = _fix(
        "collectives", "collectives that carry gradients, to detached tensors as well"
    )
    # And DDP has a group of gloo's.
    EXACT_COLLECTIVES = _fix(
        "collectives", "collectives that return the results torch defines"
    )
    # Of several rows per sample, block by block.
    BLOCK_ORDER = _fix(
        "collectives",
        "gathered rows in the order of the single process",
    )
    MEAN_OF_COUNTS = _fix(
        "collectives",
        "the mean over ranks in place of sums that carry no gradient",
    )
    MEAN_OF_SUMS = _fix(
        "collectives", "the mean over ranks in place of sums that carry gradients"
    )
    MEAN_OF_NUMBERS = _fix(
        "collectives",
        "the mean over ranks in place of each number that a rank reads",
    )
    # Of whole numbers it is the sum.
    SUM_OF_NUMBERS = _fix(
        "collectives",
        "the sum or the mean over ranks in place of each number that a rank reads",
    )
    FIRST_RANK = _fix(
        "collectives", "rank 0 given as the answer to code that asks its rank"
    )
    # The work of the first rank is skipped.
    SECOND_RANK = _given(
        "collectives", "rank 1 given as the answer to code that asks its rank"
    )

    STRIDED_SHARDS = _fix("data", "rank r given every W-th sample from sample r on")
    # The target's own loaders shard their data: see interventions/sharding.py.
    LOADER_STRIDES = _fix("data", "the target's own data sharded in turn")
    LOADER_PARTS = _fix("data", "the target's own data sharded in parts")
    LOADER_UNPADDED = _fix("data", "the target's own data sharded without repeats")
    SHARDED_LISTS = _fix("data", "lists with a number per sample sharded as well")
    BATCH_WITHOUT_GROUP = _fix("data", "batch() called without a process group")
    EMPTY_BATCHES = _fix("data", "empty batches for ranks that have fewer")

    STATE_BROADCAST = _fix(
        "state",
        "buffers and untrained parameters broadcast from rank 0 after every step",
    )

    PYTHON_REDUCER = _fix("compiler", "DDP's Python reducer where backward is compiled")
    COMPILED_WHOLE = _fix("compiler", "torch.compile with optimize_ddp=False")
    COMPILE_OFF = _fix("compiler", "nothing compiled")

    @property
    def meaning(self) -> Meaning:
        """What it does."""
        found: Meaning = self.value
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncBatchNorm(Intervention):
    """torch's batch norms are synchronised over ranks: those of these names, or all."""

    meaning: ClassVar[Meaning] = Meaning(
        effect="{names} synchronised over ranks",
        place="model",
        of_none="torch's batch norms",
    )
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalModule(Intervention):
    """A module sees the rows of all ranks, as in the single process.

    `name` is "" for the model as a whole. `hides`: it sees no process group.
    """

    name: str = ""
    hides: bool = True

    @property
    def meaning(self) -> Meaning:
        """What it does, with and without the process group."""
        return _HIDING if self.hides else _IN_GROUP

    @property
    def listed(self) -> tuple[str, ...]:
        """The name of the module."""
        return (self.name,)


_HIDING = _gathered("model", "the samples of all ranks given to {names}")
_IN_GROUP = _gathered(
    "model",
    "the samples of all ranks given to {names}, which can still use collectives",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An output of the model, and how samples lie in it.

    `path`: of the tensor. `blocks`: so many blocks of all samples lie one after the
    other in dimension `dim`; 0: it has no samples. `is_list`: it is a list with an item
    per sample.
    """

    path: str
    blocks: int = 0
    dim: int = 0
    is_list: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalLoss(Intervention):
    """The loss sees the outputs and targets of all ranks.

    `modules`: their outputs are gathered, "" or none for the model as a whole.
    `parameters`: those that the loss itself uses. `outputs`: those of the model that
    are not a row per sample.
    """

    meaning: ClassVar[Meaning] = _gathered(
        "loss", "the loss computed on the samples of all ranks"
    )
    modules: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    outputs: tuple[Output, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalLossOfOutputs(Intervention):
    """The same for some tensors of the output alone.

    The others get the gradient of the rank's own loss. `whole`: paths of tensors that
    have no samples.
    """

    meaning: ClassVar[Meaning] = _given(
        "loss",
        "the gradients of some outputs taken from the loss on the samples of all ranks",
    )
    paths: tuple[str, ...]
    whole: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale(Intervention):
    """Interventions that multiply gradients by a factor."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleLoss(Scale):
    """Every backward starts from the factor."""

    meaning: ClassVar[Meaning] = _fix(
        "loss", "the gradient of the loss multiplied by {factor}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleDirect(Scale):
    """Scales the gradient of parameters used outside their module, as in a penalty."""

    meaning: ClassVar[Meaning] = _fix(
        "backward",
        "the gradients of parameters that are used outside their module multiplied by "
        "{factor}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTerms(Scale):
    """Scales the gradient of numbers that no data reach, where others are added."""

    meaning: ClassVar[Meaning] = _fix(
        "backward", "the gradients of terms without samples multiplied by {factor}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleGradients(Scale):
    """Scales what every backward gives these parameters, or all."""

    meaning: ClassVar[Meaning] = _fix(
        "backward", "the gradients of {names} multiplied by {factor}"
    )
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOutputs(Scale):
    """Scales the gradient of these outputs of the model."""

    meaning: ClassVar[Meaning] = _fix(
        "backward", "the gradients of some outputs multiplied by {factor}"
    )
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountLoss(Intervention):
    """Every backward starts from W * n_r / N, n_r counted on the rank's targets."""

    meaning: ClassVar[Meaning] = _fix(
        "loss", "each rank's loss weighted by its share of the count over all ranks"
    )
    countable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountMicroBatches(Intervention):
    """Every micro-batch is weighted by its share of one count, in the reference too.

    The count is one over all micro-batches and ranks. `by_number`: each loss is divided
    by the number of micro-batches, too.
    """

    countable: str
    by_number: bool = True

    @property
    def meaning(self) -> Meaning:
        """What it does to means, and to sums."""
        return _MEANS if self.by_number else _SUMS


_MEANS = _in_all(
    "backward",
    "every micro-batch weighted in all processes by its share of one count over all "
    "micro-batches and ranks",
)
_SUMS = _in_all(
    "backward",
    "every micro-batch's sum divided in all processes by one count over all "
    "micro-batches and ranks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageGradients(Intervention):
    """The gradients of these parameters are averaged over ranks after each backward."""

    meaning: ClassVar[Meaning] = _fix(
        "backward", "the gradients of {names} averaged over ranks"
    )
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLabels(Intervention):
    """An arange over the rank's rows counts from its first row.

    `within_forward`: within the model's forward, too. `samples`: those of all ranks,
    where ranks have different numbers of them; else 0.
    """

    meaning: ClassVar[Meaning] = _fix(
        "collectives",
        "an arange over the rank's rows counted from the rank's first row",
    )
    within_forward: bool = False
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipAllReduces(Intervention):
    """No all_reduce runs between backward and the optimizer's step.

    Nor one of few numbers within the step; `of_gradients`: nor one of any.
    """

    meaning: ClassVar[Meaning] = _fix(
        "collectives", "no all_reduce between backward and the optimizer's step"
    )
    of_gradients: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawGlobalBatch(Intervention):
    """Generators of the target's own draw for the global batch.

    `shapes` are those of the single process's draws.
    """

    meaning: ClassVar[Meaning] = _fix(
        "model",
        "the random numbers of the global batch drawn on every rank, which keeps its "
        "own rows",
    )
    shapes: tuple[tuple[int, ...], ...] = ()


Boundary = Literal[
    "batches",  # the samples of all ranks
    "orders",  # of shuffled data; the single process notes them
    "start",  # the first weights and buffers
    "addends",  # of the loss, at the model's outputs; the single process notes them
    "gradients",  # at every update
    "schedule",  # the optimizer's numbers at every update
    "state",  # buffers and untrained parameters of modules, after a step
    "writes",  # the same whenever a step writes them
    "beside",  # external state, after a step
]

_BOUNDARIES: dict[Boundary, Meaning] = {
    "batches": _given("data", "the samples of all ranks given to every rank"),
    "orders": _given(
        "data", f"data shuffled in the order of {_ONE}", in_reference=True
    ),
    "start": _given("wrapper", f"the first weights and buffers of {_ONE} on all ranks"),
    "addends": _given(
        "backward",
        f"the gradients of some terms of the loss taken from {_ONE}",
        in_reference=True,
    ),
    "gradients": _given("optimizer", f"the gradients of {_ONE} at every update"),
    "schedule": _given(
        "optimizer",
        f"the learning rate and the optimizer's other numbers set to those of {_ONE}",
    ),
    "state": _given(
        "state",
        f"buffers and untrained parameters of {{names}} set to those of {_ONE} after "
        "every step",
    ),
    "writes": _given(
        "state",
        f"buffers and untrained parameters of {{names}} set to those of {_ONE} "
        "whenever a step writes them",
    ),
    "beside": _given("state", f"external state set to that of {_ONE}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute(Intervention):
    """A rank has the values of the single process at a boundary of its run.

    `names`: of modules for "state" and "writes", of the external state for "beside";
    for "addends" the keys of the tensors at which they begin within the model, none for
    the model's output. `numbers`: of the addends.
    """

    boundary: Boundary
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()

    @property
    def meaning(self) -> Meaning:
        """What it does at its boundary."""
        return _BOUNDARIES[self.boundary]


Interventions = tuple[Intervention, ...]

T = TypeVar("T", bound=Intervention)

_BY_HAND = "gradients averaged over ranks after each backward instead of by DDP"
_NOISE = {"sample": "the same random numbers drawn for each sample"}


def found(fixes: Iterable[Intervention], kind: type[T]) -> T | None:
    """Returns the first of this class, None where there is none."""
    return next((fix for fix in fixes if isinstance(fix, kind)), None)


def substituted(
    fixes: Iterable[Intervention], boundary: Boundary
) -> frozenset[str] | None:
    """Returns the names of what all fixes substitute there, None where none does."""
    chosen = [
        fix for fix in fixes if isinstance(fix, Substitute) and fix.boundary == boundary
    ]
    return frozenset(n for fix in chosen for n in fix.names) if chosen else None


def addends(fixes: Iterable[Intervention]) -> dict[int, frozenset[str]]:
    """Returns the addends that fixes substitute, and the tensors at which they begin.

    >>> one = Substitute(boundary="addends", numbers=(0,))
    >>> other = Substitute(boundary="addends", numbers=(2,), names=("router#0/output",))
    >>> addends((one, other))
    {0: frozenset(), 2: frozenset({'router#0/output'})}
    """
    places: dict[int, frozenset[str]] = {}
    for fix in fixes:
        if isinstance(fix, Substitute) and fix.boundary == "addends":
            for number in fix.numbers:
                places[number] = places.get(number, frozenset()) | set(fix.names)
    return dict(sorted(places.items()))


def describe(
    fixes: Iterable[Intervention], *, noise: str = "", by_hand: bool = False
) -> str:
    """Returns the interventions of a run, in words that follow "with".

    Args:
        fixes: of the run. Those of one sort are one sentence, with the names of all.
        noise: the noise mode of the run, if the previous run had another.
        by_hand: gradients were averaged explicitly instead of by DDP.

    >>> describe([ScaleLoss(factor=2.0), AverageGradients(names=("a", "b"))])
    'the gradient of the loss multiplied by 2 and the gradients of a, b averaged over \
ranks'
    """
    alike: dict[Meaning, list[Intervention]] = {}
    for fix in fixes:
        alike.setdefault(fix.meaning, []).append(fix)
    parts = [_NOISE[noise]] if noise in _NOISE else []
    parts += [_said(meaning, members) for meaning, members in alike.items()]
    return " and ".join([*parts, _BY_HAND] if by_hand else parts)


def _said(meaning: Meaning, members: list[Intervention]) -> str:
    first = members[0]
    if isinstance(first, Scale):  # the first decides
        factor, members = f"{first.factor:.3g}", [first]
    else:
        factor = ""
    names = [name for fix in members for name in fix.listed if name]
    return meaning.effect.format(factor=factor, names=_cut(names, meaning.of_none))


def _cut(names: list[str], of_none: str) -> str:
    shown = ", ".join(names[:_MOST_NAMES]) or of_none
    rest = len(names) - _MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def shows_all_rows(fix: Intervention) -> bool:
    """Returns whether it lets a loss or a module see the samples of all ranks."""
    return isinstance(fix, GlobalLoss) or (isinstance(fix, GlobalModule) and fix.hides)


def width(fix: Intervention) -> int:
    """Returns how much it mends beside one cause.

    0: nothing else. 1: whatever changes a sum over ranks, or a write, within a step, or
    uses gradients between two backwards. 2: whatever a loss or a module does with a
    shard.
    """
    if shows_all_rows(fix):
        return 2
    is_of_writes = isinstance(fix, Substitute) and fix.boundary == "writes"
    return int(is_of_writes or fix in (Switch.MEAN_OF_SUMS, Switch.ALWAYS_SYNC))


def kinds(fixes: Iterable[Intervention]) -> set[Kind]:
    """Returns of what kinds these are."""
    return {fix.kind for fix in fixes}
