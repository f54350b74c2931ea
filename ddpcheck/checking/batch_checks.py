"""Checks of the batch: errors in batch() that runs show, and errors that it hides.

A batch may differ from call to call, or have lists that are not sharded; and if its
samples are equal, or its shards have equal counts, some errors cannot be detected.
"""

from __future__ import annotations

from ddpcheck.compare import tolerance
from ddpcheck.errors.problem import cut, usage_error
from ddpcheck.ranks.pool import SOLO
from ddpcheck.report.data import Run, Tolerance
from ddpcheck.run.facts import Samples
from ddpcheck.run.intervention import Switch
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import Session
from ddpcheck.run.spec import ReferenceResult, RunOutcome

# Relative to the sum of all sizes: a batch that is computed twice may be rounded
# differently; different data differ by 1 / sqrt(numbers).
_RTOL = 1e-6


def check_repeats(
    session: Session, base: ReferenceResult, outcomes: list[RunOutcome]
) -> None:
    """Checks that batch() repeats, if rank 0 got a batch unlike the reference's.

    batch() may return different data on a rank on purpose, but a second single-process
    run must get the same batch as the first.

    Raises:
        UsageError: target-batch-unseeded.
    """
    first: Samples = base.facts["samples"]
    if all(_differing(first, o.facts().get("samples", ())) is None for o in outcomes):
        return
    assert base.spec is not None
    session.pool.retire(SOLO)  # user code may have kept state
    again = session.run([base.spec])[0]
    part = _differing(first, again.facts().get("samples", ()))
    if part is not None:
        raise usage_error(
            slug="target-batch-unseeded",
            message=f"{session.ref.name}: two calls of batch() return different data",
            expected="the same global batch from every call, in every process",
            found=f"{part or 'the batch'} differs between two calls of batch()",
            fix="draw from generators that batch() seeds: "
            "np.random.default_rng(0), torch.Generator().manual_seed(0)",
        )


def _differing(one: Samples, other: Samples) -> str | None:
    """Returns the first part of a batch with different numbers, None without one."""
    for mine, theirs in zip(one, other, strict=False):
        for part, numbers in mine.items():
            if part not in theirs:
                return part
            if not tolerance.digests_agree([numbers, theirs[part]], _RTOL):
                return part
    return None


def check_lists(
    session: Session, outcomes: list[RunOutcome], runs: list[Run], rtol: float
) -> None:
    """Shards lists that may have a number per sample, if a run diverges.

    If the run is equal then, every rank had numbers of other ranks' samples.

    Raises:
        UsageError: target-batch-undivided.
    """
    for outcome, run in zip(outcomes, runs, strict=True):
        lists = outcome.reference.facts["lists"]
        is_ranks = mode_of(run.mode).is_ranks
        if not lists or not is_ranks or run.verdict != "divergent":
            continue
        spec = outcome.spec.but(fixes=(*outcome.spec.fixes, Switch.SHARDED_LISTS))
        mended = assemble.to_run(session.run([spec])[0], rtol)
        if mended.verdict == "equivalent":
            raise usage_error(
                slug="target-batch-undivided",
                message=f"{session.ref.name}: {cut(lists)} cannot be cut into shards",
                expected="tensors whose dimension 0 is the sample, in tuples and dicts",
                found="a list with a number for each sample, whole on every rank",
                fix="make it a tensor: torch.tensor(numbers)",
            )
        return


def list_warnings(base: ReferenceResult) -> list[str]:
    """Returns a warning about lists that are as long as the batch."""
    lists = base.facts["lists"]
    if not lists:
        return []
    return [
        f"{cut(lists)}: a list of {base.facts['batch_size']} numbers, as many as "
        "samples, and every rank has all of it; if each sample has one, make it a "
        "tensor, which is cut into shards"
    ]


def undetectable(
    session: Session, runs: list[Run], outcomes: list[RunOutcome], limit: Tolerance
) -> list[str]:
    """Returns warnings about errors that equal runs cannot show with this batch."""
    equal = [
        outcome
        for outcome, run in zip(outcomes, runs, strict=True)
        if mode_of(run.mode).is_ranks and run.verdict == "equivalent"
    ]
    if not equal:
        return []
    facts = equal[0].reference.facts
    found = []
    if facts["at_rest"]:
        found.append(
            f"no weight changes in {equal[0].spec.steps} steps of the single-process "
            "run: gradients are compared, but no optimizer update is"
        )
    if facts["alike"]:
        found.append(
            "all samples of the batch are equal, so all shards are equal: a norm or "
            "loss that depends on the local shard cannot be detected; let batch() "
            "return samples that differ"
        )
        return found
    return found + _order_warning(session, equal[0], limit)


def _order_warning(
    session: Session, outcome: RunOutcome, limit: Tolerance
) -> list[str]:
    """Returns a warning if the run is equal only for this order of the samples.

    A mean over valid items is correct if all shards have the same number of them.
    """
    # One step is enough: unequal counts change the first gradients.
    shuffled = outcome.spec.but(shuffle=True, steps=1)
    if not session.trains(shuffled):
        return []
    again = session.run([shuffled])[0]
    run = assemble.to_run(again, limit.rtol)
    worst = run.gradients.worst
    if run.verdict != "divergent" or run.faults or worst is None or worst.excess <= 1:
        return []
    return [
        "equal only for this order of the samples: with the batch in another order "
        f"{worst.name} differs by {worst.rel_diff:.3g} at world size {run.world_size}; "
        "here all shards have equal counts, or the samples of one shard belong together"
    ]
