"""What the rules of the loss link share: ratios in words, counts, the widest fix."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, returns_other_rows
from ddpcheck.diagnose.facts.experiments import equal_shards
from ddpcheck.diagnose.facts.text import listed, number
from ddpcheck.report.data import Evidence, Ratios
from ddpcheck.run.intervention import (
    GlobalLoss,
    GlobalModule,
    Interventions,
    Output,
    ScaleDirect,
    ScaleLoss,
    ScaleOutputs,
    ScaleTerms,
    Substitute,
)
from ddpcheck.run.spec import SAMPLES

_SAME = 0.01  # of factors that are 1 or 2


def ratio_fact(case: Case) -> str:
    """Returns the ratios of the output gradients as a sentence."""
    ratios = [ratio for ratio, _ in case.ratios()]
    residual = max((r for _, r in case.ratios()), default=0.0)
    where = "the single-process outputs" if case.has_cuts else "all parameters"
    text = (
        f"the loss's gradient at {where}, divided by the single-process one: "
        f"{listed(ratios)} on the ranks, expected {case.world_size} on each"
    )
    if residual > case.close:
        text += f" (residual {residual:.3g}: no single factor)"
    return text


def ratio_evidence(case: Case) -> Evidence:
    """Returns the ratios as the report's picture takes them.

    If no single factor explains a rank's gradient, the best one may still be the right
    one: it is reported under another name, and not drawn.
    """
    found: Ratios = {
        "ranks": [ratio for ratio, _ in case.ratios()],
        "residuals": [residual for _, residual in case.ratios()],
        "expected": case.world_size,
    }
    return {"fitted_ratios": found} if case.rank_ratios is None else {"ratios": found}


def micro_evidence(case: Case) -> Evidence:
    """Returns the ratios of micro-batches as the report's picture takes them.

    Only micro-batches with one factor are returned; one whose samples are in several
    micro-batches of the single-process run has none.
    """
    found = {
        place: ratio
        for place, (ratio, residual) in case.micro_ratios().items()
        if residual <= case.close
    }
    return {
        "ratios": {
            "ranks": list(found.values()),
            "places": [list(place) for place in found],
            "expected": case.world_size,
        }
    }


def doubled(case: Case) -> float | None:
    """Returns 2 for a sum, 1 for a mean: gradient of the repeated batch over one.

    It is that of the parameters, which includes divisions after backward; if these fit
    no single factor, because the model depends on the number of samples (an embedding
    that scales by frequency), it is that of the outputs. None if neither fits.
    """
    if case.probed is None:
        return None
    if case.probed.reference.doubled is not None:
        return case.probed.reference.doubled
    cuts = [c for r in case.probed.ranks for c in r.cuts if c.norm > 0]
    found = [c.doubled for c in cuts if c.doubled is not None]
    if not found or len(found) < len(cuts) or max(found) - min(found) > _SAME:
        return None
    return found[0]


def is_sum(case: Case) -> bool:
    """Returns whether the single-process loss grows with the batch.

    If the batch cannot be repeated, a loss of local samples without collectives has no
    global count to divide by.
    """
    factor = doubled(case)
    if factor is None:
        return not case.loss_collectives
    return abs(factor - 2) <= _SAME


def constant_count(case: Case) -> int | None:
    """Returns the constant that divides a sum, if it is the global count."""
    if case.probed is None:
        return None
    told = {rank.divides_by_all for rank in case.probed.ranks}
    return told.pop() if len(told) == 1 else None


def shrinks(case: Case) -> bool:
    """Returns whether the single-process loss is known to get smaller with the batch.

    It is then a sum over samples divided by more than their number.
    """
    factor = doubled(case)
    return factor is not None and factor < 1 - _SAME


def growth_fact(case: Case) -> str:
    """Returns what `is_sum` found, as words."""
    factor = doubled(case)
    if factor is not None:
        return f"repeating the batch gives {number(factor)} times the gradient"
    if not case.loss_collectives:
        return "the step calls no collective that could count all samples"
    return "the step calls collectives, as a global count requires"


def differs_with_equal_counts(case: Case) -> bool:
    """Returns whether the run with the same shard on every rank differs, too."""
    return case.result(equal_shards(case.world_size)).verdict == "divergent"


def is_sound_until_backward(case: Case) -> bool:
    """Returns whether the loss is right, apart from later changes of its gradients."""
    if case.probed is None:
        return False
    world, theirs = case.world_size, case.probed.reference.after_backward
    return all(
        abs(cut.ratio * theirs / rank.after_backward - world) <= case.close * world
        and cut.residual <= case.close
        for rank in case.probed.ranks
        for cut in rank.cuts
        if cut.norm and rank.after_backward
    )


def counted_by(case: Case) -> str | None:
    """Returns the countable thing n_r for which every rank's ratio is N / n_r.

    If several fit, a count without a negative value is taken first (no class is
    negative, so that is an ignore value), then the number of samples, then the sum of a
    mask or of weights, then the first in the order of countables.names.
    """
    ratios = case.rank_ratios
    if ratios is None or case.probed is None:
        return None
    fits = []
    for name in case.probed.reference.counts:
        counts = [r.counts.get(name, 0.0) for r in case.probed.ranks]
        total = sum(counts)
        if not total or any(c == 0 for c in counts) or len(set(counts)) == 1:
            continue
        expected = [total / c for c in counts]
        if all(
            abs(ratio - e) <= case.close * e
            for ratio, e in zip(ratios, expected, strict=True)
        ):
            fits.append(name)
    return min(fits, key=_unlikely) if fits else None


def _unlikely(name: str) -> int:
    likely = ("!= -" in name, name == SAMPLES, name.endswith((" sum", " not NaN")))
    return likely.index(True) if True in likely else len(likely)


def global_loss_fix(case: Case) -> Interventions:
    """Returns the widest fix: the loss on the outputs and targets of all ranks."""
    if case.probed is None:
        return ()
    reference = case.probed.reference
    fix = GlobalLoss(
        modules=reference.frontier,
        parameters=reference.direct,
        outputs=(
            *(Output(path=path) for path in reference.whole_outputs),
            *reference.laid_outputs,
        ),
    )
    if any(reference.frontier) or reference.direct_is_output or not reference.direct:
        return (fix,)
    # Every rank has the whole loss, W times: also a penalty that the step adds.
    return (fix, ScaleDirect(factor=1 / case.world_size))


def global_loss_of_other_rows(case: Case) -> Interventions:
    """Returns the same if outputs are rows of tokens or nodes, or lists of samples.

    () for others.
    """
    if case.has_cuts or not case.forward_is_sound:
        return ()
    if not returns_other_rows(case.probed):
        return ()
    told = [what.partition(" ") for what in case.outcome.facts()["not_compared"]]
    lists = case.outcome.facts().get("sample_lists", [])
    outputs = (
        *(Output(path=path, blocks=1) for kind, _, path in told if kind == "output"),
        *(Output(path=path, is_list=True) for path in lists),
    )
    return (GlobalLoss(outputs=outputs),) if outputs else ()


def scalings(case: Case, factor: float) -> list[Interventions]:
    """Returns fixes that scale what the loss makes of the samples, the best first.

    The gradient of a term without data is unchanged if it is right: the term is found
    where it is added to others, or else by its parameters. The loss may get these only
    as outputs without samples: a temperature, a bias.
    """
    scale = ScaleLoss(factor=factor)
    if case.probed is None or not case.direct() or not case.direct_is_sound:
        return [(scale,)]
    terms, direct = ScaleTerms(factor=1 / factor), ScaleDirect(factor=1 / factor)
    if not case.probed.reference.direct_is_output or is_made_by_the_model(case):
        return [(scale, terms), (scale, direct)]
    paths = case.probed.reference.whole_outputs
    outputs = ScaleOutputs(factor=1 / factor, paths=paths)
    return [(scale, outputs), (scale, terms)]


def numbers_of_modules(case: Case) -> dict[str, tuple[float, float]]:
    """Returns numbers that modules compute from all samples, as a term of the loss.

    By the innermost module that returns such a number: (mean over ranks, single-process
    value), if these differ and no sum over samples explains it. The loss itself is left
    out: it may be wrong in any way.
    """
    found: dict[str, tuple[float, float]] = {}
    calls: dict[tuple[str, int], list[tuple[tuple[float, float], ...]]] = {}
    for rank in case.probed_ranks:
        for m in rank.modules:
            calls.setdefault((m.name, m.call), []).append(m.numbers)
    for (name, _), told in calls.items():
        for pairs in zip(*told, strict=False):
            if [mine for mine, _ in pairs] == case.rank_losses():
                continue
            reference, total = pairs[0][1], sum(mine for mine, _ in pairs)
            bound = case.close * max(abs(reference), abs(total))
            mean = total / len(pairs)
            if abs(mean - reference) > bound and abs(total - reference) > bound:
                found[name] = mean, reference
    return {
        name: value
        for name, value in found.items()
        if not any(other != name and _is_within(other, name) for other in found)
    }


def modules_of_the_loss(case: Case) -> set[str]:
    """Returns the modules within the model that return only numbers.

    If they mix samples, that belongs to the loss, not to the forward.
    """
    calls = case.modules()
    with_rows = {m.name for m in calls if m.rel_diff is not None}
    return {m.name for m in calls if m.numbers} - with_rows - {""}


def loss_with_collectives(case: Case) -> str:
    """Returns the innermost module that returns the loss and calls collectives, or "".

    The loss function may get all samples and no process group; such a module must.
    """
    losses = case.rank_losses()
    calls = [rank.modules for rank in case.probed_ranks]
    found = [
        told[0].name
        for told in zip(*calls, strict=False)
        if told[0].name
        and any(call.collectives for call in told)
        and [n for call in told for n, _ in call.numbers] == losses
    ]
    return max(found, key=len, default="")


def is_made_by_the_model(case: Case) -> bool:
    """Returns whether what the whole model returns is the loss."""
    roots = [
        [n for call in rank.modules if not call.name for n, _ in call.numbers]
        for rank in case.probed_ranks
    ]
    losses = case.rank_losses()
    return bool(losses) and roots == [[loss] for loss in losses]


def losses_are_one(case: Case) -> bool:
    """Returns whether all ranks have the same loss, though their shards differ."""
    shards = {rank.shard for rank in case.probed_ranks}
    if len(shards) == 1 and 0 not in shards:
        return False  # of equal shards each rank's own loss is the same
    values = [v for v in case.rank_losses() if v is not None]
    if len(values) < 2 or not case.loss_collectives:  # noqa: PLR2004
        return False
    return max(values) - min(values) <= case.close * max(map(abs, values))


def is_divided_by_counts(case: Case) -> bool | None:
    """Returns whether one factor per rank gives the single-process gradient.

    None if it is not known.
    """
    told = [rank.span for rank in case.probed_ranks]
    known = [span.residual for span in told if span is not None]
    if not told or len(known) < len(told):
        return None
    return max(known) <= case.close


def whole_model_fix(case: Case) -> Interventions:
    """Returns the widest fix for a loss in the model: all samples for the model.

    Only if modules are sound on a shard, so that the loss is wrong; () for others. In a
    model with batch norms it would also fix these.
    """
    is_redirected = any(rank.is_redirected for rank in case.probed_ranks)
    is_of_loss = (
        (is_redirected or is_made_by_the_model(case))
        and case.run.ranks_agree
        and not case.run.faults
        and not case.facts["has_batch_norm"]
        and not case.diverging()
    )
    return (GlobalModule(),) if is_of_loss else ()


def whole_step_fix(case: Case) -> Interventions:
    """Returns the widest fix for a step with slopes: all samples for the step.

    A slope is d output / d input, which no collective sends back to another rank.
    """
    slopes = max((f.get("slopes", 0) for f in case.ranks), default=0)
    is_of_loss = (
        slopes > 0
        and case.facts["has_train_step"]
        and case.forward_is_sound
        and case.run.ranks_agree
        and not case.run.faults
        and not case.reduce_is_broken
    )
    return (Substitute(boundary="batches"),) if is_of_loss else ()


def _is_within(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")
