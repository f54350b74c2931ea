"""The kinds of fixes that a file can make, one function each.

Each adds to a draft what an intervention does in the ranks, in plain torch. The check
of the file decides whether it is the same, so a kind may assume what is usual.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from ddpcheck.diagnose.fixed.draft import Draft, Facts
from ddpcheck.diagnose.proposal import Proposal
from ddpcheck.run.intervention import (
    AverageGradients,
    CountLoss,
    GlobalLoss,
    GlobalModule,
    Intervention,
    Scale,
    ScaleGradients,
    ScaleLoss,
    Substitute,
    Switch,
    SyncBatchNorm,
)
from ddpcheck.run.spec import SAMPLES

_CLOSE = 0.01  # of powers
_MOST_POWER = 2


# Of DDP built again; {}: with its defaults, on the model as it is then.
_OPTIONS: dict[Switch, dict[str, str]] = {
    Switch.FIND_UNUSED: {"find_unused_parameters": "True"},
    Switch.REWRAP: {},
    Switch.STATIC_GRAPH_OFF: {},
    Switch.STATIC_GRAPH_ON: {"static_graph": "True"},
    Switch.BUFFER_BROADCAST_OFF: {"broadcast_buffers": "False"},
    Switch.BUFFER_BROADCAST_ON: {"broadcast_buffers": "True"},
    Switch.BUCKET_VIEW_OFF: {},
    Switch.NO_COMM_HOOKS: {},
}


# Whatever leaves gradients local, or reduces them too early: see average_at_step.
_AVERAGES = (
    Switch.ALWAYS_SYNC,
    Switch.AVERAGED_AT_UPDATE,
    Switch.AVERAGED_AUTOGRAD_GRAD,
    Switch.FILLED_GRADIENTS,
)


def drafts(
    proposals: Sequence[Proposal], facts: Facts, world_size: int
) -> Iterator[Draft]:
    """Yields the drafts of a file that fixes all these causes, the best first.

    None if a cause has an intervention that no kind of fix makes.
    """
    fixes = list(dict.fromkeys(fix for p in proposals for fix in p.fixes))
    by_hand = any(p.by_hand for p in proposals)
    if by_hand and facts.has_wrap:
        made = _all_of([Switch.REWRAP, *fixes], facts, world_size)
        if made is not None:
            yield made
    if by_hand:
        made = _all_of([Switch.AVERAGED_AT_UPDATE, *fixes], facts, world_size)
        if made is not None:
            yield made
    if fixes and not by_hand and not any(p.noise for p in proposals):
        made = _all_of(fixes, facts, world_size)
        if made is not None:
            yield made
    are_of_loss = all(p.link == "loss" for p in proposals)
    is_gathered = any(isinstance(fix, GlobalLoss) for fix in fixes)
    if are_of_loss and not (by_hand or is_gathered or facts.has_train_step):
        draft = Draft()
        gather(draft, is_alone=_asks_group(facts))
        yield draft


def _all_of(
    fixes: Iterable[Intervention],
    facts: Facts,
    world_size: int,
    draft: Draft | None = None,
) -> Draft | None:
    draft = draft or Draft()
    fixes = list(fixes)
    for fix in fixes:
        if not _add(fix, fixes, draft, facts, world_size):
            return None
    return None if draft.is_empty else draft


def _add(
    fix: Intervention,
    fixes: list[Intervention],
    draft: Draft,
    facts: Facts,
    world_size: int,
) -> bool:
    """Adds one intervention; returns whether a file can make it."""
    if isinstance(fix, ScaleLoss | ScaleGradients):
        scale(draft, facts, fix, world_size)
    elif isinstance(fix, SyncBatchNorm):
        synchronise_norms(draft, facts, fix.names)
    elif isinstance(fix, GlobalModule):
        gather_for_module(draft, facts, fix)
    else:
        return _add_to_wrapper(fix, draft) or _add_to_loss(fix, fixes, draft, facts)
    return True


def _add_to_loss(
    fix: Intervention, fixes: list[Intervention], draft: Draft, facts: Facts
) -> bool:
    if facts.has_train_step:
        return False
    if isinstance(fix, CountLoss):
        return weigh_by_count(draft, fix.countable)
    hides = Switch.LOSS_WITHOUT_RANKS in fixes
    if isinstance(fix, GlobalLoss):
        is_usual = fix.modules in ((), ("",)) and not fix.outputs
        if not is_usual or (hides and not _asks_group(facts)):
            return False
        gather(draft, is_alone=hides)
        return True
    return fix is Switch.LOSS_WITHOUT_RANKS and any(
        isinstance(other, GlobalLoss) for other in fixes
    )


def _add_to_wrapper(fix: Intervention, draft: Draft) -> bool:
    if isinstance(fix, Switch) and fix in _OPTIONS:
        draft.options = (draft.options or {}) | _OPTIONS[fix]
    elif isinstance(fix, Substitute) and fix.boundary == "start":
        keep_start(draft)
    elif fix is Switch.REWRAP_TRAINABLE:
        wrap_trainable(draft)
    elif fix in _AVERAGES or isinstance(fix, AverageGradients):
        average_at_step(draft)
    else:
        return False
    return True


def _asks_group(facts: Facts) -> bool:
    """Returns whether the file asks torch.distributed for a group by its full name.

    A function that was imported by name would not notice that the group is hidden.
    """
    by_name = re.search(r"from\s+torch\.distributed\S*\s+import", facts.source)
    return ".is_initialized()" in facts.source and not by_name


def scale(
    draft: Draft, facts: Facts, fix: ScaleLoss | ScaleGradients, world_size: int
) -> None:
    """Multiplies the loss by a factor, or the gradients where a step has its own."""
    factor, why = _factor(fix, world_size)
    if isinstance(fix, ScaleLoss) and not facts.has_train_step:
        draft.after_loss += f"# {why}\nvalue = value {factor}\n"
        return
    draft.imports.add(
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks "
        "import allreduce_hook"
    )
    names, state = fix.listed, "None"
    changed = f"    bucket.buffer().mul_({_number(factor)})\n"
    if names:
        changed, state = _OF_CHOSEN.format(factor=_number(factor)), "chosen"
        draft.before_wrap += (
            f"names = {_set(names)}\n"
            "chosen = {id(p) for n, p in model.named_parameters() if n in names}\n"
        )
    draft.parts["scaled"] = _SCALED.format(why=why, changed=changed)
    draft.after_wrap += _HOOKED.format(state=state)


_SCALED = """\
def scaled(chosen, bucket):
    # {why}
{changed}    return allreduce_hook(None, bucket)  # the mean over ranks, as of DDP
"""
_OF_CHOSEN = """\
    pairs = zip(bucket.parameters(), bucket.gradients())
    for gradient in (g for p, g in pairs if id(p) in chosen):
        gradient.mul_({factor})
"""
_HOOKED = """\
for module in wrapped.modules():
    if isinstance(module, DistributedDataParallel):
        module.register_comm_hook({state}, scaled)
"""


def _set(names: Sequence[str]) -> str:
    return "{" + ", ".join(map(repr, names)) + "}"


def _factor(fix: Scale, world_size: int) -> tuple[str, str]:
    """Returns a factor as "* W" or the like, and the comment that explains it."""
    world = "dist.get_world_size()"
    power = math.log(fix.factor) / math.log(world_size) if fix.factor > 0 else 0.0
    whole = round(power)
    if not whole or abs(power - whole) > _CLOSE or abs(whole) > _MOST_POWER:
        return f"* {fix.factor:.17g}", "The ranks' gradients lack this factor."
    sign = "*" if whole > 0 else "/"
    if abs(whole) == _MOST_POWER:
        world += "**2"
    why = "DDP divides the sum over ranks by W; here the sum itself is right."
    if whole < 0:
        why = "The gradients already have the factor W."
    return f"{sign} {world}", why


def _number(factor: str) -> str:
    return factor[2:] if factor.startswith("*") else f"1 {factor}"


_WEIGHT = """\
# The rank divides by its own count n, the single process by N, that of all ranks.
# DDP averages over W ranks: with W * n / N every rank's mean has its share of N.
n = {count}
total = n.clone()
dist.all_reduce(total)
value = value * dist.get_world_size() * n / total
"""


def weigh_by_count(draft: Draft, countable: str) -> bool:
    """Weighs the loss by the rank's share of a count; False for one it cannot count."""
    count = _count(countable)
    if count is None:
        return False
    draft.after_loss += _WEIGHT.format(count=count)
    return True


def _count(countable: str) -> str | None:
    if countable == SAMPLES:
        return "torch.tensor(float(len(target)), device=value.device)"
    found = re.fullmatch(r"target(\[:, 1:\])? (.+)", countable)
    if not found:
        return None
    leaf, kind = f"target{found[1] or ''}", found[2]
    if kind == "sum":
        return f"{leaf}.sum()"
    if kind == "not NaN":
        return f"(~{leaf}.isnan()).sum()"
    return f"({leaf} {kind}).sum()"


GATHER = '''\
class Gather(torch.autograd.Function):
    """Concatenates the rows of all ranks; its backward sums their gradients."""

    @staticmethod
    def forward(ctx, rows, counts):
        ctx.counts = counts
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # of equal shapes
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        return torch.cat([part[:n] for part, n in zip(found, counts)])

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.split(ctx.counts)[dist.get_rank()], None
'''
EACH = '''\
def each(change, value):
    """Returns the value with every tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if dataclasses.is_dataclass(value):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **each(change, parts))
    if isinstance(value, dict):
        return {key: each(change, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [each(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
'''
GATHERED = '''\
def gathered(value, counts):
    """Gathers what has a row per sample; `counts` is the samples of each rank."""

    def rows(tensor):
        if tensor.dim() and not counts:  # the first tensor shows how many there are
            counts.extend([0] * dist.get_world_size())
            dist.all_gather_object(counts, len(tensor))
        own = tensor.dim() and len(tensor) == counts[dist.get_rank()]
        return Gather.apply(tensor, counts) if own else tensor

    return each(rows, value)
'''
_ALL_ROWS = """\
counts = []
target, output = gathered(target, counts), gathered(output, counts)
# Every rank computes the same loss of all rows. Gather's backward sums the W equal
# gradients of a row and DDP divides by W: the gradient of the single process.
"""
_ALONE = """\
# It has all rows, so its own collectives must not run: no group is in its sight.
with mock.patch.object(dist, "is_initialized", return_value=False):
    value = {loss}(output, target)
"""


def gather(draft: Draft, *, is_alone: bool) -> None:
    """Gives the loss the outputs and targets of all ranks, with gradient."""
    draft.imports.add("import dataclasses")
    draft.parts |= {"Gather": GATHER, "each": EACH, "gathered": GATHERED}
    draft.before_loss += _ALL_ROWS
    if is_alone:
        draft.imports.add("from unittest import mock")
        draft.loss = _ALONE


_SYNCED = '''\
def synced(norm, x):
    """Normalises with the mean and the variance of all ranks, weighted by counts."""
    if not (norm.training and dist.is_initialized()):
        return type(norm).forward(norm, x)
    dims = [d for d in range(x.dim()) if d != 1]  # all but the channels
    shape = [-1 if d == 1 else 1 for d in range(x.dim())]
    count = x.new_tensor([x.numel() // x.shape[1]])
    total = Sum.apply(torch.cat([x.sum(dims), count]))
    n, mean = total[-1].detach(), total[:-1] / total[-1].detach()
    centred = x - mean.view(shape)
    var = Sum.apply(centred.square().sum(dims)) / n
    with torch.no_grad():
        if norm.track_running_stats:
            norm.num_batches_tracked += 1
            part = norm.momentum or 1 / float(norm.num_batches_tracked)
            norm.running_mean.lerp_(mean, part)
            norm.running_var.lerp_(var * n / (n - 1), part)  # unbiased, as in torch
    x = centred * (var + norm.eps).rsqrt().view(shape)
    return x * norm.weight.view(shape) + norm.bias.view(shape) if norm.affine else x
'''
_SUM = '''\
class Sum(torch.autograd.Function):
    """The sum over ranks; backward sums the gradients that the ranks have for it."""

    @staticmethod
    def forward(ctx, tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return Sum.forward(ctx, gradient)
'''
_SYNC = """\
for {each}:
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)){chosen}:
        module.forward = functools.partial(synced, module)
"""
_CONVERT = "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)\n"


def synchronise_norms(draft: Draft, facts: Facts, names: Sequence[str]) -> None:
    """Synchronises batch norms: torch's SyncBatchNorm runs on GPUs alone."""
    if facts.on_gpu and not names:
        draft.before_wrap += _CONVERT
        return
    draft.imports |= {"import functools", "from torch import nn"}
    draft.parts |= {"synced": _SYNCED, "Sum": _SUM}
    each = (
        "name, module in model.named_modules()"
        if names
        else "module in model.modules()"
    )
    chosen = f" and name in {_set(names)}" if names else ""
    draft.before_wrap += _SYNC.format(each=each, chosen=chosen)


_OF_ALL_RANKS = '''\
def of_all_ranks(module):
    """Gives the module the rows of all ranks; it returns those of this rank."""
    forward = module.forward

    def whole(*args, **kwargs):
        if not (module.training and dist.is_initialized()):
            return forward(*args, **kwargs)
        counts = []
        args, kwargs = gathered(args, counts), gathered(kwargs, counts)
{compute}

        def own(tensor):
            is_split = tensor.dim() and len(tensor) == sum(counts)
            return tensor.split(counts)[dist.get_rank()] if is_split else tensor

        return each(own, made)

    module.forward = whole
'''
_MADE = "        made = forward(*args, **kwargs)"
_MADE_ALONE = """\
        # It has all rows, so its own collectives must not run: it sees no group.
        with mock.patch.object(dist, "is_initialized", return_value=False):
            made = forward(*args, **kwargs)"""


def gather_for_module(draft: Draft, facts: Facts, fix: GlobalModule) -> None:
    """Gives a module the rows of all ranks, with gradient."""
    draft.imports.add("import dataclasses")
    name, compute = fix.name, _MADE
    if fix.hides and _asks_group(facts):
        draft.imports.add("from unittest import mock")
        compute = _MADE_ALONE
    draft.parts["of_all_ranks"] = _OF_ALL_RANKS.format(compute=compute)
    draft.parts |= {"Gather": GATHER, "each": EACH, "gathered": GATHERED}
    module = f"model.get_submodule({name!r})" if name else "model"
    draft.before_wrap += f"of_all_ranks({module})\n"


def keep_start(draft: Draft) -> None:
    """Wraps the model with the weights and buffers that model() made."""
    draft.imports.add("import copy")
    draft.before_wrap += "start = copy.deepcopy(model.state_dict())\n"
    draft.before_ddp += (
        "# On every rank those of model(), as the single process begins with.\n"
        "model.load_state_dict(start)\n"
    )
    draft.options = draft.options or {}


def wrap_trainable(draft: Draft) -> None:
    """Builds DDP while all parameters require gradients: it skips others for good."""
    draft.before_ddp += (
        "trained = {p: p.requires_grad for p in model.parameters()}\n"
        "model.requires_grad_(True)  # DDP leaves others out for good\n"
    )
    draft.after_wrap += (
        "for parameter, is_trained in trained.items():\n"
        "    parameter.requires_grad_(is_trained)\n"
    )
    draft.options = draft.options or {}


_AVERAGED = '''\
def averaging(optimizer, step):
    """Averages gradients over ranks before each step: DDP reduces none of them."""

    def run(*args, **kwargs):
        groups = optimizer.param_groups if dist.is_initialized() else []
        for p in (p for group in groups for p in group["params"]):
            has = torch.tensor(float(p.grad is not None), device=p.device)
            dist.all_reduce(has)  # on any rank
            if has:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        return step(*args, **kwargs)

    return run
'''


def average_at_step(draft: Draft) -> None:
    """Averages gradients over ranks once, right before the optimizer's step."""
    if "averaging" in draft.parts:
        return
    draft.options = draft.options or {}
    draft.parts["averaging"] = _AVERAGED
    draft.optimizer += "made.step = averaging(made, made.step)\n"
    draft.after_wrap += (
        "# As within no_sync(): gradients are averaged before the step instead.\n"
        "wrapped.require_backward_grad_sync = False\n"
    )
