"""Interventions: what a fix would do, applied in the ranks to a run.

A `RunSpec` names them ("loss.scale:2.0"); the user's file is never touched. Each
changes one thing, so that a run with it proves or disproves one cause.

    batch_norm.sync        torch's batch norms synchronised over ranks; with ":NAMES",
                           these alone
    module.global:NAME     the module sees the rows of all ranks, as in one process
    module.in_group:NAME   the same, with the process group in sight
    model.alone            the model's forward sees no process group, as a replica of
                           DataParallel's
    backward.alone         autograd functions of the model's own see none in backward
    loss.scale:FACTOR      every backward starts from FACTOR
    loss.count:COUNTABLE   ... from W * n_r / N, n_r counted on the rank's targets
    loss.global:WHAT       the loss sees the outputs and targets of all ranks; WHAT is
                           "MODULES|PARAMETERS|PATHS", see global_loss
    loss.alone             beside it: steps see no other rank until backward
    loss.partial:PATHS     the same for some tensors of the output alone ("=" before one
                           without samples); the others get the gradient of the rank's
                           own loss
    direct.scale:FACTOR    parameters used outside their own module, as in a penalty,
                           get FACTOR times the gradient
    gradients.scale:FACTOR|NAMES  these parameters, or all, get FACTOR times the
                           gradient of every backward
    gradients.averaged:NAMES  the gradients of these parameters are averaged by hand
    gradients.at_update    no backward is reduced; gradients are averaged by hand when
                           an optimizer steps
    gradients.filled       parameters with a gradient on any rank have one on all ranks
    gradients.contiguous   gradients lie in memory as those of contiguous parameters do
    gradients.one_process  every update takes the gradients that one process has there
    terms.scale:FACTOR     numbers that no data reach get FACTOR times the gradient
                           where they are added to others
    outputs.scale:FACTOR|PATHS  these outputs of the model get FACTOR times the gradient
    collectives.autograd   raw collectives carry gradients
    collectives.attached   they do so also of what is detached on its way into them
    state.broadcast        rank 0's untrained parameters and buffers to all ranks after
                           every step
    state.one_process:NAMES  buffers and untrained parameters of these modules as one
                           process has them after the step
    state.beside:NAMES     the same of what is kept beside the model
    state.as_written:NAMES  and their buffers at once, whatever a step writes to them
    update.schedule        learning rates and other numbers of the optimizer as one
                           process has them at each update
    ddp.find_unused        DDP built anew with find_unused_parameters=True
    ddp.rewrap_trainable   the same, with requires_grad=True while it is built
    ddp.rewrap             DDP built anew, as it was, on the model as it is now
    ddp.static_off, ddp.static_on  DDP built anew with static_graph=False, with True
    ddp.hands_on           DDP has the attributes of the model inside; what is called
                           goes through DDP's forward
    ddp.plain_output       DDP sees the output's tensors in a plain tuple
    dp.mean_scalars        DataParallel's replicas' scalars gathered to their mean
    dp.keep_state          what each replica assigned to itself is kept
    dp.same_thread         replicas run in the caller's thread
    dp.own_objects         and each has lists and dicts of its own
    dp.by_samples          samples alone are split, and lists of them
    dp.pad_gather          outputs are filled up to the longest before they are gathered
    dp.replica_parameters  parameters() of DataParallel's replicas filled
    ddp.no_comm_hook       DDP built anew without the hooks that were registered
    ddp.hooks_on_means     DDP built anew with hooks that are given the ranks' mean
    ddp.always_sync        no_sync does nothing: every backward is reduced
    ddp.broadcast          the reference's first weights and buffers to all ranks after
                           wrapping
    ddp.broadcast_forward  rank 0's weights and buffers to all ranks before the first
                           forward of every step
    ddp.broadcast_after    rank 0's weights and buffers to all ranks after every step
    target.accum:COUNTABLE every micro-batch weighed by its share of one count over all
                           micro-batches and ranks; in the reference too
    target.accum_sums:COUNTABLE  the same where no loss is divided by their number
    target.addends:NUMBERS outputs get from some of what the loss adds up what they get
                           in one process, which notes it; as NUMBER@KEY, the tensors of
                           these keys do, within the model
    target.clip_last       clipping by norm once, when the optimizer steps; in the
                           reference too
    target.keep_sums       gradients are not written between two backwards of an
                           update; in the reference too
    target.as_left         gradients are not written between backward and update; in the
                           reference too
    target.unhook          no tensor hooks on parameters; in the reference too
    target.unhook_all      nor on other tensors or modules, and autograd functions that
                           return what they are given pass its gradient on
    target.constant_draws  random numbers are constants; in the reference too
    target.frozen_norms    torch's batch norms are frozen; in the reference too
    collectives.exact      collectives return what their definition says, and DDP has
                           a group of gloo's
    collectives.label_offset  an arange over the rank's rows counts from its first row;
                              with ":forward", within the model's forward too
    collectives.block_order  gathers of several rows per sample return them block by
                           block, as one process stacks them
    collectives.mean_counts  sums over ranks without gradients are read as means
    collectives.mean_sums  sums over ranks that carry gradients are means
    numbers.together       what ranks read of a tensor's one number is all ranks' mean
    numbers.summed         the same, and whole numbers are the sum over ranks
    autograd.averaged      what torch.autograd.grad gives for parameters is averaged
    collectives.off_after_backward  no all_reduce between backward and optimizer step,
                           nor of few numbers within it; with ":gradients", nor of
                           any
    hooks.after_backward   post-accumulate hooks run when backward, and DDP, are done
    noise.global_draws:SHAPES  generators of the target's own draw for the global batch,
                           and a rank keeps its rows; SHAPES are one process's draws
    autograd.mutation      tensors saved for backward survive being written over
    data.strided           rank r takes samples r, r + W, r + 2 W, ...
    data.stride, data.part, data.unpadded  the target's own loaders shard their data
                           so, see ddpcheck.run.interventions.sharding
    data.whole             every rank has the samples of all ranks
    data.lists             lists with as many numbers as samples are cut, too
    data.alone             batch() is called with no process group in sight
    data.filled            a rank with fewer batches than others goes on with empty ones
    statistics.together    what samples are reduced to without gradient is of all ranks
    rank.first             user code that asks for its rank is told 0
    rank.none              and that it is another: what the first rank does is not done
    target.orders          data are shuffled as one process shuffles them; it notes how
    ddp.join_all, ddp.join_left  join divides by all ranks, by those that are left
    compile.reducer        DDP as torch.compile wants it where it compiles the backward
    compile.whole          torch.compile does not split the model at DDP's buckets
    compile.off            nothing is compiled
    ddp.no_buffer_broadcast, ddp.buffer_broadcast  DDP built anew with
                           broadcast_buffers=False, with True
    ddp.no_bucket_view     DDP built anew with gradient_as_bucket_view=False
    checkpoint.nonreentrant  torch.utils.checkpoint with use_reentrant=False
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpcheck.run.fix_names import argument
from ddpcheck.run.interventions import (
    clipping,
    exact,
    filling,
    late_hooks,
    mean_counts,
    mean_sums,
    overrides,
    own_averages,
    rewrapping,
    rewriting,
    sharding,
    unhooking,
)
from ddpcheck.run.interventions import scales as fix_scales
from ddpcheck.run.interventions.all_rows import see_all_rows
from ddpcheck.run.interventions.autograd_collectives import autograd_collectives
from ddpcheck.run.interventions.block_order import blocks_together
from ddpcheck.run.interventions.collectives import averaged_grad, off_after_backward
from ddpcheck.run.interventions.constant_draws import constant_draws
from ddpcheck.run.interventions.first_rank import told_rank
from ddpcheck.run.interventions.gather import (
    alone_until_backward,
    seen_again_in_the_end,
    without_ranks,
    without_ranks_in_backward,
)
from ddpcheck.run.interventions.labels import offset_by_rank
from ddpcheck.run.interventions.statistics import statistics_together
from ddpcheck.run.interventions.together import numbers_together
from ddpcheck.run.model import batch_norm, contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.model.noise import GlobalDraws
from ddpcheck.run.observe import countables, sync_flag
from ddpcheck.run.process import compiling

_TOLD_RANKS = {"rank.first": 0, "rank.none": 1}
# How torch.compile is set.
_COMPILER_SETTINGS: dict[str, dict[str, Any]] = {
    "compile.reducer": {"optimize_ddp": "python_reducer"},
    "compile.whole": {"optimize_ddp": False},
}


def before_wrap(model: nn.Module, fixes: tuple[str, ...]) -> nn.Module:
    """Returns the bare model with the interventions that change modules."""
    if argument(fixes, "model.alone") is not None:
        model.forward = functools.partial(without_ranks, model.forward)
    if argument(fixes, "backward.alone") is not None:
        model.forward = functools.partial(without_ranks_in_backward, model.forward)
    norms = argument(fixes, "batch_norm.sync")
    if norms is not None:
        only = norms.split(",") if norms else ()
        model = batch_norm.apply(model, "sync", only=only)
    for fix in fixes:
        head, _, name = fix.partition(":")
        if head in ("module.global", "module.in_group"):
            module = nn.Module.get_submodule(model, name)
            see_all_rows(module, hides=head == "module.global")
    return model


def around_wrap(fixes: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
    """Stands around wrapping, with the interventions that change how DDP is built."""
    for fix, rank in _TOLD_RANKS.items():
        if fix in fixes:
            return told_rank(rank)
    if argument(fixes, "compile.off") is not None:
        return compiling.off()
    for fix, settings in _COMPILER_SETTINGS.items():
        if argument(fixes, fix) is not None:
            return compiling.built_with(**settings)
    return contextlib.nullcontext()


def around_building(
    fixes: tuple[str, ...],
) -> contextlib.AbstractContextManager[None]:
    """Stands around the making of the optimizer."""
    if argument(fixes, "hooks.after_backward") is not None:
        return late_hooks.registered_late()
    told = [rank for fix, rank in _TOLD_RANKS.items() if fix in fixes]
    return told_rank(*told) if told else contextlib.nullcontext()


def after_wrap(
    model: nn.Module,
    fixes: tuple[str, ...],
    initial: Mapping[str, Tensor] | None = None,
) -> nn.Module:
    """Returns the wrapped model with the interventions that change the wrapper.

    `initial` are one process's first weights and buffers, by name.
    """
    if argument(fixes, "ddp.broadcast") is not None:
        rewriting.broadcast(model, initial or {})
    return rewrapping.rewrapped(model, fixes)


@contextlib.contextmanager
def around_training(
    fixes: tuple[str, ...],
    shard_targets: Callable[[], Any],
    model: Callable[[], nn.Module],
) -> Iterator[None]:
    """Stands around all steps; `shard_targets` gives the current step's."""
    if not fixes:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(seen_again_in_the_end())
        fix_scales.enter(stack, fixes, shard_targets, model)
        own_averages.enter(stack, fixes, model)
        for name, context in {
            **_of_samples(fixes, shard_targets, model),
            "loss.alone": alone_until_backward,
            "collectives.autograd": autograd_collectives,
            "collectives.attached": lambda: autograd_collectives(attaches=True),
            "hooks.after_backward": late_hooks.after_backward,
            "collectives.exact": exact.exact,
            "collectives.mean_counts": mean_counts.averaged_sums,
            "collectives.mean_sums": mean_sums.averaged_gradient_sums,
            "numbers.together": numbers_together,
            "numbers.summed": lambda: numbers_together(sums=True),
            "autograd.averaged": lambda: averaged_grad(model()),
            "data.stride": sharding.stride,
            "data.part": sharding.part,
            "data.filled": filling.filled,
            "ddp.always_sync": lambda: sync_flag.held(is_set=True),
            "ddp.join_all": lambda: overrides.joining(counts_all=True),
            "ddp.join_left": lambda: overrides.joining(counts_all=False),
            "compile.reducer": lambda: _compiler("compile.reducer"),
            "compile.whole": lambda: _compiler("compile.whole"),
            "compile.off": compiling.off,
            "ddp.broadcast_forward": lambda: rewriting.broadcast_before(model()),
            "checkpoint.nonreentrant": overrides.nonreentrant_checkpoints,
            "target.clip_last": clipping.deferred,
            "rank.first": lambda: told_rank(_TOLD_RANKS["rank.first"]),
            "rank.none": lambda: told_rank(_TOLD_RANKS["rank.none"]),
            "target.constant_draws": lambda: constant_draws(model()),
            "target.keep_sums": lambda: clipping.kept_sums(model()),
            "target.as_left": lambda: clipping.as_left(model()),
            "target.unhook": lambda: unhooking.without_tensor_hooks(model()),
            "target.unhook_all": lambda: unhooking.without_hooks(model()),
            "autograd.mutation": torch.autograd.graph.allow_mutation_on_saved_tensors,
        }.items():
            if argument(fixes, name) is not None:
                stack.enter_context(context())
        yield


def _of_samples(
    fixes: tuple[str, ...],
    shard_targets: Callable[[], Any],
    model: Callable[[], nn.Module],
) -> dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]:
    """Returns the interventions around steps that ask for more than the model."""
    return {
        "collectives.label_offset": lambda: offset_by_rank(
            lambda: countables.samples(shard_targets()),
            model(),
            within=argument(fixes, "collectives.label_offset") == "forward",
        ),
        "collectives.block_order": lambda: blocks_together(
            lambda: countables.samples(shard_targets())
        ),
        "statistics.together": lambda: statistics_together(
            lambda: countables.samples(shard_targets()), model()
        ),
        "noise.global_draws": lambda: GlobalDraws(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            samples=lambda: _samples_of_rank(fixes, shard_targets()),
            known=argument(fixes, "noise.global_draws") or "",
        ),
        "collectives.off_after_backward": lambda: off_after_backward(
            of_gradients=bool(argument(fixes, "collectives.off_after_backward"))
        ),
    }


def _samples_of_rank(fixes: tuple[str, ...], targets: Any) -> int:
    """Returns how many samples the rank computes of a batch with these targets."""
    found = countables.samples(targets)
    is_whole = argument(fixes, "loss.global") is not None  # the step has all samples
    return found // dist.get_world_size() if is_whole else found


def after_step(model: nn.Module, fixes: tuple[str, ...]) -> None:
    """Does what an intervention does between two steps."""
    if argument(fixes, "ddp.broadcast_after") is not None:
        rewriting.broadcast(model, {})
    if argument(fixes, "state.broadcast") is None:
        return
    short = shortener(model)
    with torch.no_grad():
        named = {
            short(n): p
            for n, p in contents.named_parameters(model)
            if not p.requires_grad
        }
        named |= {short(n): b for n, b in contents.named_buffers(model)}  # type: ignore[misc]
        for name in sorted(named):
            dist.broadcast(named[name].data, 0)


def _compiler(fix: str) -> contextlib.AbstractContextManager[None]:
    return compiling.with_settings(**_COMPILER_SETTINGS[fix])
