"""Detects state/forward-writes-parameter."""

from __future__ import annotations

from ddpcheck.diagnose.facts.case import Case, Proposal
from ddpcheck.diagnose.facts.events import (
    rewritten,
    written_alike,
    written_by_the_model,
)
from ddpcheck.diagnose.facts.loss import differs_with_equal_counts, global_loss_fix
from ddpcheck.diagnose.facts.text import module, names
from ddpcheck.diagnose.facts.updates_apart import written_after
from ddpcheck.run.intervention import GlobalModule, Substitute

SLUG = "state/forward-writes-parameter"
LINK = "forward"


def detect(case: Case) -> Proposal | None:
    """Proposes it for modules that change their parameters in forward."""
    mended = case.outcome.spec.fixes  # these write the single-process values
    alike = written_alike(case)
    modules = [
        m.name
        for m in case.modules()
        if m.writes_parameters
        and m.name not in alike
        and GlobalModule(name=m.name) not in mended
    ]
    if not modules:
        return _detect_model(case) or _detect_step(case) or _detect_after_update(case)
    told = f"modules that write their own parameters in forward: {_named(modules)}"
    return _proposal(case, tuple(dict.fromkeys(modules)), told)


def _detect_model(case: Case) -> Proposal | None:
    """Proposes it if a model writes parameters of its submodules from the local shard."""
    by_themselves = {m.name for m in case.modules() if m.writes_parameters}
    modules = sorted(written_by_the_model(case) - by_themselves - {""})
    if not modules or GlobalModule() in case.outcome.spec.fixes:
        return None
    told = f"the model's forward writes parameters of {_named(modules)}"
    return _proposal(case, ("",), told)


def _named(modules: list[str]) -> str:
    return names(module(n) for n in modules)


def _proposal(case: Case, writers: tuple[str, ...], told: str) -> Proposal | None:
    first = case.first_broken("weights")
    if first is None:
        return None
    return Proposal(
        summary="forward changes weights from the local shard, so the ranks' "
        "weights drift apart permanently",
        facts=(
            told,
            f"weights differ from the single-process run from step {first + 1} on",
        ),
        fix=(
            "all-reduce the values that the update uses, or apply it after the "
            "step to the global batch"
        ),
        fixes=tuple(GlobalModule(name=n) for n in writers),
        module=writers[0],
    )


def _detect_step(case: Case) -> Proposal | None:
    """Proposes it for a step that writes weights from the shard before its forward.

    With the same shard on all ranks they would be equal, unlike weights that a rank
    loads or draws for itself.
    """
    step = rewritten(case, "before")
    if step is None or differs_with_equal_counts(case):
        return None
    return Proposal(
        summary="a training step changes weights from the local shard before its "
        "forward, so the ranks' weights drift apart permanently",
        facts=(
            f"at the beginning of step {step + 1} the ranks' weights are equal, at "
            "its first forward they differ; with the same shard on every rank they "
            "stay equal",
        ),
        fix="all-reduce the values that the weights are computed from, or write "
        "them after the step from the global batch",
        fixes=global_loss_fix(case),
    )


def _detect_after_update(case: Case) -> Proposal | None:
    """Proposes it as speculative for a step that writes weights from the shard after its update.

    It uses more than a number that ranks could reduce: for example which weights had
    small gradients, or rows of the shard in place of unused codes.
    """
    step = written_after(case)
    if step is None:
        return None
    found = case.mismatched("weights", step)
    return Proposal(
        link="update",
        summary="a training step writes weights from the local shard after the "
        "update, so the ranks' weights drift apart permanently",
        facts=(
            f"gradients are equal up to step {step + 1}; after its update ranks differ in "
            f"{names(found)}",
            "when every rank has the samples of all ranks, they do not differ",
        ),
        fix=(
            "all-reduce the value that is written, or the value that decides about it"
        ),
        fixes=(Substitute(boundary="batches"),),
        speculative=True,
        last_resort=2,
    )
