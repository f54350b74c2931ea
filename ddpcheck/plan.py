"""The matrix: which runs a check makes, and what it leaves out and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddpcheck.errors import Problem, UsageError
from ddpcheck.options import DEFAULT_WORLD_SIZES, Options
from ddpcheck.report import NotCompared
from ddpcheck.run.spec import RunSpec


@dataclass(slots=True)
class Plan:
    """The specs to run, in order."""

    specs: list[RunSpec] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def make(options: Options, base: RunSpec, facts: dict[str, Any]) -> Plan:
    """Returns the runs for a target of which the reference told `facts`.

    Args:
        options: what the user asked for.
        base: the reference's spec, with the dtype that worked.
        facts: of the reference run.

    Raises:
        UsageError: option-world-size.
    """
    plan = Plan()
    size = facts["batch_size"]
    sizes = _world_sizes(options, size, plan)
    modes = _modes(options, facts, plan)
    for batch_norm in options.batch_norm:
        if batch_norm != "asis" and not facts["has_batch_norm"]:
            what = f"batch norm mode {batch_norm}"
            plan.not_compared.append(
                NotCompared(what=what, why="the model has no batch norm of torch's")
            )
            continue
        for loss in options.loss:
            for mode in modes:
                for world_size in sizes:
                    if mode == "dp" and batch_norm == "sync":
                        _skip_dp_sync(plan)
                        continue
                    spec = base.but(
                        mode=mode,
                        world_size=world_size,
                        batch_norm=batch_norm,
                        loss=loss,
                    )
                    plan.specs.append(spec)
    return plan


def _world_sizes(options: Options, size: int, plan: Plan) -> tuple[int, ...]:
    if options.world_sizes is not None:
        too_large = [w for w in options.world_sizes if w > size]
        if too_large:
            raise UsageError(
                Problem(
                    slug="option-world-size",
                    message=f"world size {too_large[0]} needs more samples than "
                    "the batch has",
                    expected=f"world sizes from 1 to {size}, one sample a rank at "
                    "least",
                    found=f"a batch of {size}",
                    fix="smaller --world-sizes, or a larger batch",
                )
            )
        return options.world_sizes
    even = tuple(w for w in DEFAULT_WORLD_SIZES if size % w == 0 and w <= size)
    if even:
        return even
    possible = tuple(w for w in DEFAULT_WORLD_SIZES if w <= size)
    if possible:
        plan.warnings.append(
            f"none of the default world sizes divides the batch of {size}: "
            "the shards are uneven, which a plain mean loss does not survive"
        )
        return possible
    raise UsageError(
        Problem(
            slug="target-batch-small",
            message="the batch has one sample and cannot be sharded",
            expected="a global batch of at least 2 samples",
            found=f"a batch of {size}",
            fix="return more samples from batch()",
        )
    )


def _modes(options: Options, facts: dict[str, Any], plan: Plan) -> tuple[str, ...]:
    if options.modes is not None:
        return options.modes
    why = ""
    if facts["has_wrap"]:
        why = "the target has a `wrap` of its own, for ranks"
    elif facts["asks_distributed"]:
        why = "the target asks torch.distributed, so it is written for ranks"
    if why:
        why += "; --modes dp,ddp runs it all the same"
        plan.not_compared.append(NotCompared(what="DataParallel", why=why))
        return ("ddp",)
    return ("dp", "ddp")


def _skip_dp_sync(plan: Plan) -> None:
    skipped = NotCompared(
        what="DataParallel with synchronised batch norm",
        why="nn.SyncBatchNorm needs one process per device",
    )
    if skipped not in plan.not_compared:
        plan.not_compared.append(skipped)
