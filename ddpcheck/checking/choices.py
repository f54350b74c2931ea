"""What a check asks of the reference, and what the reference decides of the rest.

Settings of the target file, the tolerance of the dtype that works, the runs that fit
into memory.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ddpcheck.checking import plan
from ddpcheck.compare import tolerance
from ddpcheck.run.modes import memory
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import NATIVE, ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.options import Options

_MOST_OF_ROOM = 0.8  # the rest is for activations, whose size is not known before


def base_spec(options: Options) -> RunSpec:
    """Returns the single-process run on the global batch, as options ask for it."""
    return RunSpec(
        mode=SINGLE.name,
        dtype=options.dtype,
        noise=options.noise,
        steps=options.steps,
        seed=options.seed,
        loss=options.loss[0],
        device=options.run_device,
        batch_norm="asis",
    )


def with_settings(options: Options, settings: dict[str, Any]) -> Options:
    """Fills options that were not given from the target's own settings."""
    settings = {**options.project, **settings}
    changes: dict[str, Any] = {}
    if options.world_sizes is None and settings.get("world_sizes"):
        changes["world_sizes"] = tuple(settings["world_sizes"])
    if options.simulate is None and settings.get("simulate"):
        changes["simulate"] = tuple(settings["simulate"])
    if options.tolerance is None and settings.get("tolerance"):
        changes["tolerance"] = float(settings["tolerance"])
    accept = settings.get("accept") or {}
    if not isinstance(accept, dict):
        accept = dict.fromkeys(accept, "accepted in the target")
    changes["accept"] = {**accept, **options.accept}
    return dataclasses.replace(options, **changes)


def at_tolerance(base: ReferenceResult, options: Options) -> ReferenceResult:
    """Sets the tolerance above which ranks send a whole tensor.

    Raises:
        UsageError: option-value, of a tolerance below the rounding of the dtype.
    """
    assert base.spec is not None
    if options.tolerance is not None:
        tolerance.check_chosen(options.tolerance, base.spec.dtype)
    default = tolerance.default(base.spec.dtype).rtol
    rtol = min(default, options.tolerance or default)
    return dataclasses.replace(base, spec=base.spec.but(rtol=rtol))


def converts_after_wrapping(outcomes: list[RunOutcome]) -> bool:
    """Returns whether the target casts its model after wrapping it."""
    made_so = any(o.spec.constants == NATIVE for o in outcomes)
    return not made_so and any(o.facts().get("applied_after_wrap") for o in outcomes)


def leave_room(session: Session, planned: plan.Plan, base: ReferenceResult) -> None:
    """Leaves out default runs that need too much memory, unless all do."""
    sizes, room = base.facts["sizes"], session.room
    if room is None:
        return
    needed = {s: memory.needed(sizes, s.mode, s.world_size) for s in planned.specs}
    too_large = [s for s in planned.specs if needed[s] > _MOST_OF_ROOM * room.limit]
    if len(too_large) == len(planned.specs):
        return
    for spec in too_large:
        planned.drop(
            spec,
            f"it needs about {memory.gib(needed[spec])} GiB, and {room.origin} must "
            f"also hold activations; --world-sizes {spec.world_size} runs it anyway",
        )


def check_memory(session: Session, planned: plan.Plan, base: ReferenceResult) -> None:
    """Refuses what does not fit before any of it runs.

    Raises:
        UsageError: option-max-memory.
    """
    name = Path(session.ref.path or "").name or "the target"
    runs = [(spec.mode, spec.world_size) for spec in planned.specs]
    memory.check(name, base.facts["sizes"], runs, session.room)
