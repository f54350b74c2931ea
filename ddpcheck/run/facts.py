"""The facts of a run: what rules read beside compared tensors, one line for each key.

`ReferenceFacts` are those of the single-process run (`case.facts`), `RankFacts` those
of every rank (`case.ranks`), `TraceFacts` what ranks read from the reference's trace.
A run that ends early lacks some of them. Measurements of single steps, made by probes,
are in diagnose/probes/evidence.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

if TYPE_CHECKING:
    from ddpcheck.compare.trace import Index

REFUSED: Final = "refused"  # key of RankFacts
REMARKS: Final = "remarks"  # key of RankFacts

Digest = tuple[float, ...]  # see compare/digests.py
Group = dict[str, float]  # the numbers of one parameter group: "lr", ...
Members = tuple[tuple[str, ...], ...]  # the parameters of every group, () for one group
Rows = tuple[int, ...]  # the numbers of the samples of one call, in their order
Parting = dict[int, tuple[Digest, Digest]]  # by step: weights before and after a write
Samples = tuple[dict[str, Digest], ...]  # by step and by part of the batch
Shape = tuple[int, ...]
# By (step, n): permutations of n things, in the order in which they are drawn.
Orders = dict[tuple[int, int], list[list[int]]]
Parts = tuple[tuple[str, int], ...]  # (parameter, elements) of an optimizer's state
Layout = dict[str, Parts]  # by key of the state
# (sketch of the bucket before the hook, sketch of its result, numbers in the bucket)
HookSketch = tuple[tuple[float, ...], tuple[float, ...], int]

LARGE = 64 << 20  # bytes of a model above which a process uses all cores


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOtherwise:
    """External state of a rank that differs from the single-process run.

    `step`: the first after which it differed, by `rel_diff` at most and by `mean_diff`
    on average, with its sign. `is_weight`: it is a parameter, as in an average of the
    model; `is_trained`: it has a gradient; `is_buffer`: it is a buffer. `size`: its
    number of elements. `has_fewer_rows`: it holds the rank's own samples, and is not
    compared.
    """

    step: int
    rel_diff: float = 0.0
    mean_diff: float = 0.0
    is_weight: bool = False
    is_trained: bool = False
    is_buffer: bool = False
    size: int = 0
    has_fewer_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A line of the user's code for which an intervention changed a value.

    `by`: the switch, or the class of the intervention. `place`: "mymodel.py:12".
    `code`: the line, cut at 60 characters. `value`: what the line gets without the
    intervention on this rank, None if it is not a number.
    """

    by: str
    place: str
    code: str
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOtherwise:
    """Parameters of the model, of optimizers and of the loss that are not the same.

    `outside`: an optimizer updates them, and the model does not hold these tensors.
    `left_out`: of the model, with a gradient, and in no optimizer that has stepped.
    `twice`: several optimizers update them. `elsewhere`: a loss of the first step
    depends on them, which neither the model nor an optimizer holds, and which have the
    shape of a parameter. `unread`: an optimizer updates them, and no loss of the first
    step depends on them.
    """

    outside: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def beyond(self, other: HeldOtherwise) -> HeldOtherwise:
        """Returns what of this is not in the other."""
        kept = {
            f.name: tuple(
                name
                for name in getattr(self, f.name)
                if name not in getattr(other, f.name)
            )
            for f in fields(self)
        }
        return HeldOtherwise(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one model's tensors.

    `recorded`: bytes that the reference writes to memory, 0 if it writes to a disk.
    """

    parameters: int
    gradients: int
    optimizer: int
    recorded: int

    @property
    def is_large(self) -> bool:
        """Whether a process computes with all cores."""
        return self.parameters >= LARGE

    @property
    def trained(self) -> int:
        """Bytes of a model in training, without any wrapper."""
        return self.parameters + self.gradients + self.optimizer


@dataclass(frozen=True, slots=True)
class BufferKind:
    """The class that owns a buffer, and whether training changes it."""

    owner: str  # the class of the module that has it
    changes: bool


class UpdateFacts(TypedDict, total=False):
    """The optimizer steps, of the single-process run and of a rank alike."""

    # (step, numbers of every parameter group), in the order of the updates
    schedule: list[tuple[int, list[Group]]]
    members: list[Members]  # names of the parameters in every group, by update


class ReferenceFacts(UpdateFacts, total=False):
    """Facts of the target, as its single-process run shows them."""

    # The target
    model: str  # name of the model's class
    num_parameters: int  # numbers in all parameters
    num_tensors: int  # parameters that are trained
    has_batch_norm: bool  # the model has a batch norm of torch
    has_buffers: bool  # the model has buffers
    has_wrap: bool  # the file has a `wrap`
    has_train_step: bool  # the file has a `train_step`
    settings: dict[str, Any]  # settings in the file, by name
    sizes: Sizes  # bytes of the model in training
    gpus: int  # number of GPUs of this machine, 0 for a run on the CPU
    asks_distributed: bool  # calls torch.distributed, so it may be written for ranks

    # Its batches
    batch_size: int  # samples of the first batch
    samples: Samples  # digests of the global batches
    lists: list[str]  # names of lists in the batch with as many numbers as samples
    alike: bool  # all samples are equal, in every step
    masks: bool  # loss=masked: some entry is -100 or NaN
    collates: bool  # the batches are lists of samples, joined by `collate`
    rows: list[list[Rows]]  # samples of each call of the model, by step
    loads: bool  # iterates a DataLoader
    shuffles: bool  # draws a permutation

    # Random numbers
    draws: int  # random operations of the steps; 1 where they are not counted
    draws_later: bool  # in another step than the first

    # Parameters and their gradients, by name
    untrained: list[str]  # require no gradient at the end
    unused: list[str]  # without a gradient in all updates of the first step
    idle: list[str]  # without a gradient in some update of the first step
    in_turn: list[str]  # frozen at the end, with gradients before, as in a GAN
    untaken: list[str]  # with gradients that no optimizer step has used

    # Steps and optimizer
    optimizer: str  # name of the optimizer's class
    learning_rate: float | None  # of its first parameter group
    updates: int  # optimizer steps of the last step
    backwards: int  # backward passes of an update, above 1 for accumulation
    parts: list[str]  # parts of a training loop that the steps have: "clip", ...
    closes: bool  # an optimizer calls a closure that makes gradients
    loss_dtype: str  # precision of the last loss: "float32"
    unfinished: list[int]  # steps that end with partial sums of gradients
    never_updates: bool  # all steps end so
    nothing: str  # why there is nothing to compare, "" where there is
    at_rest: bool  # gradients that are not zero, and no weight moves

    # The conformance matrix: excess of the predicted gradients, by step
    excess: list[float]


class RankFacts(UpdateFacts, total=False):
    """Facts of a rank's run: its start, what user code did, what stayed uncompared."""

    # The run as a whole
    refused: str  # why this run proves nothing
    remarks: tuple[str, ...]  # sentences on the run, for the warnings of the report
    noise_undefined: str  # why noise cannot follow the sample
    epsilon: float  # of the lowest precision computed in; 0 if unknown
    stream: int | None  # of the generator, where the first step draws its own noise
    samples: Samples  # digests of the global batches, of rank 0

    # The start, before the first step
    rounded_start: dict[str, float]  # relative difference of what differed by rounding
    start_differs: list[str]  # weights that differ from the single-process run
    start_buffers_differ: list[str]  # buffers that do
    start: Digest  # of all weights, where any differ
    start_buffers: Digest  # of all buffers, where any differ
    order: list[str]  # names of the parameters, in the order of the wrapped model

    # What is not compared, with the reason
    not_compared: dict[str, str]  # reason by quantity: "weights of head.bias"
    uncomparable: dict[str, tuple[float, float]]  # calls per step (one process, rank)
    sample_lists: list[str]  # paths of outputs that are lists of samples

    # State outside of model and optimizer: what differs, by name
    beside: dict[str, KeptOtherwise]

    # Events, in order. F: a DDP forward, B: a backward, G: autograd.grad of parameters,
    # [ and ]: no_sync entered and left, S: an optimizer step.
    events: str
    callers: list[int]  # number of the DDP object of each F, -2 under no_grad
    parts: list[str]  # parts of a training loop that the steps have: "clip", ...
    slopes: int  # calls of autograd.grad for other tensors, as an input
    nested_backwards: int  # backwards within a backward, as of a reentrant checkpoint
    backwards_in_forward: int  # backwards while a DDP forward runs
    updates_in_backward: bool  # weights were written while a backward ran

    # The interventions of the run
    acts: list[Act]  # the lines of user code for which they changed a value

    # Use of torch.distributed
    collectives: int  # number of calls by user code
    collectives_in_backward: int  # those of hooks and autograd functions
    asks_rank: int  # calls of get_rank outside of a forward
    joins: list[bool]  # for each join(): it divides by the initial world size

    # Writes into gradients, and hooks
    clips: int  # clippings by norm
    early_clips: int  # those before a later backward of the same step
    reduced_after_clip: bool  # a tensor was reduced after a clipping
    early_changes: int  # writes between two backwards of an update
    changes_alone: int  # writes before the first exchange after a backward
    late_changes: int  # writes before an update without any exchange
    hooked: list[str]  # parameters with hooks, which see the local gradient
    hooks_on_the_way: bool  # other hooks or functions may change gradients
    late_hooks: int  # post-accumulate hooks
    comm_hooks: int  # DDP communication hooks
    hook_sketches: list[HookSketch]  # of the first calls of these

    # The wrapper
    static_graph: bool  # the option static_graph is set
    bucket_view: bool  # the option gradient_as_bucket_view is set
    find_unused: bool  # the option find_unused_parameters is set
    broadcast_buffers: list[str]  # names of the buffers that it broadcasts
    opaque_output: str  # type of an output in which DDP finds no tensors, or ""
    forwards: list[tuple[int, list[str]]]  # (forwards, parameters) of each DDP object
    set_on_wrapper: list[str]  # attributes set on it that the wrapped model has too
    lacks: tuple[str, str]  # (attribute that only the model has, "call/part/value")
    applied_after_wrap: bool  # Module.to or the like was called after it was built

    # Parameters against the wrapper, by name
    outside: list[str]  # in no DDP object
    replaced: list[str]  # in no DDP object, and not the tensor the model began with
    resized: list[str]  # the shape has changed since
    converted: list[str]  # the dtype or the strides have changed since
    moved: list[str]  # the memory has changed since
    gone: list[str]  # the reducer waits for its gradient, the model lacks it
    frozen: list[str]  # required a gradient when it was built
    unfrozen: list[str]  # requires a gradient only since then

    # torch.compile
    compiled: int  # frames compiled so far in this process
    compiled_autograd: bool  # the backward is compiled too
    optimize_ddp: bool | str  # how compiled graphs are split at DDP's buckets

    # The run with gradients averaged by hand alone
    # Parameters without a local gradient, by step; True: used in the output even so.
    local_none: dict[int, dict[str, bool]]
    rewritten_before: Parting  # from the start of a step to its first forward
    rewritten_after: Parting  # from the optimizer's step to the end


class StateFacts(TypedDict):
    """The optimizers' state in the trace, by the number of the optimizer."""

    states: dict[tuple[int, int], Layout]  # after (optimizer, number of updates)
    held: list[tuple[str, ...]]  # names of the parameters of each optimizer
    held_otherwise: HeldOtherwise  # tensors that optimizers and model do not share


class MoreTraceFacts(UpdateFacts, total=False):
    """What ranks read from the trace where it has it."""

    orders: Orders  # the permutations that the single-process run draws
    updates_in_backward: bool  # weights are written while a backward runs
    buffers: dict[str, BufferKind]  # the kind of each buffer


class TraceFacts(MoreTraceFacts, StateFacts):
    """What ranks read from the trace of the single-process run beside tensors."""

    calls: dict[str, int]  # calls of each module in all steps
    shapes: list[list[Shape | None]]  # shapes of the random draws, by step
    unfinished: list[int]  # steps that end with partial sums of gradients


def of_trace(index: Index) -> TraceFacts:
    """Returns the facts in the index of a reference's trace."""
    return cast("TraceFacts", index.facts)
