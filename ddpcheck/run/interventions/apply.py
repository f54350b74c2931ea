"""Applies interventions in the ranks to a run; the user's file is never changed.

Each changes one thing, so a run with it confirms or refutes one cause. What they are,
and what each does, is in ddpcheck/run/intervention.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import allow_mutation_on_saved_tensors
from torch.nn.parallel import DistributedDataParallel

from ddpcheck.run.intervention import (
    DrawGlobalBatch,
    GlobalLoss,
    GlobalModule,
    Interventions,
    OffsetLabels,
    SkipAllReduces,
    Switch,
    SyncBatchNorm,
    found,
    substituted,
)
from ddpcheck.run.interventions import rewrapping, rewriting, sharding
from ddpcheck.run.interventions.acts import Acts
from ddpcheck.run.interventions.collectives import exact, reductions
from ddpcheck.run.interventions.collectives.autograd import autograd_collectives
from ddpcheck.run.interventions.constant_draws import constant_draws
from ddpcheck.run.interventions.gradients import averages, hooks, writes
from ddpcheck.run.interventions.gradients import scales as fix_scales
from ddpcheck.run.interventions.gradients.averages import (
    averaged_grad,
    off_after_backward,
)
from ddpcheck.run.interventions.rows import meeting
from ddpcheck.run.interventions.rows.gather import (
    alone_until_backward,
    shown_again_at_exit,
    without_ranks,
    without_ranks_in_backward,
)
from ddpcheck.run.interventions.rows.global_batch import see_all_rows
from ddpcheck.run.interventions.rows.order import blocks_together, offset_by_rank
from ddpcheck.run.interventions.rows.shared_numbers import (
    numbers_together,
    statistics_together,
)
from ddpcheck.run.model import batch_norm, contents
from ddpcheck.run.model.names import shortener
from ddpcheck.run.model.noise import GlobalDraws
from ddpcheck.run.observe import countables, patches
from ddpcheck.run.process import callers, compiling
from ddpcheck.run.process.replacing import replaced

_RANKS = {Switch.FIRST_RANK: 0, Switch.SECOND_RANK: 1}
# How torch.compile is set.
_COMPILER_SETTINGS: dict[Switch, dict[str, Any]] = {
    Switch.PYTHON_REDUCER: {"optimize_ddp": "python_reducer"},
    Switch.COMPILED_WHOLE: {"optimize_ddp": False},
}


def before_wrap(model: nn.Module, fixes: Interventions) -> nn.Module:
    """Returns the bare model with the interventions that change modules."""
    if Switch.MODEL_WITHOUT_GROUP in fixes:
        model.forward = functools.partial(without_ranks, model.forward)
    if Switch.BACKWARD_WITHOUT_GROUP in fixes:
        model.forward = functools.partial(without_ranks_in_backward, model.forward)
    norms = found(fixes, SyncBatchNorm)
    if norms is not None:
        model = batch_norm.apply(model, "sync", only=norms.names)
    for fix in fixes:
        if isinstance(fix, GlobalModule):
            module = nn.Module.get_submodule(model, fix.name)
            see_all_rows(module, hides=fix.hides)
    return model


def around_wrap(fixes: Interventions) -> contextlib.AbstractContextManager[None]:
    """Returns the context of wrapping, with the interventions on how DDP is built."""
    for fix in _RANKS:
        if fix in fixes:
            return reporting_rank(fix, Acts())
    if Switch.COMPILE_OFF in fixes:
        return compiling.off()
    for fix, settings in _COMPILER_SETTINGS.items():
        if fix in fixes:
            return compiling.built_with(**settings)
    return contextlib.nullcontext()


def around_building(
    fixes: Interventions,
) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which the optimizer is built."""
    if Switch.HOOKS_AFTER_BACKWARD in fixes:
        return hooks.registered_late()
    given = next((fix for fix in _RANKS if fix in fixes), None)
    return reporting_rank(given, Acts()) if given else contextlib.nullcontext()


def after_wrap(
    model: nn.Module,
    fixes: Interventions,
    initial: Mapping[str, Tensor] | None = None,
) -> nn.Module:
    """Returns the wrapped model with the interventions that change the wrapper.

    `initial`: the first weights and buffers of the single-process run, by name.
    """
    if substituted(fixes, "start") is not None:
        rewriting.broadcast(model, initial or {})
    return rewrapping.rewrapped(model, fixes)


@contextlib.contextmanager
def around_training(
    fixes: Interventions,
    shard_targets: Callable[[], Any],
    model: Callable[[], nn.Module],
    acts: Acts | None = None,
) -> Iterator[None]:
    """The context of all steps; `shard_targets` returns those of the current step.

    `acts` notes the lines of user code for which something is changed.
    """
    acts = acts or Acts()
    if not fixes:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(shown_again_at_exit())
        fix_scales.enter(stack, fixes, shard_targets, model)
        averages.enter(stack, fixes, model)
        for context in _with_parameters(fixes, shard_targets, model, acts):
            stack.enter_context(context)
        for switch, enter in {
            Switch.LOSS_WITHOUT_RANKS: alone_until_backward,
            Switch.COLLECTIVES_WITH_GRADIENT: autograd_collectives,
            Switch.COLLECTIVES_ATTACHED: lambda: autograd_collectives(attaches=True),
            Switch.HOOKS_AFTER_BACKWARD: hooks.after_backward,
            Switch.EXACT_COLLECTIVES: exact.exact,
            Switch.MEAN_OF_COUNTS: reductions.averaged_sums,
            Switch.MEAN_OF_SUMS: reductions.averaged_gradient_sums,
            Switch.MEAN_OF_NUMBERS: lambda: numbers_together(acts),
            Switch.SUM_OF_NUMBERS: lambda: numbers_together(acts, sums=True),
            Switch.AVERAGED_AUTOGRAD_GRAD: lambda: averaged_grad(model()),
            Switch.LOADER_STRIDES: sharding.stride,
            Switch.LOADER_PARTS: sharding.part,
            Switch.EMPTY_BATCHES: sharding.filled,
            Switch.ALWAYS_SYNC: lambda: patches.sync_flag_held(is_set=True),
            Switch.JOIN_DIVIDES_BY_ALL: lambda: joining(counts_all=True),
            Switch.JOIN_DIVIDES_BY_LEFT: lambda: joining(counts_all=False),
            Switch.PYTHON_REDUCER: lambda: _compiler(Switch.PYTHON_REDUCER),
            Switch.COMPILED_WHOLE: lambda: _compiler(Switch.COMPILED_WHOLE),
            Switch.COMPILE_OFF: compiling.off,
            Switch.BROADCAST_BEFORE_STEP: lambda: rewriting.broadcast_before(model()),
            Switch.NONREENTRANT_CHECKPOINT: nonreentrant_checkpoints,
            Switch.CLIPPED_AT_UPDATE: writes.deferred,
            Switch.FIRST_RANK: lambda: reporting_rank(Switch.FIRST_RANK, acts),
            Switch.SECOND_RANK: lambda: reporting_rank(Switch.SECOND_RANK, acts),
            Switch.CONSTANT_DRAWS: lambda: constant_draws(model()),
            Switch.KEPT_SUMS: lambda: writes.kept_sums(model()),
            Switch.GRADIENTS_AS_LEFT: lambda: writes.as_left(model(), acts),
            Switch.PARAMETERS_UNHOOKED: lambda: hooks.without_tensor_hooks(model()),
            Switch.ALL_UNHOOKED: lambda: hooks.without_hooks(model()),
            Switch.COPIED_SAVED_TENSORS: allow_mutation_on_saved_tensors,
        }.items():
            if switch in fixes:
                stack.enter_context(enter())
        yield


def _with_parameters(
    fixes: Interventions,
    shard_targets: Callable[[], Any],
    model: Callable[[], nn.Module],
    acts: Acts,
) -> Iterator[contextlib.AbstractContextManager[Any]]:
    """Yields the interventions around steps that need more than the model."""

    def samples() -> int:
        return countables.samples(shard_targets())

    if (labels := found(fixes, OffsetLabels)) is not None:
        yield offset_by_rank(samples, model(), labels, acts)
    if found(fixes, GlobalLoss) is not None:
        yield meeting.noted(samples, model(), acts)
    if Switch.BLOCK_ORDER in fixes:
        yield blocks_together(samples)
    if Switch.STATISTICS_OF_ALL_RANKS in fixes:
        yield statistics_together(samples, model(), acts)
    if (drawn := found(fixes, DrawGlobalBatch)) is not None:
        yield GlobalDraws(
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
            samples=lambda: _samples_of_rank(fixes, shard_targets()),
            known=drawn.shapes,
        )
    if (skipped := found(fixes, SkipAllReduces)) is not None:
        yield off_after_backward(of_gradients=skipped.of_gradients)


def _samples_of_rank(fixes: Interventions, targets: Any) -> int:
    """Returns how many samples the rank computes of a batch with these targets."""
    count = countables.samples(targets)
    is_whole = found(fixes, GlobalLoss) is not None  # the step has all samples
    return count // dist.get_world_size() if is_whole else count


def after_step(model: nn.Module, fixes: Interventions) -> None:
    """Applies the interventions that act between two steps."""
    if Switch.BROADCAST_AFTER_STEP in fixes:
        rewriting.broadcast(model, {})
    if Switch.STATE_BROADCAST not in fixes:
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


def _compiler(fix: Switch) -> contextlib.AbstractContextManager[None]:
    return compiling.with_settings(**_COMPILER_SETTINGS[fix])


def joining(*, counts_all: bool) -> contextlib.AbstractContextManager[None]:
    """DDP's join divides by all ranks, or by those that have not joined yet."""
    before: Any = DistributedDataParallel.join_hook

    def join_hook(self: Any, **kwargs: Any) -> Any:
        return before(self, **kwargs | {"divide_by_initial_world_size": counts_all})

    return replaced(DistributedDataParallel, join_hook=join_hook)


def nonreentrant_checkpoints() -> contextlib.AbstractContextManager[None]:
    """Checkpoints run no backward inside the backward."""
    import torch.utils.checkpoint as module  # noqa: PLC0415

    def apply(function: Any, preserve: bool, *args: Any) -> Any:  # noqa: FBT001
        return module.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )

    return replaced(module.CheckpointFunction, apply=staticmethod(apply))


def reporting_rank(fix: Switch, acts: Acts) -> contextlib.AbstractContextManager[None]:
    """dist.get_rank returns one rank in user code; a single process has rank 0."""
    before, rank = dist.get_rank, _RANKS[fix]

    def get_rank(*args: Any, **kwargs: Any) -> int:
        name = callers.module_of(callers.frame(1))
        is_users = not name.startswith(("torch.", "ddpcheck."))
        if is_users:
            acts.note(fix)
        return rank if is_users else before(*args, **kwargs)

    return replaced(dist, get_rank=get_rank)
