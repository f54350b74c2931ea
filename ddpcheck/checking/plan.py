"""The matrix: which runs a check makes, and what it leaves out and why.

The reference decides part of it: settings of the target file, the tolerance of the
dtype that works, the runs that fit into memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpcheck.compare import tolerance
from ddpcheck.errors.problem import usage_error
from ddpcheck.report.data import NotCompared
from ddpcheck.run.facts import ReferenceFacts
from ddpcheck.run.modes import memory
from ddpcheck.run.modes.registry import MODES, mode_of
from ddpcheck.run.modes.sim import SIM
from ddpcheck.run.modes.single import SINGLE
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import NATIVE, ReferenceResult, RunOutcome, RunSpec
from ddpcheck.target.options import DEFAULT_WORLD_SIZES, Options

_NO_BATCH_NORM = "the model has no batch norm of torch's"
_ONE_RANK = (
    "one rank has the whole batch: nothing is sharded, averaged or synchronised, so "
    "errors that need several ranks cannot be detected; add --world-sizes 2"
)
_NO_SERVER = "--ps-reduce {}: no run has a parameter server; --modes ps asks for one"
_DEFAULTS = tuple(mode.name for mode in MODES if mode.is_default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the matrix, planned without knowing the target."""

    mode: str
    world_size: int
    batch_norm: str = "asis"
    loss: str = "asis"

    def __str__(self) -> str:
        """Returns a name without spaces: "ddp-W2", "ddp-W2-bn.sync-loss.sum"."""
        parts = [self.mode, f"W{self.world_size}"]
        listed = (("bn", self.batch_norm), ("loss", self.loss))
        return "-".join(parts + [f"{k}.{v}" for k, v in listed if v != "asis"])


def cells(options: Options) -> list[Cell]:
    """Returns the runs that options ask for, in order, whatever the target is.

    `make` leaves out what a target cannot do, and adds nothing.
    """
    pairs = [
        (mode, world_size)
        for mode in options.modes or _DEFAULTS
        for world_size in options.world_sizes or DEFAULT_WORLD_SIZES
    ]
    pairs += [(SIM.name, world_size) for world_size in options.simulate or ()]
    return [
        Cell(mode=mode, world_size=world_size, batch_norm=batch_norm, loss=loss)
        for batch_norm in options.batch_norm
        for loss in options.loss
        for mode, world_size in pairs
        if not (batch_norm == "sync" and mode_of(mode).unsynchronised)
    ]


@dataclass(slots=True)
class Plan:
    """The specs to run, in order."""

    specs: list[RunSpec] = field(default_factory=list)
    not_compared: list[NotCompared] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def skip(self, what: NotCompared) -> None:
        """Lists what is left out, once."""
        if what not in self.not_compared:
            self.not_compared.append(what)

    def drop(self, spec: RunSpec, why: str) -> None:
        """Leaves out one run, and lists it."""
        self.specs.remove(spec)
        self.skip(NotCompared(what=str(_cell(spec)), why=why))

    def keep(self, only: Sequence[Cell], facts: ReferenceFacts) -> None:
        """Leaves out all runs but these; those that are not planned are listed."""
        planned = {_cell(spec): spec for spec in self.specs}
        self.specs = [planned[cell] for cell in only if cell in planned]
        self.not_compared += [
            NotCompared(what=str(cell), why=_why_not(cell, self, facts))
            for cell in only
            if cell not in planned
        ]


def _why_not(cell: Cell, plan: Plan, facts: ReferenceFacts) -> str:
    if cell.batch_norm != "asis" and not facts["has_batch_norm"]:
        return _NO_BATCH_NORM
    title = mode_of(cell.mode).title
    whole_mode = [n.why for n in plan.not_compared if n.what == title]
    if whole_mode:
        return whole_mode[0]
    size = facts["batch_size"]
    return f"the batch of {size} is not divisible by {cell.world_size}"


def _cell(spec: RunSpec) -> Cell:
    return Cell(
        mode=spec.mode,
        world_size=spec.world_size,
        batch_norm=spec.batch_norm,
        loss=spec.loss,
    )


def make(
    options: Options,
    base: RunSpec,
    facts: ReferenceFacts,
    only: Sequence[Cell] | None = None,
) -> Plan:
    """Returns the runs for a target; `facts` come from the reference.

    Args:
        options: what the user asked for.
        base: the reference's spec, with the dtype that worked.
        facts: of the reference run.
        only: the runs to keep; all by default.

    Raises:
        UsageError: option-world-size.
    """
    plan = _make(options, base, facts)
    if only is not None:
        plan.keep(only, facts)
    return plan


def _make(options: Options, base: RunSpec, facts: ReferenceFacts) -> Plan:
    plan = Plan()
    size = facts["batch_size"]
    sizes = _world_sizes(options, size, plan)
    modes = _modes(options, facts, plan)
    pairs = [(mode, world_size) for mode in modes for world_size in sizes]
    if set(sizes) == {1}:
        plan.warnings.append(_ONE_RANK)
    simulated = options.simulate or ()
    _check_sizes(simulated, size, "--simulate")
    pairs += [(SIM.name, world_size) for world_size in simulated]
    for batch_norm in options.batch_norm:
        if batch_norm != "asis" and not facts["has_batch_norm"]:
            what = f"batch norm mode {batch_norm}"
            plan.not_compared.append(NotCompared(what=what, why=_NO_BATCH_NORM))
            continue
        for loss in options.loss:
            for mode, world_size in pairs:
                unsynchronised = mode_of(mode).unsynchronised
                if unsynchronised is not None and batch_norm == "sync":
                    plan.skip(unsynchronised)
                    continue
                spec = base.but(
                    mode=mode,
                    world_size=world_size,
                    batch_norm=batch_norm,
                    loss=loss,
                    ps_reduce=options.ps_reduce or base.ps_reduce,
                )
                plan.specs.append(spec)
    if options.ps_reduce and not any(mode_of(s.mode).servers for s in plan.specs):
        plan.warnings.append(_NO_SERVER.format(options.ps_reduce))
    return plan


def _world_sizes(options: Options, size: int, plan: Plan) -> tuple[int, ...]:
    if options.world_sizes is not None:
        _check_sizes(options.world_sizes, size, "--world-sizes")
        return options.world_sizes
    even = tuple(w for w in DEFAULT_WORLD_SIZES if size % w == 0 and w <= size)
    if even:
        return even
    possible = tuple(w for w in DEFAULT_WORLD_SIZES if w <= size)
    if possible:
        plan.warnings.append(
            f"none of the default world sizes divides the batch of {size}: "
            "the shards are uneven, for which a plain mean loss is wrong"
        )
        return possible
    raise usage_error(
        slug="target-batch-small",
        message="the batch has one sample and cannot be sharded",
        expected="a global batch of at least 2 samples",
        found=f"a batch of {size}",
        fix="return more samples from batch()",
    )


def _check_sizes(sizes: tuple[int, ...], size: int, option: str) -> None:
    too_large = [w for w in sizes if w > size]
    if not too_large:
        return
    raise usage_error(
        slug="option-world-size",
        message=f"world size {too_large[0]} needs more samples than the batch has",
        expected=f"world sizes from 1 to {size}, one sample a rank at least",
        found=f"a batch of {size}",
        fix=f"smaller {option}, or a larger batch",
    )


def _modes(options: Options, facts: ReferenceFacts, plan: Plan) -> tuple[str, ...]:
    if options.modes is not None:
        return options.modes
    wanted = []
    for name in _DEFAULTS:
        mode = mode_of(name)
        why = next((why for fact, why in mode.left_out_where if facts[fact]), "")
        if not why:
            wanted.append(name)
            continue
        why += f"; --modes {','.join(_DEFAULTS)} runs it anyway"
        plan.not_compared.append(NotCompared(what=mode.title, why=why))
    return tuple(wanted)


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


def leave_room(session: Session, planned: Plan, base: ReferenceResult) -> None:
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


def check_memory(session: Session, planned: Plan, base: ReferenceResult) -> None:
    """Refuses what does not fit before any of it runs.

    Raises:
        UsageError: option-max-memory.
    """
    name = Path(session.ref.path or "").name or "the target"
    runs = [(spec.mode, spec.world_size) for spec in planned.specs]
    memory.check(name, base.facts["sizes"], runs, session.room)
