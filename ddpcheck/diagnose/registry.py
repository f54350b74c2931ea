"""All rules, in the order in which they run.

Faults come first, then the chain: data, forward, loss, reduction, update. Within a
group the order is from the most specific evidence to the least.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ddpcheck.diagnose.facts.case import Case
from ddpcheck.diagnose.facts.data_parallel_case import DataParallelCase
from ddpcheck.diagnose.facts.server_case import ServerCase
from ddpcheck.diagnose.proposal import Proposal, of_rule
from ddpcheck.diagnose.rules import (
    collective_backend_defect,
    collective_backward_double_count,
    collective_layout,
    collective_no_autograd,
    compile_ddp_optimizer,
    data_batch_layout,
    data_sampler_epoch,
    data_sampler_padding,
    data_shard_overlap,
    data_uneven_batches,
    ddp_autograd_grad,
    ddp_converted_after_wrap,
    ddp_forward_bypassed,
    ddp_frozen_after_wrap,
    ddp_multi_backward,
    ddp_param_order_mismatch,
    ddp_param_replaced_after_wrap,
    ddp_process_group,
    ddp_rank_local_weights,
    ddp_step_before_reduce,
    ddp_unfrozen_after_wrap,
    ddp_wrapper_missing,
    dp_replica_parameters_empty,
    dp_replica_state_lost,
    dp_scalar_gather,
    dp_scatter_semantics,
    dp_thread_context,
    dp_variable_length_gather,
    forward_batch_coupled,
    graph_opaque_output,
    graph_output_unused,
    graph_rank_dependent_branch,
    graph_reentrant_checkpoint,
    graph_shared_parameter,
    graph_skipped_backward,
    graph_static_graph_violated,
    graph_unused_parameter,
    loss_batch_coupled,
    loss_embedding_frequency,
    loss_factors,
    loss_regularizer_scale,
    loss_router_aux,
    norm_local_batch_stats,
    norm_running_stats_rank0,
    norm_syncbn_implementation,
    ps_reduce_mismatch,
    rng_same_stream_all_ranks,
    rng_stochastic_layer,
    state_buffer_broadcast_overwrites,
    state_buffer_not_synced,
    state_ema_teacher_divergence,
    state_forward_writes_parameter,
    state_inplace_buffer_version,
    state_optimizer_state,
    sync_clip_before_reduce,
    sync_clip_norm_overreduced,
    sync_collective_mismatch,
    sync_comm_hook_semantics,
    sync_control_desync,
    sync_grad_alias,
    sync_join_divisor,
    sync_no_sync_off_by_one,
    sync_no_sync_scope,
    sync_rank_fault,
    sync_scaler_desync,
    sync_static_graph_no_sync,
)
from ddpcheck.diagnose.rules.loss_factors import (
    loss_accum_normalizer,
    loss_double_world_scale,
    loss_empty_shard,
    loss_local_normalizer,
    loss_missing_world_scale,
    loss_sum_reduction,
    loss_uneven_shard,
)


class Rule(Protocol):
    """What a module of `rules` has, or a table in one for each slug of its rows.

    `SLUG`: the cause's stable name. `LINK`: where in a step it is, as Proposal.link.
    """

    SLUG: str
    LINK: str

    def detect(self, case: Case, /) -> Proposal | None:
        """Returns what may be the cause of a run that differs; runs nothing."""


class FaultRule(Protocol):
    """The same with several slugs, of which it proposes one."""

    SLUGS: tuple[str, ...]
    LINK: str

    def detect(self, case: Case, /) -> Proposal | None:
        """Returns what happened to a run that broke off; runs nothing."""


class DataParallelRule(Protocol):
    """The same for divergences that occur only under DataParallel."""

    SLUG: str
    LINK: str

    def detect(self, case: DataParallelCase, /) -> Proposal | None:
        """Returns what may be the cause of a run that differs; runs nothing."""


class ServerRule(Protocol):
    """The same for divergences of a parameter server."""

    SLUG: str
    LINK: str

    def detect(self, case: ServerCase, /) -> Proposal | None:
        """Returns what may be the cause of a run that differs; runs nothing."""


def asked(
    rule: Rule | DataParallelRule | ServerRule,
    case: Any,
    detect: Callable[[Any], Proposal | None] | None = None,
) -> Proposal | None:
    """Returns what a rule proposes, as its own.

    `detect`: another of the rule's functions, for cases of another kind.
    """
    found: Proposal | None = (detect or rule.detect)(case)
    return found and of_rule(found, rule.SLUG, rule.LINK)


# For divergences of a parameter server; these take a ServerCase.
SERVER_RULES: tuple[ServerRule, ...] = (ps_reduce_mismatch,)

# For divergences that occur only under DataParallel; these take a DataParallelCase.
DATA_PARALLEL_RULES: tuple[DataParallelRule, ...] = (
    dp_scalar_gather,
    dp_replica_parameters_empty,
    dp_replica_state_lost,
    dp_thread_context,
    dp_scatter_semantics,
)

# For DataParallel alone: its own rules, then those that others have for replicas.
DATA_PARALLEL_DETECTORS: tuple[
    tuple[Rule | DataParallelRule, Callable[[DataParallelCase], Proposal | None]], ...
] = (
    *((rule, rule.detect) for rule in DATA_PARALLEL_RULES),
    (norm_local_batch_stats, norm_local_batch_stats.detect_in_replicas),
    (dp_thread_context, dp_thread_context.detect_shared),
    (rng_stochastic_layer, rng_stochastic_layer.detect_in_replicas),
)

# For exceptions under DataParallel; these take a DataParallelCase too.
DATA_PARALLEL_FAULT_RULES: tuple[DataParallelRule, ...] = (
    dp_scatter_semantics,
    dp_variable_length_gather,
    dp_replica_parameters_empty,
    dp_scalar_gather,
)

# For faults that no other rule explains: it says what happened, not why. It proposes
# one of its slugs whenever a rank raised, died or hung.
FAULT_RULE: FaultRule = sync_rank_fault

# For causes that the fix of a loss hides, though the ranks' own numbers show them.
HIDDEN: tuple[tuple[Rule, Callable[[Case], Proposal | None]], ...] = (
    (loss_double_world_scale, loss_factors.detect_hidden),
    (sync_control_desync, sync_control_desync.detect_hidden),
    (sync_scaler_desync, sync_scaler_desync.detect_hidden),
    (ddp_wrapper_missing, ddp_wrapper_missing.detect_hidden),
    (state_ema_teacher_divergence, state_ema_teacher_divergence.detect_hidden),
)

# For runs that nothing else explains: their fixes would mend many causes.
LAST: tuple[tuple[Rule, Callable[[Case], Proposal | None]], ...] = (
    (loss_batch_coupled, loss_batch_coupled.detect_statistics),
)

RULES: tuple[Rule, ...] = (
    # Faults, before anything else can be judged.
    sync_collective_mismatch,
    data_uneven_batches,
    graph_skipped_backward,
    state_inplace_buffer_version,
    collective_backend_defect,
    # Which samples each rank trains on.
    data_sampler_padding,
    data_sampler_epoch,
    data_shard_overlap,
    # Random numbers, and decisions from per-rank numbers.
    rng_same_stream_all_ranks,
    sync_control_desync,
    rng_stochastic_layer,
    # Ranks that begin with other weights or buffers.
    ddp_param_order_mismatch,
    ddp_rank_local_weights,
    state_buffer_not_synced,
    # The forward mixes samples: by layout, in a norm, or otherwise.
    data_batch_layout,
    norm_syncbn_implementation,
    norm_local_batch_stats,
    forward_batch_coupled,
    # State that a forward, or a step, leaves for the next one.
    state_forward_writes_parameter,
    norm_running_stats_rank0,
    state_buffer_broadcast_overwrites,
    state_ema_teacher_divergence,
    sync_scaler_desync,
    # The loss: collectives in it first, then factors, then what couples samples.
    collective_backward_double_count,
    collective_no_autograd,
    loss_missing_world_scale,
    collective_layout,
    loss_accum_normalizer,
    loss_sum_reduction,
    loss_double_world_scale,
    loss_empty_shard,
    loss_uneven_shard,
    loss_router_aux,
    loss_batch_coupled,
    loss_local_normalizer,
    loss_regularizer_scale,
    loss_embedding_frequency,
    # How gradients are reduced, and when.
    compile_ddp_optimizer,
    sync_join_divisor,
    ddp_step_before_reduce,
    ddp_param_replaced_after_wrap,
    ddp_unfrozen_after_wrap,
    ddp_frozen_after_wrap,
    ddp_converted_after_wrap,
    graph_rank_dependent_branch,
    ddp_wrapper_missing,
    ddp_process_group,
    ddp_forward_bypassed,
    graph_reentrant_checkpoint,
    sync_static_graph_no_sync,
    sync_comm_hook_semantics,
    graph_opaque_output,
    graph_static_graph_violated,
    graph_unused_parameter,
    graph_output_unused,
    graph_shared_parameter,
    sync_no_sync_scope,
    sync_no_sync_off_by_one,
    ddp_autograd_grad,
    ddp_multi_backward,
    sync_grad_alias,
    # Changes of reduced gradients.
    sync_clip_norm_overreduced,
    sync_clip_before_reduce,
    state_optimizer_state,
)
