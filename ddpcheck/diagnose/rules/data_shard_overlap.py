"""Detects data/shard-overlap."""

from __future__ import annotations

from ddpcheck.diagnose.facts import rows
from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.proposal import replaced
from ddpcheck.diagnose.rules.rng_stochastic_layer import EQUAL, chooses_alone
from ddpcheck.run.intervention import DrawGlobalBatch, Substitute, Switch

SLUG = "data/shard-overlap"
LINK = "data"


def detect(case: Case) -> Proposal | None:
    """Proposes it if ranks do not have each single-process sample once."""
    moment = None if case.run.faults else rows.first_wrong(case)
    if moment is None or rows.first_padded(case) or rows.earlier(case, moment):
        return None
    shared = len(moment.shared)
    if not shared and not rows.has_a_part(moment):
        return None
    proposal = Proposal(
        summary=_summary(moment),
        facts=(
            f"in step {moment.step + 1} the single-process run trains on "
            f"{len(moment.one)} samples; of these on no rank: "
            f"{sum(moment.missing.values())}; on more ranks than the single-process "
            f"run has copies: {shared}",
        ),
        fix=(
            "shuffle with the same seed on all ranks, and give every rank its own part"
        ),
        fixes=(Substitute(boundary="orders"),),
        evidence=rows.evidence(moment),
        speculative=not rows.overlap(case, moment),
        needs_no_proof=rows.overlap(case, moment),
    )
    if not case.facts["has_train_step"]:
        return replaced(
            proposal,
            summary=(
                "batch() returns other samples on ranks than in the single-process run"
            ),
            fix="return the global batch on every rank: the loop cuts it into shards",
            code="",
            fixes=(Switch.BATCH_WITHOUT_GROUP,),
        )
    return _drawn(case, proposal) or _chosen(case, _loaded(moment, proposal))


def _drawn(case: Case, proposal: Proposal) -> Proposal | None:
    """Returns the proposal for a step that draws its samples, without a loader.

    Samples that no other rank has may be the rank's own samples plus noise.
    """
    draws = case.probed.reference.own_draws if case.probed else ()
    if (
        not (draws and proposal.needs_no_proof)
        or case.facts["shuffles"]
        or case.facts["loads"]
    ):
        return None
    return replaced(
        proposal,
        fix="draw for the global batch, and keep the rank's part",
        code="indices = torch.randint(size, (world * n,), generator=g)\n"
        "indices = indices[rank * n : (rank + 1) * n]",
        fixes=(DrawGlobalBatch(shapes=tuple(dict.fromkeys(draws))),),
    )


def _chosen(case: Case, proposal: Proposal) -> Proposal:
    """Returns the proposal with the run in which torch.utils.data draws nothing.

    An example is a random split with a per-rank seed: the training samples differ.
    """
    if not case.facts["draws"] or not chooses_alone(case):
        return proposal
    chosen = replaced(
        proposal,
        summary="samples are chosen at random, with another seed on every rank: "
        "the shards are not parts of one batch",
        facts=(*proposal.facts, EQUAL),
        fix="choose with a generator that has the same seed on all ranks",
        code="",
        fixes=(Switch.CONSTANT_DRAWS,),
    )
    last = proposal.fallback
    if last is None:
        return replaced(proposal, fallback=chosen)
    return replaced(proposal, fallback=replaced(last, fallback=chosen))


def _loaded(moment: rows.Moment, proposal: Proposal) -> Proposal:
    """Returns the proposal with the fix that shards a loader's samples."""
    sharding = _sharding(moment)
    if sharding is None:
        return proposal
    sharded = (Substitute(boundary="orders"), sharding)
    if rows.are_equal(moment):
        return replaced(proposal, fixes=sharded)
    return replaced(proposal, fallback=replaced(proposal, fixes=sharded))


def _summary(moment: rows.Moment) -> str:
    if rows.are_equal(moment):
        return "all ranks train on the same samples: the data are not sharded"
    if moment.shared:
        return "shards overlap: ranks train on samples of other ranks"
    return "the shards are not parts of one batch: each rank chooses its own samples"


def _sharding(moment: rows.Moment) -> Switch | None:
    """Returns the fix that shards the loader's batches, None if no size fits."""
    sizes = {len(r) for r in moment.ranks}
    if sizes == {len(moment.one)}:
        return Switch.LOADER_PARTS
    if sizes == {len(moment.one) // len(moment.ranks)}:
        return Switch.LOADER_STRIDES
    return None
