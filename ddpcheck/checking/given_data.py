"""Mistakes in batch() that runs on ranks show: data that do not repeat, uncut lists."""

from __future__ import annotations

from pathlib import Path

from ddpcheck.compare import digests
from ddpcheck.errors.problem import Problem, UsageError, cut
from ddpcheck.ranks.pool import SOLO
from ddpcheck.report.data import Run
from ddpcheck.run.intervention import Switch
from ddpcheck.run.modes.registry import mode_of
from ddpcheck.run.session import assemble
from ddpcheck.run.session.session import RunOutcome, Session
from ddpcheck.run.spec import ReferenceResult

# Relative to the sum of all sizes: a batch that is computed may be rounded otherwise
# where it is computed again, and other data differ by 1 / sqrt(numbers).
_RTOL = 1e-6

Samples = tuple[dict[str, tuple[float, ...]], ...]  # of every step, by path


def check_repeats(
    session: Session, base: ReferenceResult, outcomes: list[RunOutcome]
) -> None:
    """Looks whether batch() repeats itself, where rank 0's differs from one process's.

    A rank may be given others because it is a rank; a second process that is like the
    first may not.

    Raises:
        UsageError: target-batch-unseeded.
    """
    told: Samples = base.facts["samples"]
    if all(_differing(told, o.facts().get("samples", ())) is None for o in outcomes):
        return
    assert base.spec is not None
    session.pool.retire(SOLO)  # what user code has kept since
    again = session.run([base.spec])[0]
    part = _differing(told, again.facts().get("samples", ()))
    if part is not None:
        raise UsageError(
            Problem(
                slug="target-batch-unseeded",
                message=f"{_name(session)}: two calls of batch() return different data",
                expected="the same global batch from every call, in every process",
                found=f"{part or 'the batch'} differs between two calls of batch()",
                fix="draw from generators that batch() seeds: "
                "np.random.default_rng(0), torch.Generator().manual_seed(0)",
            )
        )


def _differing(told: Samples, other: Samples) -> str | None:
    """Returns the first part of a batch whose numbers are others."""
    for mine, theirs in zip(told, other, strict=False):
        for part, numbers in mine.items():
            if part not in theirs:
                return part
            if not digests.is_same([numbers, theirs[part]], _RTOL):
                return part
    return None


def check_lists(
    session: Session, outcomes: list[RunOutcome], runs: list[Run], rtol: float
) -> None:
    """Cuts lists that may have a number per sample, where a run diverges.

    Equal to one process then, all ranks had what belongs to samples of others.

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
            raise UsageError(
                Problem(
                    slug="target-batch-undivided",
                    message=f"{_name(session)}: {cut(lists)} cannot be cut into shards",
                    expected="tensors whose dimension 0 is the sample, in tuples and "
                    "dicts",
                    found="a list with a number for each sample, whole on every rank",
                    fix="make it a tensor: torch.tensor(numbers)",
                )
            )
        return


def warnings(base: ReferenceResult) -> list[str]:
    """Returns what to say of lists that are as long as the batch."""
    lists = base.facts["lists"]
    if not lists:
        return []
    return [
        f"{cut(lists)}: a list of {base.facts['batch_size']} numbers, as many as "
        "samples, and every rank has all of it; if each sample has one, make it a "
        "tensor, which is cut into shards"
    ]


def _name(session: Session) -> str:
    return Path(session.ref.path or "").name or str(session.ref.factory or "target")
