"""Names of interventions, as a `RunSpec` holds them, and what each of them does.

interventions/apply.py runs them; `SAID` says in plain words what has run, for people
who read a finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

GLOBAL_DRAWS = "noise.global_draws"
ADDENDS = "target.addends"

Kind = Literal["fix", "gather", "substitution"]

_ONE = "the single-process run"
_MOST_NAMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What an intervention does, in words that follow "with".

    `says` may hold "{factor}" and "{names}", which come from the argument; `of_none`
    stands for the names where the argument has none. `kind`: "fix" does what a fix of
    the file would do. "substitution" gives a rank what the single process has, or
    takes away what differs, and "gather" shows the samples of all ranks: these mend
    almost anything, so that they show where a cause is. A "gather" is a fix as well
    where the fix says to gather.
    """

    says: str
    kind: Kind = "fix"
    of_none: str = "all parameters"


def _given(says: str) -> Said:
    return Said(says=says, kind="substitution", of_none="the model")


def _gathered(says: str) -> Said:
    return Said(says=says, kind="gather", of_none="the model")


# By the part of a name before ":".
SAID: dict[str, Said] = {
    "batch_norm.sync": Said(
        says="{names} synchronised over ranks", of_none="torch's batch norms"
    ),
    "module.global": _gathered("the samples of all ranks given to {names}"),
    "module.in_group": _gathered(
        "the samples of all ranks given to {names}, which can still use collectives"
    ),
    "model.alone": Said(says="the process group hidden from the model's forward"),
    "backward.alone": Said(
        says="the process group hidden from the backward of the model's own functions"
    ),
    "loss.scale": Said(says="the gradient of the loss multiplied by {factor}"),
    "loss.count": Said(
        says="each rank's loss weighted by its share of the count over all ranks"
    ),
    "loss.global": _gathered("the loss computed on the samples of all ranks"),
    "loss.alone": _gathered("the other ranks hidden from the step until backward"),
    "loss.partial": _given(
        "the gradients of some outputs taken from the loss on the samples of all ranks"
    ),
    "direct.scale": Said(
        says="the gradients of parameters that are used outside their module "
        "multiplied by {factor}"
    ),
    "gradients.scale": Said(says="the gradients of {names} multiplied by {factor}"),
    "gradients.averaged": Said(says="the gradients of {names} averaged over ranks"),
    "gradients.at_update": Said(
        says="gradients averaged over ranks once, when the optimizer steps"
    ),
    "gradients.filled": Said(
        says="gradients of zeros where another rank has a gradient"
    ),
    "gradients.contiguous": Said(says="gradients that are contiguous in memory"),
    "gradients.one_process": _given(f"the gradients of {_ONE} at every update"),
    "terms.scale": Said(
        says="the gradients of terms without samples multiplied by {factor}"
    ),
    "outputs.scale": Said(says="the gradients of some outputs multiplied by {factor}"),
    "collectives.autograd": Said(says="collectives that carry gradients"),
    "collectives.attached": Said(
        says="collectives that carry gradients, to detached tensors as well"
    ),
    "state.broadcast": Said(
        says="buffers and untrained parameters broadcast from rank 0 after every step"
    ),
    "state.one_process": _given(
        f"buffers and untrained parameters of {{names}} set to those of {_ONE} after "
        "every step"
    ),
    "state.beside": _given(f"what is kept beside the model set to that of {_ONE}"),
    "state.as_written": _given(
        f"buffers and untrained parameters of {{names}} set to those of {_ONE} "
        "whenever a step writes them"
    ),
    "update.schedule": _given(
        f"the learning rate and the optimizer's other numbers set to those of {_ONE}"
    ),
    "ddp.find_unused": Said(says="DDP built with find_unused_parameters=True"),
    "ddp.rewrap_trainable": Said(
        says="DDP built again while all parameters require gradients"
    ),
    "ddp.rewrap": Said(says="DDP built again on the model as it is now"),
    "ddp.static_off": Said(says="DDP built with static_graph=False"),
    "ddp.static_on": Said(says="DDP built with static_graph=True"),
    "ddp.hands_on": Said(
        says="methods of the model inside called through DDP's forward"
    ),
    "ddp.plain_output": Said(says="the output's tensors passed to DDP as a tuple"),
    "dp.mean_scalars": Said(says="the replicas' scalars gathered to their mean"),
    "dp.keep_state": Said(says="what each replica assigns to itself kept"),
    "dp.same_thread": Said(says="the replicas run in the caller's thread"),
    "dp.own_objects": Said(says="lists and dicts of its own for each replica"),
    "dp.by_samples": Said(says="only samples, and lists of them, split over replicas"),
    "dp.pad_gather": Said(says="outputs padded to the longest before the gather"),
    "dp.replica_parameters": Said(says="parameters() of the replicas filled"),
    "ddp.no_comm_hook": Said(says="DDP built without its communication hooks"),
    "ddp.hooks_on_means": Said(
        says="the communication hooks given the mean of the ranks' gradients"
    ),
    "ddp.always_sync": Said(says="every backward reduced, within no_sync as well"),
    "ddp.broadcast": _given(f"the first weights and buffers of {_ONE} on all ranks"),
    "ddp.broadcast_forward": Said(
        says="weights and buffers broadcast from rank 0 before every step"
    ),
    "ddp.broadcast_after": Said(
        says="weights and buffers broadcast from rank 0 after every step"
    ),
    "target.accum": Said(
        says="every micro-batch weighted in all processes by its share of one count "
        "over all micro-batches and ranks"
    ),
    "target.accum_sums": Said(
        says="every micro-batch's sum divided in all processes by one count over all "
        "micro-batches and ranks"
    ),
    ADDENDS: _given(f"the gradients of some terms of the loss taken from {_ONE}"),
    "target.clip_last": Said(
        says="gradients clipped once in all processes, when the optimizer steps"
    ),
    "target.keep_sums": _given(
        "gradients left as they are between two backwards in all processes"
    ),
    "target.as_left": _given("gradients left in all processes as backward makes them"),
    "target.unhook": _given("the hooks on parameters removed in all processes"),
    "target.unhook_all": _given(
        "the hooks on tensors and modules removed in all processes"
    ),
    "target.constant_draws": _given(
        "constants in place of random numbers in all processes"
    ),
    "target.frozen_norms": Said(says="torch's batch norms frozen in all processes"),
    "collectives.exact": Said(
        says="collectives that return what their definition says"
    ),
    "collectives.label_offset": Said(
        says="an arange over the rank's rows counted from the rank's first row"
    ),
    "collectives.block_order": Said(
        says="gathered rows in the order in which one process stacks them"
    ),
    "collectives.mean_counts": Said(
        says="the mean over ranks in place of sums that carry no gradient"
    ),
    "collectives.mean_sums": Said(
        says="the mean over ranks in place of sums that carry gradients"
    ),
    "numbers.together": Said(
        says="the mean over ranks in place of each number that a rank reads"
    ),
    "numbers.summed": Said(
        says="the sum or the mean over ranks in place of each number that a rank reads"
    ),
    "autograd.averaged": Said(
        says="the results of torch.autograd.grad averaged over ranks"
    ),
    "collectives.off_after_backward": Said(
        says="no all_reduce between backward and the optimizer's step"
    ),
    "hooks.after_backward": Said(says="parameters' hooks run after backward is done"),
    GLOBAL_DRAWS: Said(
        says="the random numbers of the global batch drawn on every rank, which keeps "
        "its own rows"
    ),
    "autograd.mutation": Said(
        says="copies of the tensors that backward needs and that are overwritten"
    ),
    "data.strided": Said(says="rank r given every W-th sample from sample r on"),
    "data.stride": Said(says="the target's own data sharded in turn"),
    "data.part": Said(says="the target's own data sharded in parts"),
    "data.unpadded": Said(says="the target's own data sharded without repeats"),
    "data.whole": _given("the samples of all ranks given to every rank"),
    "data.lists": Said(says="lists with a number per sample sharded as well"),
    "data.alone": Said(says="batch() called without a process group"),
    "data.filled": Said(says="empty batches for ranks that have fewer"),
    "statistics.together": Said(
        says="statistics without gradient computed over the samples of all ranks"
    ),
    "rank.first": Said(says="rank 0 given as the answer to code that asks its rank"),
    "rank.none": _given("rank 1 given as the answer to code that asks its rank"),
    "target.orders": _given(f"data shuffled in the order of {_ONE}"),
    "ddp.join_all": Said(says="join() that divides by all ranks"),
    "ddp.join_left": Said(says="join() that divides by the ranks that have data left"),
    "compile.reducer": Said(says="DDP's Python reducer where backward is compiled"),
    "compile.whole": Said(says="torch.compile with optimize_ddp=False"),
    "compile.off": Said(says="nothing compiled"),
    "ddp.no_buffer_broadcast": Said(says="DDP built with broadcast_buffers=False"),
    "ddp.buffer_broadcast": Said(says="DDP built with broadcast_buffers=True"),
    "ddp.no_bucket_view": Said(says="DDP built with gradient_as_bucket_view=False"),
    "checkpoint.nonreentrant": Said(
        says="torch.utils.checkpoint with use_reentrant=False"
    ),
}
_BY_HAND = "gradients averaged over ranks after each backward instead of by DDP"
_NOISE = {"sample": "random numbers drawn for each sample alike"}


def describe(fixes: Iterable[str], *, noise: str = "", by_hand: bool = False) -> str:
    """Returns what ran, in words that follow "with".

    Args:
        fixes: names, as a `RunSpec` holds them.
        noise: the noise mode that the run had and the one before had not.
        by_hand: gradients were averaged by hand instead of by DDP.

    >>> describe(["loss.scale:2.0", "gradients.averaged:a,b"])
    'the gradient of the loss multiplied by 2 and the gradients of a, b averaged over \
ranks'
    """
    given: dict[str, list[str]] = {}
    for fix in fixes:
        head, _, rest = fix.partition(":")
        given.setdefault(head, []).append(rest)
    parts = [_NOISE[noise]] if noise in _NOISE else []
    parts += [_said(SAID[head], rests) for head, rests in given.items()]
    return " and ".join([*parts, _BY_HAND] if by_hand else parts)


def _said(said: Said, arguments: list[str]) -> str:
    factor, _, rest = arguments[0].partition("|")
    if "{factor}" in said.says:
        names = [name for name in rest.split(",") if name]
        return said.says.format(factor=_number(factor), names=_cut(names, said))
    names = [name for some in arguments for name in some.split(",") if name]
    return said.says.format(names=_cut(names, said))


def _number(factor: str) -> str:
    return f"{float(factor):.3g}" if factor else "1"


def _cut(names: list[str], said: Said) -> str:
    shown = ", ".join(names[:_MOST_NAMES]) or said.of_none
    rest = len(names) - _MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def kinds(fixes: Iterable[str]) -> set[Kind]:
    """Returns what kinds of interventions these are."""
    return {SAID[fix.partition(":")[0]].kind for fix in fixes}


def argument(fixes: tuple[str, ...], name: str) -> str | None:
    """Returns what follows "name:" in the fixes, "" for a bare name, None without."""
    for fix in fixes:
        head, _, rest = fix.partition(":")
        if head == name:
            return rest
    return None


def arguments(fixes: tuple[str, ...], name: str) -> set[str]:
    """Returns what all fixes "name:a,b,..." name, together."""
    found = [f.partition(":")[2] for f in fixes if f.startswith(f"{name}:")]
    return {part for rest in found for part in rest.split(",")}


def addends(fixes: tuple[str, ...]) -> dict[int, frozenset[str]]:
    """Returns the addends that fixes give, and at which tensors.

    None are named for what the model returns as a whole.

    >>> addends(("target.addends:0", "target.addends:2@router#0/output"))
    {0: frozenset(), 2: frozenset({'router#0/output'})}
    """
    found: dict[int, set[str]] = {}
    for item in sorted(arguments(fixes, ADDENDS)):
        number, _, place = item.partition("@")
        found.setdefault(int(number), set()).update({place} - {""})
    return {number: frozenset(places) for number, places in found.items()}


def addends_fix(numbers: Iterable[int], places: Iterable[str]) -> str:
    """Returns the fix that gives addends of a loss, at these tensors if any."""
    at = sorted(places)
    items = (
        [f"{n}@{place}" for n in numbers for place in at] if at else map(str, numbers)
    )
    return f"{ADDENDS}:{','.join(items)}"


def global_draws(shapes: Iterable[tuple[int, ...]]) -> str:
    """Returns the fix that draws as one process does, which draws these shapes."""
    return f"{GLOBAL_DRAWS}:{','.join(dict.fromkeys(map(shape_name, shapes)))}"


def shape_name(shape: tuple[int, ...]) -> str:
    """Returns "8x3" for (8, 3)."""
    return "x".join(map(str, shape))
