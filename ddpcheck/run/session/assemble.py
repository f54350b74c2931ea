"""Outcomes of runs into the report's `Run`: merging ranks and steps, judging."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

from ddpcheck.compare import tolerance
from ddpcheck.errors import frames
from ddpcheck.errors.problem import cut
from ddpcheck.report.data import JUDGED, Difference, Fault, NotCompared, Quantity, Run
from ddpcheck.run.facts import REFUSED, ReferenceFacts
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import agreement
from ddpcheck.run.session.session import describe_exit
from ddpcheck.run.spec import EMULATED, RunOutcome, StepResult, result_of

_MAX_ROWS = 50


_AVERAGED_LATER = (
    "each rank's own when the optimizer steps; the ranks share their weights after it, "
    "and these equal the single-process weights after every step"
)
# Why gradients are not compared, by the fact that names the parameters or steps.
_LEFT_OUT: dict[Literal["unused", "untaken", "unfinished"], str] = {
    "unused": "no gradient in the single-process run either",
    "untaken": "no optimizer step takes them",
    "unfinished": "no optimizer step in this step",
}
# What a rank waited for when it was ended, by the kind of its outcome.
_WAITED = {
    "stopped": "for the others",
    "stuck": "for data that no rank sends",
    "hung": "until the deadline",
}
# Ranks may share a GPU that the single process has alone.
_GPU_IS_FULL = "OutOfMemoryError: CUDA"


def to_run(outcome: RunOutcome, rtol: float) -> Run:
    """Returns the run as the report shows it, judged at `rtol`."""
    spec = outcome.spec
    factor = spec.rtol / rtol
    quantities = {
        name: _merge(outcome, name, factor)
        for name in ("gradients", "weights", "buffers", "outputs")
    }
    refusal = _refusal(outcome)
    if refusal:  # the steps before the refusal prove nothing
        quantities = dict.fromkeys(quantities, Quantity())
    faults = () if refusal else tuple(faults_of(outcome))
    own = not faults and agreement.averages_weights(outcome)
    if own:
        quantities["gradients"] = Quantity()
    of_ranks = ("weights",) if own else agreement.OF_RANKS
    agree = agreement.ranks_agree(outcome, rtol, of_ranks)
    run = Run(
        mode=spec.mode,
        world_size=spec.world_size,
        reduce=spec.ps_reduce if mode_of(spec.mode).servers else "",
        batch_norm=spec.batch_norm,
        loss=spec.loss,
        noise=spec.noise,
        dtype=spec.dtype,
        verdict="not-checked",
        why=refusal,
        shard_sizes=_shard_sizes(outcome),
        rtol=rtol,
        losses=Quantity() if refusal else _losses(outcome, rtol),
        ranks_agree=agree,
        faults=faults,
        seconds=outcome.seconds,
        **quantities,
    )
    return _judge(run, _nothing(outcome))


def _refusal(outcome: RunOutcome) -> str:
    """Returns why the run cannot be judged, "" if it can."""
    if outcome.cut_off:
        return outcome.cut_off
    for facts in outcome.facts_of_ranks():
        if "noise_undefined" in facts:
            reason = facts["noise_undefined"]
            return f"noise cannot follow the sample in this step: {reason}"
        if REFUSED in facts:
            return facts[REFUSED]
    return ""


def worst_excess(run: Run) -> float:
    """Returns the largest excess of the judged quantities; inf for a fault."""
    if run.faults:
        return math.inf
    values = [q.worst.excess for q in judged(run) if q.worst]
    if not run.ranks_agree and max(values, default=0.0) <= 1:
        return math.inf
    return max(values, default=math.inf)


def excesses_of_ranks(
    outcome: RunOutcome, run: Run
) -> dict[tuple[str, str, int, int], float]:
    """Returns the excess by quantity that was judged, tensor, step and rank.

    The run made of the outcome has of each tensor that of its worst rank alone. "" is
    the worst tensor of a rank: one that is right may not be listed.
    """
    factor = outcome.spec.rtol / run.rtol
    found: dict[tuple[str, str, int, int], float] = {}
    for rank in range(len(outcome.ranks)):
        for result in outcome.steps(rank):
            for name in JUDGED:
                if name not in result.quantities or not getattr(run, name).compared:
                    continue
                rows = [_scale(r, factor) for r in _rows(result.quantities[name])]
                for row in rows:
                    found[name, row.name, result.step, rank] = row.excess
                worst = max((row.excess for row in rows), default=0.0)
                found[name, "", result.step, rank] = worst
    return found


def judged(run: Run) -> list[Quantity]:
    """Returns the quantities that decide the verdict."""
    return [getattr(run, name) for name in JUDGED]


def not_compared(outcomes: list[RunOutcome], runs: list[Run]) -> list[NotCompared]:
    """Returns the quantities that the runs did not compare, with the reasons."""
    found = []
    for outcome, run in zip(outcomes, runs, strict=True):
        if run.verdict == "not-checked":
            what = f"{run.mode} at world size {run.world_size}"
            found.append(NotCompared(what=what, why=run.why))
        if agreement.averages_weights(outcome) and not run.faults:
            what = f"gradients of {run.mode} at world size {run.world_size}"
            found.append(NotCompared(what=what, why=_AVERAGED_LATER))
        facts = outcome.facts()
        found += [
            NotCompared(what=what, why=why)
            for of_rank in outcome.facts_of_ranks()
            for what, why in of_rank.get("not_compared", {}).items()
        ]
        for name, (expected, mine) in facts.get("uncomparable", {}).items():
            why = (
                f"called {expected:g} times a step in a single process, {mine:g} times "
                "on a rank: averages of different numbers of updates are not comparable"
            )
            found.append(NotCompared(what=f"buffers of {name or 'the model'}", why=why))
    facts_of_one = outcomes[0].reference.facts if outcomes else ReferenceFacts()
    for fact, why in _LEFT_OUT.items():
        named = facts_of_one.get(fact, ())
        if named:
            is_steps = fact == "unfinished"
            names = [str(it + 1 if isinstance(it, int) else it) for it in named]
            what = "step " * is_steps + cut(names)
            found.append(NotCompared(what=f"gradients of {what}", why=why))
    return found


def _nothing(outcome: RunOutcome) -> str:
    """Returns why a run is not judged: steps that the single-process run lacks."""
    facts = outcome.reference.facts
    if facts.get("never_updates"):
        return f"no optimizer step in {outcome.spec.steps} steps: --steps"
    return facts.get("nothing", "")


def _judge(run: Run, never: str) -> Run:
    """Returns the run with its verdict; `never`: why it cannot be equivalent."""
    if run.why:
        return run
    cannot_run = mode_of(run.mode).cannot_run
    if run.faults and cannot_run:
        why = f"{cannot_run}: {run.faults[0].summary}"
        return dataclasses.replace(run, why=why)
    why = next((found for f in run.faults if (found := not_the_targets(f))), "")
    if why:
        return dataclasses.replace(run, why=why)
    if run.faults or not run.ranks_agree or any(q.mismatched for q in judged(run)):
        return dataclasses.replace(run, verdict="divergent")
    if run.gradients.compared == 0 and run.weights.compared == 0:
        never = "nothing was compared"
    if never:
        return dataclasses.replace(run, why=never)
    return dataclasses.replace(run, verdict="equivalent")


def not_the_targets(fault: Fault) -> str:
    """Returns why a fault is not caused by the target, "" if it may be."""
    if EMULATED in fault.summary:
        return fault.summary
    if _GPU_IS_FULL in fault.summary:
        return f"rank {fault.rank} found no room on its GPU: {fault.summary}"
    own = frames.raised_in_own_work(fault.stack) if fault.kind == "raised" else None
    if own is None:
        return ""
    return (
        f"ddpcheck itself failed on rank {fault.rank}, not the target: "
        f"{fault.summary} ({own.short})"
    )


def _merge(outcome: RunOutcome, name: str, factor: float) -> Quantity:
    """Returns one quantity over all ranks and steps.

    `compared` and `mismatched` count (tensor, step) pairs, not ranks: those compared by
    any rank, and those of them outside the tolerance on any rank.
    """
    compared = mismatched = 0
    worst: Difference | None = None
    rows: dict[tuple[str, int], Difference] = {}
    by_step: list[float] = []
    for results in agreement.by_step(outcome):
        quantities = [s.quantities[name] for s in results if name in s.quantities]
        compared += len(frozenset().union(*(s.compared.get(name, ()) for s in results)))
        bad: set[str] = set()
        top: float | None = None
        for row in (r for q in quantities for r in _rows(q)):
            scaled = _scale(row, factor)
            if scaled.excess > 1:
                bad.add(row.name)
            key = (row.name, row.step)
            if key not in rows or scaled.excess > rows[key].excess:
                rows[key] = scaled
            if worst is None or scaled.excess > worst.excess:
                worst = scaled
            top = scaled.excess if top is None else max(top, scaled.excess)
        mismatched += len(bad)
        if top is not None:
            by_step.append(top)
    ranked = sorted(rows.values(), key=lambda r: (-r.excess, r.step, r.name))
    return Quantity(
        compared=compared,
        mismatched=mismatched,
        worst=worst,
        tensors=tuple(ranked[:_MAX_ROWS]),
        excess_by_step=tuple(by_step),
    )


def _rows(quantity: Quantity) -> Iterable[Difference]:
    if quantity.tensors:
        return quantity.tensors
    return (quantity.worst,) if quantity.worst else ()


def _scale(row: Difference, factor: float) -> Difference:
    """Excess is inversely proportional to rtol: another rtol needs no other run."""
    if factor == 1.0 or math.isinf(row.excess):
        return row
    return dataclasses.replace(row, excess=row.excess * factor)


def _losses(outcome: RunOutcome, rtol: float) -> Quantity:
    """Compares the mean of the ranks' losses with the reference's loss.

    A loss computed in a lower precision has the tolerance of that precision.
    """
    own = outcome.reference.facts.get("loss_dtype", "")
    if own != outcome.spec.dtype:
        rtol = max(rtol, tolerance.DEFAULT_RTOL.get(own, 0.0))
    rows = []
    for results in agreement.by_step(outcome):
        step = results[0].step
        values = [s.loss for s in results if s.loss is not None]
        reference = outcome.reference.losses[step]
        if reference is None or len(values) < len(outcome.ranks):
            continue
        mean = math.fsum(values) / len(values)
        diff = abs(mean - reference)
        bound = rtol * 2 * abs(reference)
        excess = diff / bound if bound else (0.0 if diff == 0 else math.inf)
        rows.append(
            Difference(
                name="loss",
                step=step,
                abs_diff=diff,
                rel_diff=diff / abs(reference) if reference else 0.0,
                excess=math.inf if math.isnan(excess) else excess,
                ratio=mean / reference if reference else None,
            )
        )
    worst = max(rows, key=lambda r: r.excess) if rows else None
    return Quantity(
        compared=len(rows),
        mismatched=sum(r.excess > 1 for r in rows),
        worst=worst,
        tensors=tuple(sorted(rows, key=lambda r: -r.excess)),
        excess_by_step=tuple(r.excess for r in rows),
    )


def faults_of(outcome: RunOutcome) -> Iterable[Fault]:
    """Yields a fault for each process that raised, died or hung."""
    for rank in (*outcome.ranks, *outcome.servers):
        is_server = rank in outcome.servers
        of = "parameter server: " * is_server
        results = (s for s in rank.progress if isinstance(s, StepResult))
        step = max((s.step for s in results), default=None)
        result = result_of(rank)
        raised = rank.raised or (result.raised if result else None)
        if raised is not None:
            first = raised.message.strip().splitlines()
            yield Fault(
                kind="raised",
                rank=result.rank if result else rank.rank,
                step=step,
                summary=of + ": ".join((raised.type_name, *first[:1])),
                stack=raised.stack,
                stderr=rank.stderr,
            )
        elif rank.kind == "died":
            yield Fault(
                kind="died",
                rank=rank.rank,
                step=step,
                summary=of + describe_exit(rank.exit_code),
                stack=rank.stack,
                stderr=rank.stderr,
            )
        elif rank.kind in _WAITED and not is_server:
            yield Fault(
                kind="hung",
                rank=rank.rank,
                step=step,
                summary=f"waited {_WAITED[rank.kind]}",
                stack=rank.stack,
                stderr=rank.stderr,
            )


def _shard_sizes(outcome: RunOutcome) -> tuple[int, ...]:
    size = outcome.reference.facts.get("batch_size", 0)
    return mode_of(outcome.spec.mode).shard_sizes(size, outcome.spec.world_size)
