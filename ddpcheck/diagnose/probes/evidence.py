"""The results of the probes for one step, as plain data.

A probe compares one step of every rank with the same step of the reference, which is
the single-process run. A cut is a module output that is replaced by the reference's, so
that the gradient arriving there is d loss / d output alone: see probes/cuts.py.
"""

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

_SMOOTH = 1e-4  # a slope is more than this fraction of what a large change causes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCall:
    """One call of one module on a rank, given the reference's inputs.

    `rel_diff`: difference of the output from the rank's rows of the reference's output;
    None if they cannot be matched. `input_diff`: difference of the module's own input,
    before it was replaced; not 0 if the code that calls the module differs.
    """

    name: str
    kind: str
    call: int
    rel_diff: float | None
    caller: str = ""
    caller_kind: str = ""
    input_diff: float = 0.0
    # An input that differs equals the reference's for the first samples of the batch.
    # `keeps_some_input`: another input equals the reference's for the rank's samples.
    repeats_first: bool = False
    keeps_some_input: bool = False
    remakes_input: bool = False  # a hook of the target replaces the module's input
    rows_first: bool = True  # the samples are dimension 0 of the output
    # (own value, single-process value) of scalar outputs, as of a term of the loss.
    numbers: tuple[tuple[float, float], ...] = ()
    keeps_shape: bool = False  # the output has the shape and dtype of the only input
    draws: bool = False  # the module itself draws from torch's default generator
    collectives: int = 0
    writes_buffers: bool = False
    # The output equals the reference's if the module's buffers are replaced by the
    # reference's, and not written again.
    through_buffers: bool = False
    writes_parameters: bool = False
    has_other_weights: bool = False  # own parameters differ from the first call
    scales_by_frequency: bool = False  # nn.Embedding(scale_grad_by_freq=True)
    is_batch_norm: bool = False  # derived from a class of torch
    is_synchronized: bool = False  # a batch norm over all ranks
    is_scale_invariant: bool = False  # tried if it keeps state or calls collectives
    normalises: bool = False  # a norm, or behaves as one


def worst_of(calls: list[ModuleCall]) -> ModuleCall:
    """Returns the call whose output differs most, with the properties of all ranks."""
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
    """d loss / d (module output) on a rank, compared with the reference's same rows.

    `ratio`: least-squares factor rank / reference. `residual`: its relative residual. A
    correct loss has the ratio W and the residual 0, since DDP divides by W later.
    """

    key: str
    module: str
    micro: int = 0  # number of the micro-batch
    # Other outputs are computed from this one: it is inside the network.
    on_the_way: bool = False
    # Relative residual of the fit W * (mean's gradient) + (sum's gradient).
    mixed: float = math.inf
    # Factor if the batch is repeated: 2 for a sum over samples, 1 for a mean.
    doubled: float | None = None
    # Relative sum of rank - W * reference over the last dimension; 0 at the input of a
    # softmax.
    row_sum: float = math.inf
    # Relative distance of rows from their mean: 0 for the mean of a linear function.
    row_spread: float = math.inf
    # The same for the gradient at the softmax of the output, infinite without one.
    share_spread: float = math.inf
    # The values are at least 0 and add up to 1 over the last dimension.
    are_probabilities: bool = False
    # Some rows, pixels or tokens have a gradient on one side only.
    selects: bool = False
    # Some classes have a gradient on one side only, at the input of a softmax.
    selects_columns: bool = False
    ratio: float
    residual: float
    norm: float

    @property
    def is_chosen(self) -> bool:
        """Whether other samples decide which entries have a gradient, or its sign."""
        return self.selects or self.selects_columns or self.ratio < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """A micro-batch: samples `start` to `start + size` of the global batch."""

    start: int
    size: int
    counts: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Direct:
    """d loss / d parameter, not through any cut."""

    name: str
    ratio: float
    residual: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The single-process gradient as the best linear combination of the ranks'.

    `residual`: relative. `weights`: the factor of each rank.
    """

    residual: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """The evidence of one rank."""

    rank: int
    shard: int = 0  # checksum of the tensors that it is given; 0 if unknown
    modules: tuple[ModuleCall, ...] = ()
    cuts: tuple[Cut, ...] = ()
    direct: tuple[Direct, ...] = ()
    # For each addend of the loss, the model's outputs; empty for a single addend.
    addends: tuple[tuple[Cut, ...], ...] = ()
    # `group_factor` of each addend; empty if it is not known.
    addend_factors: tuple[float | None, ...] = ()
    loss: float | None = None
    # Constant divisor of the loss that is a count over the global batch.
    divides_by_all: int | None = None
    after_backward: float = 1.0  # factor of gradients after backward; cuts contain it
    # Factor of the sum of all ranks' gradients, where the step makes that.
    of_sum: float | None = None
    collectives: int = 0
    # Which results change when the process group is hidden: see probes/rank.py.
    asks_others: tuple[str, ...] = ("loss", "after backward")
    # Factor of the group in all gradients at cuts; None if there is no single one.
    group_factor: float | None = None
    counts: dict[str, float] = field(default_factory=dict)
    # None if trained outputs are cut: cuts locate more.
    span: Span | None = None
    rng: int = 0  # checksum of torch's generator when the forward begins
    held_rng: int = 0  # checksum of numpy and Python generators of the target
    draws: int = 0  # random operations in the step
    own_seeds: frozenset[int] = frozenset()  # of torch generators of the target
    micros: tuple[Micro, ...] = ()  # empty for a step without micro-batches
    written: tuple[str, ...] = ()  # modules whose buffers the model's forward writes
    # Modules whose own parameters it writes, with sums of the written values.
    written_parameters: dict[str, tuple[float, ...]] = field(default_factory=dict)
    # Modules whose parameters have changed when a backward begins, also by the step.
    written_by_backward: tuple[str, ...] = ()
    moves_rows: bool = False  # a collective sends samples to other ranks
    # In order: F a forward of a wrapper, P a call past the wrapper, B a backward.
    events: str = ""
    past_wrapper: tuple[str, ...] = ()  # modules called past their wrapper
    is_redirected: bool = False  # the wrapper calls another method than forward
    defects: tuple[Defect, ...] = ()  # collectives with wrong results
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Couplings:
    """How much the loss at one sample depends on other samples (probes/coupling.py).

    Each is the largest change of the gradient by key, relative to the largest gradient.
    A key that is absent is unknown.

    `nudged`: change if the other outputs change by a little. `slope`: change for a tiny
    perturbation, scaled up to the size of `nudged`; 0 if the loss counts decisions.
    `copied`: change if the other outputs become copies of one, or their entries are
    rolled. `unscaled`: part of the change that is not a multiple of the gradient,
    relative to the change; 0 for a divisor that counts decisions. `targets`: if the
    other targets change in two ways, the part of one change orthogonal to the other. A
    divisor, as a sum of weights, changes a gradient in one direction only.
    `ordered`: change if blocks of samples are swapped.
    """

    nudged: dict[str, float] = field(default_factory=dict)
    slope: dict[str, float] = field(default_factory=dict)
    copied: dict[str, float] = field(default_factory=dict)
    unscaled: dict[str, float] = field(default_factory=dict)
    targets: dict[str, float] = field(default_factory=dict)
    ordered: dict[str, float] = field(default_factory=dict)

    def strongest(self) -> float | None:
        """Returns the largest coupling, None if none is known."""
        found = (self.nudged, self.copied, self.targets, self.ordered)
        return max((v for by_key in found for v in by_key.values()), default=None)

    def count(self, close: float) -> bool:
        """Returns whether all coupling comes from a divisor that counts decisions.

        Such a divisor jumps, and multiplies the gradient of a term by one factor.
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
        """Returns whether a tiny change of other outputs changes a gradient."""
        return any(
            slope > _SMOOTH * max(self.copied.get(key, 0.0), self.nudged.get(key, 0.0))
            for key, slope in self.slope.items()
        )

    def only(self, keys: set[str]) -> Couplings:
        """Returns the couplings of these outputs."""
        kept = {
            f.name: {k: v for k, v in getattr(self, f.name).items() if k in keys}
            for f in fields(self)
        }
        return Couplings(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """Parameters to which the model's own backward adds a gradient, for any loss.

    `of_scores`: by a function whose input is computed from probabilities.
    """

    names: tuple[str, ...] = ()
    of_scores: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How the model calls of one step split the samples.

    `sizes`: samples per micro-batch; one entry without micro-batches. `calls`: model
    calls per micro-batch (2 for a discriminator on real and fake), 0 if unknown.
    `picks`: the step selects samples for the model; the one size is their number.
    `deal`: so many one after the other are dealt to the ranks, one to each: the
    micro-batches of a script that accumulates longer in a single process. 1: a rank's
    follow each other.
    """

    sizes: tuple[int, ...]
    calls: int = 0
    picks: bool = False
    deal: int = 1

    @property
    def count(self) -> int:
        """Number of micro-batches."""
        return len(self.sizes)

    def size(self, number: int) -> int:
        """Returns the samples of a micro-batch; 0 past the last."""
        return self.sizes[number] if number < len(self.sizes) else 0


class ProbeFacts(TypedDict):
    """Facts in the trace of the reference's probe that a rank's probe reads."""

    cuts: list[str]  # keys of the outputs that are cut
    data: set[str]  # keys of outputs that need no gradient
    trained: set[str]  # keys of outputs that are computed from parameters
    windows: Windows  # the micro-batches of the step
    on_the_way: set[str]  # keys of outputs from which other outputs are computed
    attached: bool  # cuts stay in the graph
    order: Tensor | None  # of the batch's rows; None: as they are
    addends: tuple[str, ...]  # the operation that computes each addend of the loss


def of_trace(index: Index) -> ProbeFacts:
    """Returns the facts in the index of a reference's probe."""
    return cast("ProbeFacts", index.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEvidence:
    """The evidence of the reference's probe.

    `couplings`: 0 for a sum over samples, whatever the divisor.
    `doubled`: gradient on the repeated batch / gradient on the batch; 2 for a sum, 1
    for a mean, None if no single factor fits.
    """

    trace: str = ""
    loss: float | None = None
    after_backward: float = 1.0  # factor of gradients after backward
    couplings: Couplings = field(default_factory=Couplings)
    doubled: float | None = None
    counts: dict[str, float] = field(default_factory=dict)
    frontier: tuple[str, ...] = ()
    addends: tuple[str, ...] = ()  # the operation that computes each addend
    direct: tuple[str, ...] = ()  # parameters that the loss itself uses
    whole_outputs: tuple[str, ...] = ()  # paths of outputs without samples
    # Outputs that do not have one row per sample.
    laid_outputs: tuple[Output, ...] = ()
    direct_is_output: bool = False  # through outputs without samples only
    draws: int | None = None  # random operations, without those of data loaders
    # Shapes drawn from torch generators of the target.
    own_draws: tuple[tuple[int, ...], ...] = ()
    own_seeds: frozenset[int] = frozenset()  # of these generators
    injected: Injected = field(default_factory=Injected)
    held_draws: bool = False  # from numpy or Python generators of the target
    micros: tuple[Micro, ...] = ()  # empty for a step without micro-batches
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvidence:
    """Both sides of one probe."""

    world_size: int
    reference: ReferenceEvidence
    ranks: tuple[RankEvidence, ...]

    def modules(self) -> list[ModuleCall]:
        """Returns the worst call over ranks of every module, in call order.

        If one module of a class normalises, all of the class with state do: a norm with
        a lower bound for its divisor is not scale invariant for small values.
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
        """Returns the modules whose outputs differ because they draw random numbers.

        Empty for a run in which draws belong to samples, or are constant.
        """
        if spec.noise == "sample" or Switch.CONSTANT_DRAWS in spec.fixes:
            return set()
        return {call.name for rank in self.ranks for call in rank.modules if call.draws}

    def defects(self) -> list[Defect]:
        """Returns collectives with wrong results.

        One of each kind: the worst of all ranks and calls, in the order of calls.
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
