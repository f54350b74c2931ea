"""The results of the probes for one step: plain data, one value per rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, TypedDict, cast

from ddpcheck.run.intervention import Output, Switch
from ddpcheck.run.spec import Defect, RunSpec

if TYPE_CHECKING:
    from torch import Tensor

    from ddpcheck.compare.trace import Index

_SMOOTH = 1e-4  # of what a large change makes: less is no slope


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """One call of one module on a rank, given the reference's inputs.

    `rel_diff` compares its output with the rank's rows of the reference's output; None
    where they cannot be matched. `input_diff` is how far its real input was from the
    reference's before it was replaced: not 0 where the code that calls it differs.
    """

    name: str
    kind: str
    call: int
    rel_diff: float | None
    caller: str = ""
    caller_kind: str = ""
    input_diff: float = 0.0
    # Of the inputs that differ some are those of the single-process first samples;
    # others of its inputs are those of the rank's own.
    repeats_first: bool = False
    keeps_some_input: bool = False
    remakes_input: bool = False  # a hook of the target's on the module makes its input
    rows_first: bool = True  # the samples are dimension 0 of its output
    # Its outputs of no dimension, a term of the loss for one: own, one process's.
    numbers: tuple[tuple[float, float], ...] = ()
    keeps_shape: bool = False  # one tensor in, one of its shape and dtype out
    draws: bool = False  # random numbers itself, by torch's own generator
    collectives: int = 0
    writes_buffers: bool = False
    # With the single-process buffers, which its own are not, and which it writes no
    # more, it returns the single-process rows.
    through_buffers: bool = False
    writes_parameters: bool = False
    has_other_weights: bool = False  # of its own, than at its first call
    scales_by_frequency: bool = False  # nn.Embedding(scale_grad_by_freq=True)
    is_batch_norm: bool = False  # a class derived from torch's
    is_synchronized: bool = False  # one that is, over ranks
    is_scale_invariant: bool = False  # known of those that keep state or communicate
    normalises: bool = False  # behaves as one: scale invariant, keeps statistics


def worst_of(calls: list[ModuleCall]) -> ModuleCall:
    """Returns the call whose output differs most, with all ranks' properties."""
    return replace(
        max(calls, key=lambda c: c.rel_diff or 0.0),
        input_diff=max(c.input_diff for c in calls),
        repeats_first=any(c.repeats_first for c in calls),
        keeps_some_input=all(c.keeps_some_input for c in calls),
        remakes_input=any(c.remakes_input for c in calls),
        collectives=max(c.collectives for c in calls),
        writes_buffers=any(c.writes_buffers for c in calls),
        writes_parameters=any(c.writes_parameters for c in calls),
        has_other_weights=any(c.has_other_weights for c in calls),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """d loss / d (a module output) on a rank, against the reference's same rows.

    `ratio` is the least-squares factor rank / reference, `residual` what it leaves,
    relative. A sound loss has ratio W and residual 0: DDP divides by W later.
    """

    key: str
    module: str
    micro: int = 0  # number of the micro-batch
    # Other outputs are computed from it too: a quantity inside the network.
    on_the_way: bool = False
    # What a mixture of a mean and a sum leaves unexplained, relative.
    mixed: float = math.inf
    # With the batch taken twice: 2 for a sum over samples, 1 for a mean.
    doubled: float | None = None
    # Sum over the last dimension of rank - W * reference, relative; 0 behind a softmax.
    row_sum: float = math.inf
    # How far rows are from their mean, relative: 0 behind a mean over samples.
    row_spread: float = math.inf
    # The same of the gradient at the softmax of what is cut, infinite without one.
    share_spread: float = math.inf
    # The values add up to 1 over the last dimension, and none is below 0.
    are_probabilities: bool = False
    # Some rows, pixels or tokens have a gradient on one side, and none on the other.
    selects: bool = False
    # Some classes have one on one side only, of those that a softmax takes.
    selects_columns: bool = False
    ratio: float
    residual: float
    norm: float

    @property
    def is_chosen(self) -> bool:
        """Whether others decide what has a gradient here, or its direction."""
        return self.selects or self.selects_columns or self.ratio < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """A micro-batch: samples `start` to `start + size` of the global batch."""

    start: int
    size: int
    counts: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """d loss / d parameter, not through any module output that was cut."""

    name: str
    ratio: float
    residual: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The single-process gradient as a combination of the ranks' gradients.

    `residual`: what the best one leaves of it, relative.
    """

    residual: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """What one rank found."""

    rank: int
    modules: tuple[ModuleCall, ...] = ()
    cuts: tuple[Cut, ...] = ()
    direct: tuple[Direct, ...] = ()
    # The model's outputs, for each addend of the loss; empty where it has one.
    addends: tuple[tuple[Cut, ...], ...] = ()
    # As `group_factor`, for each addend; empty where it is not known.
    addend_factors: tuple[float | None, ...] = ()
    loss: float | None = None
    # A constant that the loss is divided by: as many samples, or elements, as the
    # single-process run has.
    divides_by_all: int | None = None
    after_backward: float = 1.0  # what the step multiplies gradients by; cuts have it
    collectives: int = 0
    # What is another one where no group is in sight; see probes/rank.py.
    asks_others: tuple[str, ...] = ("loss", "after backward")
    # What all gradients at the cuts are multiplied by where one is; None: many factors.
    group_factor: float | None = None
    counts: dict[str, float] = field(default_factory=dict)
    # What no combination of the ranks' gradients explains of one process's, relative;
    # None where the loss has cuts, which say more.
    span: Span | None = None
    rng: int = 0
    held_rng: int = 0  # of generators of numpy's and Python's that the target holds
    draws: int = 0  # random operations in the step
    own_seeds: frozenset[int] = frozenset()  # of generators of the target's own
    micros: tuple[Micro, ...] = ()  # empty where the step has one batch
    written: tuple[str, ...] = ()  # modules whose buffers the model's forward writes
    # And whose own parameters, with the sums that are left of them.
    written_parameters: dict[str, tuple[float, ...]] = field(default_factory=dict)
    # And those that are written when a backward begins, by the step too.
    written_by_backward: tuple[str, ...] = ()
    moves_rows: bool = False  # a collective: but those that add or compare, no rows
    # In order: F a forward through a wrapper, P a call past it, B a backward.
    events: str = ""
    past_wrapper: tuple[str, ...] = ()  # modules that are called past their wrapper
    defects: tuple[Defect, ...] = ()  # collectives that returned something else
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Couplings:
    """How much the loss at one sample depends on others (probes/coupling.py).

    By key, the largest change relative to the largest gradient; absent: unknown.

    `nudged`: the other outputs moved by a little. `slope`: by very little, per as much
    as for `nudged`; 0 where the loss counts what they decide. `copied`: they became
    copies of one, or their entries moved on by one.
    `unscaled`: what is no one factor of a gradient, or of a part of it, in its change,
    relative to that; 0 for a divisor, where the outputs decide what is counted.
    `targets`: what two changes of the other targets have in no common direction. One
    divisor, a sum of weights, moves a gradient along one direction.
    `ordered`: blocks of samples stood in another order (probes/coupling.py).
    """

    nudged: dict[str, float] = field(default_factory=dict)
    slope: dict[str, float] = field(default_factory=dict)
    copied: dict[str, float] = field(default_factory=dict)
    unscaled: dict[str, float] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)
    ordered: dict[str, float] = field(default_factory=dict)

    def strongest(self) -> float | None:
        """Returns the largest of all, None where none is known."""
        found = (self.nudged, self.copied, self.targets, self.ordered)
        return max((v for by_key in found for v in by_key.values()), default=None)

    def count(self, close: float) -> bool:
        """Returns whether all coupling is by a divisor that counts what outputs decide.

        It changes by jumps, and multiplies the gradient of a term by one factor.
        """
        smooth = min(_SMOOTH, close / 10)
        coupled = {k: v for k, v in self.copied.items() if v > close}
        coupled |= {k: v for k, v in self.nudged.items() if v > coupled.get(k, close)}
        return bool(coupled) and all(
            self.slope.get(key, math.inf) <= smooth * change
            and self.unscaled.get(key, math.inf) <= close
            and max(self.targets.get(key, 0.0), self.ordered.get(key, 0.0)) <= close
            for key, change in coupled.items()
        )

    def is_smooth(self) -> bool:
        """Returns whether other outputs that move by very little move a gradient."""
        return any(
            slope > _SMOOTH * max(self.copied.get(key, 0.0), self.nudged.get(key, 0.0))
            for key, slope in self.slope.items()
        )

    def only(self, keys: set[str]) -> Couplings:
        """Returns what is known of these outputs."""
        kept = {
            f.name: {k: v for k, v in getattr(self, f.name).items() if k in keys}
            for f in fields(self)
        }
        return Couplings(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """Parameters that the model's own backward gives a gradient, whatever the loss.

    `of_scores`: by a function that takes what is made of probabilities.
    """

    names: tuple[str, ...] = ()
    of_scores: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How the calls of the model in one step split the samples.

    `sizes`: samples per micro-batch; one entry where there is none. `calls`: of the
    model per micro-batch (2 for a discriminator on real and fake), 0 where unknown.
    `picks`: the model is not given all samples; the one size is what it is given.
    """

    sizes: tuple[int, ...]
    calls: int = 0
    picks: bool = False

    @property
    def count(self) -> int:
        """Number of micro-batches."""
        return len(self.sizes)

    def size(self, number: int) -> int:
        """Returns the samples of a micro-batch; 0 past the last."""
        return self.sizes[number] if number < len(self.sizes) else 0


class ProbeFacts(TypedDict):
    """What a rank's probe reads from the trace of the reference's beside tensors."""

    cuts: list[str]  # keys of the outputs at which the loss is judged alone
    data: set[str]  # of outputs from which no gradient goes back
    trained: set[str]  # of outputs that trained parameters made
    windows: Windows  # the micro-batches of the step
    on_the_way: set[str]  # of outputs from which other outputs are made
    attached: bool  # modules are judged with their graph
    order: Tensor | None  # in which the batch is given; None for its own
    addends: tuple[str, ...]  # what computes each addend of the loss


def of_trace(index: Index) -> ProbeFacts:
    """Returns the facts in the index of a reference's probe."""
    return cast("ProbeFacts", index.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEvidence:
    """What the reference's own probe found.

    `couplings`: 0 for a sum over samples, whatever it is divided by.
    `doubled`: the gradient on the batch taken twice over the gradient on the batch;
    2 for a sum, 1 for a mean. None where no single factor fits.
    """

    trace: str = ""
    loss: float | None = None
    after_backward: float = 1.0  # as a rank's
    couplings: Couplings = field(default_factory=Couplings)
    doubled: float | None = None
    counts: dict[str, float] = field(default_factory=dict)
    frontier: tuple[str, ...] = ()
    addends: tuple[str, ...] = ()  # of the loss: what computes each of them
    direct: tuple[str, ...] = ()  # parameters that the loss itself uses
    whole_outputs: tuple[str, ...] = ()  # paths of outputs without samples
    # Those whose samples lie otherwise than one per row.
    laid_outputs: tuple[Output, ...] = ()
    direct_is_output: bool = False  # it uses them through such outputs alone
    draws: int | None = None  # random operations, but for those of data loaders
    # Shapes drawn with generators of the target's own.
    own_draws: tuple[tuple[int, ...], ...] = ()
    own_seeds: frozenset[int] = frozenset()  # of these generators
    injected: Injected = field(default_factory=Injected)
    held_draws: bool = False  # with generators of numpy's or Python's that it holds
    micros: tuple[Micro, ...] = ()  # empty where the step has one batch
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """Both sides of one probe."""

    world_size: int
    reference: ReferenceEvidence
    ranks: tuple[RankEvidence, ...]

    def modules(self) -> list[ModuleCall]:
        """Returns the worst call over ranks of every module, in call order.

        Where one of a class normalises, all of it that keep state do: at some numbers a
        norm that limits what it divides by does not look like one.
        """
        calls: dict[tuple[str, int], list[ModuleCall]] = {}
        for rank in self.ranks:
            for call in rank.modules:
                calls.setdefault((call.name, call.call), []).append(call)
        found = [worst_of(some) for some in calls.values()]
        norms = {call.kind for call in found if call.normalises}
        return [
            replace(call, normalises=True)
            if call.kind in norms and call.writes_buffers
            else call
            for call in found
        ]

    def noisy(self, spec: RunSpec) -> set[str]:
        """Returns the modules whose outputs differ by noise, whatever else they do.

        None in a run whose noise follows the sample, or is taken out.
        """
        if spec.noise == "sample" or Switch.CONSTANT_DRAWS in spec.fixes:
            return set()
        return {call.name for rank in self.ranks for call in rank.modules if call.draws}

    def defects(self) -> list[Defect]:
        """Returns collectives that returned something else than they were asked for.

        One of each kind: the worst over ranks and calls, in the order of calls.
        """
        worst: dict[str, Defect] = {}
        for rank in self.ranks:
            for defect in rank.defects:
                known = worst.get(defect.what)
                if known is None or defect.rel_diff > known.rel_diff:
                    worst[defect.what] = defect
        return list(worst.values())


def combined(parts: Sequence[Cut | Direct]) -> tuple[float, float]:
    """Returns the common ratio of several fits, and the relative residual."""
    square = sum(p.norm**2 for p in parts)
    if not square:
        return (parts[0].ratio if parts else 0.0), 0.0
    ratio = sum(p.ratio * p.norm**2 for p in parts) / square
    if not math.isfinite(ratio):
        return ratio, math.inf
    if not all(math.isfinite(p.residual) for p in parts):
        return ratio, math.inf
    left = 0.0
    for p in parts:
        size = max(abs(p.ratio) * p.norm, p.norm)
        left += (p.residual * size) ** 2 + ((p.ratio - ratio) * p.norm) ** 2
    return ratio, math.sqrt(left / square) / max(1.0, abs(ratio))
